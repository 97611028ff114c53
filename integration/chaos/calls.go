package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// requestIDHeader joins a client's request with the legs that its engines see.
const requestIDHeader = "X-Request-Id"

// ownRid begins the rids that clients choose for themselves.
const ownRid = "own-"

type object = map[string]any

// The three endpoints.
const (
	generatePath    = "/generate"
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// manner is what a client does beside waiting for its answer.
type manner string

const (
	stays       manner = "stays"
	leavesEarly manner = "leaves before an answer"
	leavesLate  manner = "leaves within a stream"
	readsSlowly manner = "reads slowly"
	aborts      manner = "aborts by its rid"
	errs        manner = "sends bad input"
)

// call is one request and what its client does with it.
type call struct {
	id, path string
	body     []byte
	stream   bool
	manner   manner
	after    time.Duration // leavesEarly, aborts: when
	events   int           // leavesLate: after so many
	rid      string        // the client's own, empty for none

	want     []simengine.Output // by index; nil for bad input
	prompts  []int              // tokens of each, if the prompt's logprobs are asked for
	unsent   bool               // bad input that the router itself must refuse
	describe string
}

// stays reports whether the client waits for the whole answer, whatever comes.
func (k *call) stays() bool {
	return k.manner == stays || k.manner == readsSlowly || k.manner == errs
}

// The mix of calls, in percent where it is not said otherwise.
const (
	percentStream    = 60
	percentSampled   = 15
	percentBatch     = 12
	percentLogprobs  = 25 // of /generate
	percentOwnRid    = 10
	percentLong      = 3
	percentForged    = 3 // bring bootstrap fields that must not pass
	percentBad       = 3
	percentLeave     = 12
	percentSlow      = 8
	percentAbort     = 6
	usualTokens      = 20
	longTokens       = 150
	unwantedTokens   = 450 // of half the calls that are given up: the engine's work would outlast the limit by far
	mostSamples      = 4
	mostPrompts      = 3
	leaveWithin      = 400 * time.Millisecond
	leaveAfterEvents = 8
)

// caller makes one client's calls. It is for one goroutine.
type caller struct {
	name string
	dice *rand.Rand
	made int
}

func (c *caller) percent(p int) bool { return c.dice.IntN(100) < p }

// next makes up a call.
func (c *caller) next() *call {
	c.made++
	k := &call{
		id: fmt.Sprintf("%s-%d", c.name, c.made), manner: stays,
		path: [...]string{generatePath, generatePath, chatPath, completionsPath}[c.dice.IntN(4)],
	}
	if c.percent(percentBad) {
		c.bad(k)
		return k
	}
	k.stream = c.percent(percentStream)
	n, prompts := 1, 1
	if c.percent(percentSampled) {
		n = 2 + c.dice.IntN(mostSamples-1)
	}
	if k.path != chatPath && c.percent(percentBatch) {
		prompts = 2 + c.dice.IntN(mostPrompts-1)
	}
	c.behave(k, n*prompts == 1)
	tokens := 1 + c.dice.IntN(usualTokens)
	switch {
	case !k.stays() && c.percent(50):
		tokens = unwantedTokens - c.dice.IntN(unwantedTokens/4)
	case k.manner == readsSlowly: // its window is so small that a megabyte would take it a minute
	case c.percent(percentLong):
		tokens = longTokens - c.dice.IntN(longTokens/2)
	}
	body := c.body(k, n, prompts, tokens)
	if k.rid != "" {
		body["rid"] = k.rid
	}
	if k.stream {
		body["stream"] = true
	}
	if c.percent(percentForged) {
		maps.Copy(body, object{"bootstrap_room": 7, "bootstrap_host": "127.0.0.9", "bootstrap_port": 9})
	}
	k.encode(body)
	want, err := simengine.ExpectedFor(k.path, k.body)
	if err != nil {
		panic("BUG: a call that no engine takes: " + err.Error())
	}
	k.want = want
	k.describe = fmt.Sprintf("%s stream=%t n=%d prompts=%d tokens=%d logprobs=%t rid=%q, client %s",
		k.path, k.stream, n, prompts, tokens, k.prompts != nil, k.rid, k.manner)
	return k
}

// behave chooses what the client does; single says that the call has one item.
func (c *caller) behave(k *call, single bool) {
	own := c.percent(percentOwnRid)
	switch roll := c.dice.IntN(100); {
	case roll < percentLeave:
		k.manner, k.after = leavesEarly, c.within(leaveWithin)
		if k.stream && c.percent(50) {
			k.manner, k.events = leavesLate, 1+c.dice.IntN(leaveAfterEvents)
		}
	case roll < percentLeave+percentSlow && k.stream:
		k.manner = readsSlowly
	case roll >= 100-percentAbort && single:
		k.manner, k.after, own = aborts, c.within(leaveWithin), true
	}
	if own && single {
		k.rid = fmt.Sprintf("%s%s-%06d", ownRid, c.name, c.made)
	}
}

func (c *caller) within(d time.Duration) time.Duration { return time.Duration(c.dice.Int64N(int64(d))) }

// body makes the fields of a call, with a seed: samples differ by theirs.
func (c *caller) body(k *call, n, prompts, tokens int) object {
	texts := make([]string, prompts)
	for i := range texts {
		texts[i] = c.text()
	}
	prompt := any(texts[0])
	if prompts > 1 {
		prompt = texts
	}
	seed, whole := c.dice.IntN(1000), !c.percent(20)
	if k.path != generatePath {
		body := object{"model": "tiny", "max_tokens": tokens, "seed": seed, "ignore_eos": whole}
		if k.path == chatPath {
			body["messages"] = []object{{"role": "user", "content": texts[0]}}
		} else {
			body["prompt"] = prompt
		}
		if n > 1 {
			body["n"] = n
		}
		return body
	}
	params := object{"max_new_tokens": tokens, "sampling_seed": seed, "ignore_eos": whole}
	if n > 1 {
		params["n"] = n
	}
	body := object{"text": prompt, "sampling_params": params}
	if c.percent(percentLogprobs) && k.manner != readsSlowly { // megabytes would take it a minute
		maps.Copy(body, object{"return_logprob": true, "logprob_start_len": 0})
		for _, text := range texts {
			for range n {
				k.prompts = append(k.prompts, len(simengine.Tokenize(text)))
			}
		}
	}
	return body
}

// text is a prompt that no other call has, some of them with a common beginning.
func (c *caller) text() string {
	var b strings.Builder
	if c.percent(30) {
		b.WriteString("You are a helpful assistant, so answer. ")
	}
	fmt.Fprintf(&b, "%s.%d", c.name, c.made)
	for range c.dice.IntN(8) {
		fmt.Fprintf(&b, " word%d", c.dice.IntN(1000))
	}
	return b.String()
}

// bad makes a call that must be answered with 400.
func (c *caller) bad(k *call) {
	k.manner = errs
	fields := object{"text": c.text(), "prompt": c.text(), "messages": []object{{"role": "user", "content": c.text()}}, "model": "tiny"}
	k.unsent = true
	switch c.dice.IntN(5) {
	case 0:
		fields["n"], fields["sampling_params"] = "2", object{"n": "2"}
	case 1:
		fields["stream"] = "yes"
	case 2:
		k.body, k.describe = []byte(`{"text": "a`), k.path+" with half a body"
		return
	case 3:
		k.path, fields["text"] = generatePath, []string{}
	default: // the engines' to refuse
		k.unsent = false
		fields["temperature"], fields["sampling_params"] = -1, object{"temperature": -1}
	}
	k.encode(fields)
	k.describe = k.path + " with bad input"
}

func (k *call) encode(body object) {
	text, err := json.Marshal(body)
	if err != nil {
		panic("BUG: a body that does not marshal: " + err.Error())
	}
	k.body = text
}
