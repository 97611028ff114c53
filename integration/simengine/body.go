package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// endpoint is one of those that use the model.
type endpoint string

const (
	epGenerate    endpoint = "/generate"
	epChat        endpoint = "/v1/chat/completions"
	epCompletions endpoint = "/v1/completions"
	// The rest is for whole engines.
	epResponses  endpoint = "/v1/responses"
	epMessages   endpoint = "/v1/messages"
	epEmbeddings endpoint = "/v1/embeddings"
	epRerank     endpoint = "/v1/rerank"
	epClassify   endpoint = "/v1/classify"
	epScore      endpoint = "/v1/score"
)

// request is a parsed body.
type request struct {
	ep          endpoint
	model       string
	stream      bool
	usage       bool // stream_options.include_usage
	usageAlways bool // stream_options.continuous_usage_stats
	batch       bool // a list was sent, so a list is answered
	n           int
	echo        bool
	items       []*item
	listForOne  bool // a bootstrap list on a single request
	sampled     bool // each prompt has n items
	documents   []string
	labels      []int // of /v1/score
	unstored    bool  // of /v1/responses
}

// item is one prompt of a request.
type item struct {
	index     int
	rid       string
	host      string
	hasHost   bool
	port      int // 0 is null or absent
	room      Room
	prompt    []int
	text      string // the prompt's text, for echo
	params    Params
	lp        logprobs
	forced    *int // routed_dp_rank
	prefillDP *int // disagg_prefill_dp_rank

	hash uint64 // of the prompt

	serving
}

// logprobs is which log probabilities an item wants.
type logprobs struct {
	on       bool
	start    int // -1: of the output only
	top      int
	tokenIDs []int
	text     bool
}

// parse reads the body of a generation request. With an error the request holds
// what could be read, for the record.
func (l *life) parse(ep endpoint, body []byte, header http.Header) (*request, error) {
	req := &request{ep: ep, n: 1}
	f, err := decodeFields(body)
	if err != nil {
		return req, &malformed{err.Error()}
	}
	if l.cfg.HeaderOverrides && ep != epCompletions {
		overrideFields(f, header)
	}
	if req.stream, err = f.boolean("stream"); err != nil {
		return req, err
	}
	switch ep {
	case epGenerate:
		err = req.readGenerate(f)
	case epChat, epCompletions:
		err = req.readOpenAI(f, l.cfg.ContextLength)
	default:
		err = req.readWhole(f)
	}
	if err != nil {
		return req, err
	}
	if err := req.readRouting(f, header, l.cfg.DPSize); err != nil {
		return req, err
	}
	return req, l.checkLengths(req)
}

// setPrompts makes one item of each prompt.
func (r *request) setPrompts(prompts [][]int, texts []string) {
	for i, p := range prompts {
		it := &item{index: i, prompt: p, hash: hashTokens(p)}
		if texts != nil {
			it.text = texts[i]
		} else {
			it.text = Detokenize(p)
		}
		r.items = append(r.items, it)
	}
}

// readPrompt reads text or token ids, one or a list of them. It reports whether
// there was a list.
func readPrompt(raw json.RawMessage) (ids [][]int, texts []string, list bool, err error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return [][]int{Tokenize(text)}, []string{text}, false, nil
	}
	if json.Unmarshal(raw, &texts) == nil {
		for _, t := range texts {
			ids = append(ids, Tokenize(t))
		}
		return ids, texts, true, nil
	}
	var one []int
	if json.Unmarshal(raw, &one) == nil {
		return [][]int{one}, nil, false, nil
	}
	if err := json.Unmarshal(raw, &ids); err != nil {
		return nil, nil, false, err
	}
	return ids, nil, true, nil
}

// readRouting reads the pairing fields, request ids and ranks, and spreads
// scalars over the items as the engine does.
func (r *request) readRouting(f fields, header http.Header, dpSize int) error {
	forced, err := rankOf(f, header, r.ep, dpSize)
	if err != nil {
		return err
	}
	var prefillDP *int
	if f.has("disagg_prefill_dp_rank") {
		n, err := f.integer("disagg_prefill_dp_rank", 0)
		if err != nil {
			return err
		}
		prefillDP = &n
	}
	for _, it := range r.items {
		it.forced, it.prefillDP = forced, prefillDP
	}
	for _, name := range []string{"bootstrap_room", "bootstrap_host", "bootstrap_port"} {
		r.listForOne = r.listForOne || !r.batch && isList(f[name])
	}
	if err := r.readRids(f["rid"]); err != nil {
		return err
	}
	if err := r.spreadRooms(f["bootstrap_room"]); err != nil {
		return err
	}
	if err := r.spreadHosts(f["bootstrap_host"]); err != nil {
		return err
	}
	return r.spreadPorts(f["bootstrap_port"])
}

