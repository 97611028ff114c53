package sglang

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/patch"
)

// maxTopLogprobs is the width of the buffer in which prefill hands its first
// token's top log probabilities to decode. More of them ends the engine.
const maxTopLogprobs = 128

// splices is what of prefill's answer must go into decode's.
type splices struct {
	any  bool
	late bool // some of it comes near the end of prefill's stream
}

// wants reads which of prefill's data the answer needs.
func wants(req *pd.Request) (splices, error) {
	experts, err := req.Bool("return_routed_experts")
	if err != nil {
		return splices{}, err
	}
	var logprobs bool
	switch req.Endpoint {
	case pd.Generate:
		logprobs, err = anyTrue(req, "return_logprob")
	case pd.Completions:
		logprobs, err = req.Bool("echo")
		if _, ok := req.Doc.Get("logprobs"); !ok {
			logprobs = false
		}
	}
	return splices{any: experts || logprobs, late: experts && req.Endpoint.OpenAI()}, err
}

// anyTrue reads a bool or a list of bools.
func anyTrue(req *pd.Request, name string) (bool, error) {
	v, ok := req.Doc.Get(name)
	if !ok {
		return false, nil
	}
	if v.Kind() != '[' {
		return req.Bool(name)
	}
	found := false
	for _, el := range v.All() {
		b, ok := el.Bool()
		if !ok {
			return false, pd.InvalidField(name, name+" must be true or false, or a list of them")
		}
		found = found || b
	}
	return found, nil
}

// check refuses with 400 what would kill or corrupt an engine.
func check(req *pd.Request) error {
	for _, name := range []string{"session_id", "session_params"} {
		if _, ok := req.Doc.Get(name); ok {
			return pd.InvalidField(name, name+" is not supported with prefill/decode disaggregation")
		}
	}
	name := "top_logprobs_num"
	switch req.Endpoint {
	case pd.Chat:
		name = "top_logprobs"
	case pd.Completions:
		name = "logprobs"
	}
	v, ok := req.Doc.Get(name)
	if !ok {
		return nil
	}
	if v.Kind() == '[' && req.Endpoint == pd.Generate {
		for _, el := range v.All() {
			if err := checkTop(name, el); err != nil {
				return err
			}
		}
		return nil
	}
	return checkTop(name, v)
}

func checkTop(name string, v patch.Value) error {
	n, ok := v.Int()
	switch {
	case v.Kind() == 'n':
		return nil
	case !ok:
		return pd.InvalidField(name, name+" must be an integer")
	case n > maxTopLogprobs:
		return pd.InvalidField(name, name+" must be at most "+strconv.Itoa(maxTopLogprobs))
	}
	return nil
}

// GivenRids are the rids that an engine knows the request's items by, one for each,
// as far as the client gave any: of one for a whole batch the engine makes one for
// each item. Nil where it gave none.
func GivenRids(req *pd.Request) []string {
	switch {
	case req.Rids != nil:
		return req.Rids
	case req.Rid == "":
		return nil
	case !req.Batch:
		return []string{req.Rid}
	}
	rids := make([]string, req.Items)
	for i := range rids {
		rids[i] = req.Rid + "_" + strconv.Itoa(i)
	}
	return rids
}

// exchangeRids are the rids of one exchange, one for each item: the client's own
// where it gave any, else new ones.
func exchangeRids(req *pd.Request) []string {
	if given := GivenRids(req); given != nil {
		return given
	}
	rids := make([]string, req.Items)
	for i := range rids {
		rids[i] = pd.NewRid()
	}
	return rids
}

// members are the fields written into both bodies: scalars for a single prompt,
// lists as long as the batch for a batch, even of one.
func members(req *pd.Request, prefill *pd.Worker, rooms []uint64, rids []string) []patch.Member {
	port := []byte("null")
	if prefill.BootstrapPort != 0 {
		port = strconv.AppendInt(nil, int64(prefill.BootstrapPort), 10)
	}
	list := func(element func(b []byte, i int) []byte) []byte {
		if !req.Batch {
			return element(nil, 0)
		}
		b := []byte{'['}
		for i := range rooms {
			if i > 0 {
				b = append(b, ',')
			}
			b = element(b, i)
		}
		return append(b, ']')
	}
	m := append(make([]patch.Member, 0, 4),
		patch.Member{Name: "bootstrap_host", Raw: list(func(b []byte, _ int) []byte { return appendQuoted(b, prefill.BootstrapHost) })},
		patch.Member{Name: "bootstrap_port", Raw: list(func(b []byte, _ int) []byte { return append(b, port...) })},
		patch.Member{Name: "bootstrap_room", Raw: list(func(b []byte, i int) []byte { return strconv.AppendUint(b, rooms[i], 10) })})
	if own := req.Rids != nil || (req.Rid != "" && !req.Batch); !own {
		m = append(m, patch.Member{Name: "rid", Raw: list(func(b []byte, i int) []byte { return appendQuoted(b, rids[i]) })})
	}
	return m
}

func intMember(name string, n int) patch.Member {
	return patch.Member{Name: name, Raw: strconv.AppendInt(nil, int64(n), 10)}
}

func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // what is not UTF-8 becomes U+FFFD
	return b
}