// each calls set with the element of every item: of a list its own, of a scalar
// the same. A list that is too short is the engine's IndexError.
func (r *request) each(raw json.RawMessage, set func(i int, raw json.RawMessage, scalar bool) error) error {
	if isNull(raw) {
		return nil
	}
	if !isList(raw) {
		for i := range r.items {
			if err := set(i, raw, true); err != nil {
				return err
			}
		}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return &malformed{err.Error()}
	}
	for i := range r.items {
		if i >= len(list) {
			return errIndex
		}
		if isNull(list[i]) {
			continue
		}
		if err := set(i, list[i], false); err != nil {
			return err
		}
	}
	return nil
}

func (r *request) spreadRooms(raw json.RawMessage) error {
	return r.each(raw, func(i int, raw json.RawMessage, scalar bool) error {
		room, err := parseRoom(raw)
		if err != nil {
			return err
		}
		if scalar {
			room = room.add(i)
		}
		r.items[i].room = room
		return nil
	})
}

func (r *request) spreadHosts(raw json.RawMessage) error {
	return r.each(raw, func(i int, raw json.RawMessage, _ bool) error {
		if err := json.Unmarshal(raw, &r.items[i].host); err != nil {
			return &fieldError{"bootstrap_host", "string_type", "Input should be a valid string", raw}
		}
		r.items[i].hasHost = true
		return nil
	})
}

func (r *request) spreadPorts(raw json.RawMessage) error {
	return r.each(raw, func(i int, raw json.RawMessage, _ bool) error {
		port, err := laxInt("bootstrap_port", raw)
		if err != nil {
			return err
		}
		r.items[i].port = int(port)
		return nil
	})
}

// readRids gives every item its request id: made up, the client's, or the
// client's with a suffix.
func (r *request) readRids(raw json.RawMessage) error {
	var scalar string
	var list []string
	switch {
	case isNull(raw):
	case isList(raw):
		if err := json.Unmarshal(raw, &list); err != nil {
			return &fieldError{"rid", "string_type", "Input should be a valid string", raw}
		}
		if len(list) != len(r.items) {
			return valueError("The rids length mismatch with the batch_size.")
		}
	default:
		if err := json.Unmarshal(raw, &scalar); err != nil {
			return &fieldError{"rid", "string_type", "Input should be a valid string", raw}
		}
	}
	seen := make(map[string]bool, len(r.items))
	for i, it := range r.items {
		switch {
		case list != nil:
			it.rid = list[i]
		case scalar != "" && r.batch:
			it.rid = scalar + "_" + strconv.Itoa(i)
		case scalar != "":
			it.rid = scalar
		default:
			it.rid = newID()
		}
		if seen[it.rid] {
			return valueError("Duplicate request IDs detected within the request")
		}
		seen[it.rid] = true
	}
	return nil
}

// rankOf is the data parallel rank that the client forces, nil if none.
func rankOf(f fields, header http.Header, ep endpoint, size int) (*int, error) {
	name := "routed_dp_rank"
	if !f.has(name) {
		name = "data_parallel_rank"
	}
	value := header.Get("X-Data-Parallel-Rank")
	var rank int
	switch {
	case ep != epGenerate && value != "":
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, valueError("Invalid X-Data-Parallel-Rank header: must be an integer")
		}
		rank = n
	case f.has(name):
		n, err := f.integer(name, 0)
		if err != nil {
			return nil, err
		}
		rank = n
	default:
		return nil, nil
	}
	if rank < 0 || rank >= size {
		return nil, valueError(fmt.Sprintf("routed_dp_rank=%d out of range [0, %d)", rank, size))
	}
	if size == 1 {
		return nil, nil
	}
	return &rank, nil
}

// overrideFields lets the x-override-* headers replace fields of the body.
func overrideFields(f fields, header http.Header) {
	for field, name := range map[string]string{
		"rid": "x-override-rid", "bootstrap_host": "x-override-bootstrap-host",
		"bootstrap_port": "x-override-bootstrap-port", "bootstrap_room": "x-override-bootstrap-room",
		"routed_dp_rank":         "x-override-routed-dp-rank",
		"disagg_prefill_dp_rank": "x-override-disagg-prefill-dp-rank",
	} {
		if v := header.Get(name); v != "" {
			f[field] = appendString(nil, v)
		}
	}
}

// checkLengths are the limits the tokenizer process knows of.
func (l *life) checkLengths(req *request) error {
	limit := l.cfg.ContextLength
	for _, it := range req.items {
		size, want := len(it.prompt), it.params.MaxNewTokens
		if size == 0 {
			return valueError("input_ids cannot be empty.")
		}
		if size >= limit {
			return valueError(fmt.Sprintf("The input (%d tokens) is longer than the model's context length (%d tokens).", size, limit))
		}
		if size+want > limit {
			return valueError(fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens. "+
				"You requested a total of %d tokens: %d tokens from the input messages and %d tokens for the completion. "+
				"Please reduce the number of tokens in the input messages or the completion to fit within the limit.",
				limit, size+want, size, want))
		}
	}
	return nil
}
