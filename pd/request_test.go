package pd

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requestTests are bodies that are accepted, with what is read of them.
var requestTests = []struct {
	name  string
	ep    Endpoint
	body  string
	batch bool
	items int
	n     int
}{
	{"text is one prompt", Generate, `{"text":"a"}`, false, 1, 1},
	{"a list of texts is a batch", Generate, `{"text":["a","b","c"]}`, true, 3, 1},
	{"a batch of one is a batch", Generate, `{"text":["a"]}`, true, 1, 1},
	{"flat token ids are one prompt", Generate, `{"input_ids":[1,2,3]}`, false, 1, 1},
	{"lists of token ids are a batch", Generate, `{"input_ids":[[1,2],[3]]}`, true, 2, 1},
	{"one list of token ids in a list is a batch of one", Generate, `{"input_ids":[[1,2]]}`, true, 1, 1},
	{"two levels of embeddings are one prompt", Generate, `{"input_embeds":[[0.1,0.2],[0.3,0.4]]}`, false, 1, 1},
	{"three levels of embeddings are a batch", Generate, `{"input_embeds":[[[0.1]],[[0.2]]]}`, true, 2, 1},
	{"text comes before token ids", Generate, `{"input_ids":[[1],[2]],"text":"a"}`, false, 1, 1},
	{"null is absent: token ids decide", Generate, `{"text":null,"input_ids":[[1],[2]]}`, true, 2, 1},
	{"nothing to run is the engine's to refuse", Generate, `{}`, false, 1, 1},
	{"an empty text is one prompt", Generate, `{"text":""}`, false, 1, 1},
	{"white space around everything", Generate, " { \"text\" : [ \"a\" , \"b\" ] } \n", true, 2, 1},

	{"a prompt is one prompt", Completions, `{"prompt":"a"}`, false, 1, 1},
	{"a list of prompts is a batch", Completions, `{"prompt":["a","b"]}`, true, 2, 1},
	{"a list of prompts of one is a batch", Completions, `{"prompt":["a"]}`, true, 1, 1},
	{"a prompt of token ids is one prompt", Completions, `{"prompt":[1,2]}`, false, 1, 1},
	{"prompts of token ids are a batch", Completions, `{"prompt":[[1],[2]]}`, true, 2, 1},
	{"chat is always one prompt", Chat, `{"messages":[{"role":"user"},{"role":"user"}],"text":["a","b"]}`, false, 1, 1},

	{"n of chat", Chat, `{"messages":[],"n":3}`, false, 1, 3},
	{"n of completions, with a batch", Completions, `{"prompt":["a","b"],"n":2}`, true, 2, 2},
	{"n null is absent", Chat, `{"n":null}`, false, 1, 1},
	{"n on the top level of /generate is nothing", Generate, `{"text":"a","n":7}`, false, 1, 1},
	{"sampling_params.n is nothing to chat", Chat, `{"sampling_params":{"n":7}}`, false, 1, 1},
	{"sampling_params.n", Generate, `{"text":"a","sampling_params":{"n":4}}`, false, 1, 4},
	{"sampling_params null", Generate, `{"text":"a","sampling_params":null}`, false, 1, 1},
	{"sampling_params without n", Generate, `{"text":"a","sampling_params":{}}`, false, 1, 1},
	{"sampling_params.n null", Generate, `{"text":"a","sampling_params":{"n":null}}`, false, 1, 1},
	{"a list of params that agree", Generate, `{"text":["a","b"],"sampling_params":[{"n":2},{"n":2}]}`, true, 2, 2},
	{"a list of params, absent agrees with 1", Generate, `{"text":["a","b"],"sampling_params":[{},{"n":1}]}`, true, 2, 1},
	{"an empty list of params", Generate, `{"text":"a","sampling_params":[]}`, false, 1, 1},

	{"the last of two n counts", Chat, `{"n":5,"n":2}`, false, 1, 2},
	{"the last of two n is null", Chat, `{"n":5,"n":null}`, false, 1, 1},
	{"an escaped name is the same name", Chat, `{"n":5,"\u006e":2}`, false, 1, 2},
	{"an escaped name in sampling_params", Generate, `{"text":"a","sampling_params":{"\u006e":2}}`, false, 1, 2},
	{"the last of two texts counts", Generate, `{"text":["a","b"],"text":"c"}`, false, 1, 1},
}

func TestNewRequestReadsPromptsAndSamples(t *testing.T) {
	for _, tt := range requestTests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := NewRequest(tt.ep, []byte(tt.body))
			require.NoError(t, err)
			assert.Equal(t, tt.batch, r.Batch, "batch")
			assert.Equal(t, tt.items, r.Items, "items")
			assert.Equal(t, tt.n, r.N, "n")
			assert.Equal(t, tt.body, string(r.Edit.Payload().Bytes()), "nothing was edited")
		})
	}
}

func TestNewRequestReadsModelStreamAndRid(t *testing.T) {
	read := func(ep Endpoint, body string) *Request {
		t.Helper()
		r, err := NewRequest(ep, []byte(body))
		require.NoError(t, err, body)
		return r
	}
	r := read(Chat, `{"model":"m\u00e9","stream":true,"rid":"mine"}`)
	assert.Equal(t, "mé", r.Model)
	assert.True(t, r.Stream)
	assert.Equal(t, "mine", r.Rid)
	assert.Equal(t, "POST", r.Method)
	assert.Equal(t, "mine", r.PublicID())
	assert.False(t, r.Start.IsZero())

	r = read(Generate, `{"text":["a","b"],"rid":["x","y"],"stream":null,"model":null}`)
	assert.Equal(t, []string{"x", "y"}, r.Rids)
	assert.Empty(t, r.Rid)
	assert.False(t, r.Stream)

	for _, absent := range []string{`{}`, `{"rid":null}`, `{"rid":""}`} {
		r = read(Generate, absent)
		assert.Empty(t, r.Rid, absent)
		assert.Nil(t, r.Rids, absent)
	}
	assert.Equal(t, "mine", read(Generate, `{"text":["a","b"],"rid":"mine"}`).Rid, "one rid for a batch")
}

// refusedTests are bodies that are answered with a 400.
var refusedTests = []struct {
	name  string
	ep    Endpoint
	body  string
	param string
}{
	{"n a string", Chat, `{"n":"2"}`, "n"},
	{"n a fraction", Chat, `{"n":2.0}`, "n"},
	{"n true", Chat, `{"n":true}`, "n"},
	{"n zero", Chat, `{"n":0}`, "n"},
	{"n negative", Chat, `{"n":-1}`, "n"},
	{"n beyond any size", Chat, `{"n":99999999999999999999}`, "n"},
	{"sampling_params.n a string", Generate, `{"text":"a","sampling_params":{"n":"2"}}`, "sampling_params.n"},
	{"sampling_params.n zero in a list", Generate, `{"text":["a"],"sampling_params":[{"n":0}]}`, "sampling_params.n"},
	{"params that disagree", Generate, `{"text":["a","b"],"sampling_params":[{"n":2},{"n":3}]}`, "sampling_params"},
	{"params that disagree by an absent n", Generate, `{"text":["a","b"],"sampling_params":[{"n":2},{}]}`, "sampling_params"},
	{"params a string", Generate, `{"text":"a","sampling_params":"x"}`, "sampling_params"},
	{"params a list of numbers", Generate, `{"text":"a","sampling_params":[1]}`, "sampling_params"},
	{"stream a string", Generate, `{"text":"a","stream":"true"}`, "stream"},
	{"stream a number", Chat, `{"stream":1}`, "stream"},
	{"model a number", Chat, `{"model":1}`, "model"},
	{"text a number", Generate, `{"text":1}`, "text"},
	{"text an object", Generate, `{"text":{}}`, "text"},
	{"token ids a string", Generate, `{"input_ids":"1"}`, "input_ids"},
	{"embeddings a string", Generate, `{"input_embeds":"1"}`, "input_embeds"},
	{"embeddings flat", Generate, `{"input_embeds":[0.1]}`, "input_embeds"},
	{"embeddings of empty lists", Generate, `{"input_embeds":[[]]}`, "input_embeds"},
	{"an empty batch of texts", Generate, `{"text":[]}`, "text"},
	{"an empty batch of token ids", Generate, `{"input_ids":[]}`, "input_ids"},
	{"an empty batch of prompts", Completions, `{"prompt":[ ]}`, "prompt"},
	{"rid a number", Generate, `{"text":"a","rid":7}`, "rid"},
	{"rid an object", Chat, `{"rid":{}}`, "rid"},
	{"rids for one prompt", Generate, `{"text":"a","rid":["x"]}`, "rid"},
	{"fewer rids than items", Generate, `{"text":["a","b"],"rid":["x"]}`, "rid"},
	{"no rids", Generate, `{"text":["a"],"rid":[]}`, "rid"},
	{"an empty rid in a list", Generate, `{"text":["a","b"],"rid":["x",""]}`, "rid"},
	{"a null rid in a list", Generate, `{"text":["a","b"],"rid":["x",null]}`, "rid"},
	{"not JSON", Generate, `{"text":`, ""},
	{"no object", Generate, `["a"]`, ""},
	{"nothing", Generate, ``, ""},
	{"NaN", Generate, `{"text":"a","temperature":NaN}`, ""},
	{"garbage behind the object", Generate, `{"text":"a"} x`, ""},
	{"raw invalid UTF-8", Generate, "{\"text\":\"\xff\"}", ""},
	{"a depth bomb", Generate, `{"text":` + strings.Repeat("[", 20000), ""},
}

func TestNewRequestRefusesWithTheFieldAtFault(t *testing.T) {
	for _, tt := range refusedTests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewRequest(tt.ep, []byte(tt.body))
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, Invalid, e.Kind)
			assert.Equal(t, StageRequest, e.Stage)
			assert.Equal(t, http.StatusBadRequest, e.Status)
			assert.Equal(t, tt.param, e.Param)
			assert.NotEmpty(t, e.Message)
			if tt.param == "" {
				assert.Equal(t, "invalid_json", e.Code)
			} else {
				assert.Equal(t, "invalid_request", e.Code)
				assert.Contains(t, e.Message, strings.TrimSuffix(tt.param, "."))
			}
		})
	}
}

func TestErrorsOfABodyQuoteNothingOfIt(t *testing.T) {
	for _, body := range []string{
		`{"text":"secret`, `{"secret":nope}`, `{"text":"a","sampling_params":"secret"}`, `{"n":"secret","text":"secret","stream":"secret"}`,
		`{"rid":{"secret":1}}`, `{"text":"a"} secret`,
	} {
		_, err := NewRequest(Generate, []byte(body))
		var e *Error
		require.ErrorAs(t, err, &e, body)
		assert.NotContains(t, e.Message+e.Error()+string(e.JSON(Generate)), "secret", body)
	}
}

func TestBoolTakesNothingButBooleans(t *testing.T) {
	r, err := NewRequest(Chat, []byte(`{"t":true,"f":false,"n":null,"s":"true","i":1}`))
	require.NoError(t, err)
	for name, want := range map[string]bool{"t": true, "f": false, "n": false, "absent": false} {
		got, err := r.Bool(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{"s", "i"} {
		_, err := r.Bool(name)
		assert.Equal(t, name, AsError(err).Param)
	}
}

func TestSampleAsksForOne(t *testing.T) {
	f := func(name string, ep Endpoint, body string, j int, want string) {
		t.Run(name, func(t *testing.T) {
			r, err := NewRequest(ep, []byte(body))
			require.NoError(t, err)
			s, err := r.Sample(j)
			require.NoError(t, err)
			assert.Equal(t, want, string(s.Edit.Payload().Bytes()))
			assert.Equal(t, body, string(r.Edit.Payload().Bytes()), "the request itself stays as it was")
			assert.Equal(t, 1, s.N)
			assert.Equal(t, j, s.SampleIndex)
			assert.Empty(t, s.Rid)
			assert.Nil(t, s.Rids)
		})
	}
	f("chat", Chat, `{"messages":[],"n":3,"x":1e2}`, 1, `{"messages":[],"n":1,"x":1e2}`)
	f("the seed moves on", Chat, `{"n":3,"seed":40}`, 2, `{"n":1,"seed":42}`)
	f("the first sample keeps the seed", Chat, `{"n":3,"seed":40}`, 0, `{"n":1,"seed":40}`)
	f("a negative seed", Completions, `{"n":3,"seed":-1}`, 2, `{"n":1,"seed":1}`)
	f("the largest seed, first sample", Chat, `{"n":2,"seed":9223372036854775807}`, 0, `{"n":1,"seed":9223372036854775807}`)
	f("a null seed stays", Chat, `{"n":2,"seed":null}`, 1, `{"n":1,"seed":null}`)
	f("every copy, in every spelling", Chat, `{"n":7,"\u006e":3,"seed":1,"s\u0065ed":5}`, 1, `{"n":1,"\u006e":1,"seed":6,"s\u0065ed":6}`)
	f("generate", Generate, `{"text":"a","sampling_params":{"n":3,"t": 1}}`, 1, `{"text":"a","sampling_params":{"n":1,"t": 1}}`)
	f("sampling_seed", Generate, `{"sampling_params":{"n":2,"sampling_seed":7}}`, 1, `{"sampling_params":{"n":1,"sampling_seed":8}}`)
	f("a null sampling_seed stays", Generate, `{"sampling_params":{"n":2,"sampling_seed":null}}`, 1, `{"sampling_params":{"n":1,"sampling_seed":null}}`)
	f("every element of a list", Generate, `{"text":["a","b"],"sampling_params":[{"n":2,"sampling_seed":1},{"sampling_seed":5,"n":2}]}`, 1,
		`{"text":["a","b"],"sampling_params":[{"n":1,"sampling_seed":2},{"sampling_seed":6,"n":1}]}`)
	f("every copy within sampling_params", Generate, `{"sampling_params":{"n":9,"\u006e":2}}`, 1, `{"sampling_params":{"n":1,"\u006e":1}}`)
	f("the client's n and rid elsewhere are data", Generate, `{"text":"\"n\":3","n":3,"sampling_params":{"n":2,"stop":["n"]}}`, 1,
		`{"text":"\"n\":3","n":3,"sampling_params":{"n":1,"stop":["n"]}}`)
}

func TestSampleRefusesASeedThatCannotMoveOn(t *testing.T) {
	for body, param := range map[string]string{
		`{"n":2,"seed":9223372036854775807}`: "seed",
		`{"n":2,"seed":"1"}`:                 "seed",
		`{"n":2,"seed":1.5}`:                 "seed",
	} {
		r, err := NewRequest(Chat, []byte(body))
		require.NoError(t, err)
		_, err = r.Sample(1)
		assert.Equal(t, param, AsError(err).Param, body)
		assert.Equal(t, Invalid, AsError(err).Kind, body)
	}
	for _, seed := range []string{`9223372036854775807`, `"1"`, `1e3`} {
		r, err := NewRequest(Generate, []byte(`{"text":"a","sampling_params":{"n":2,"sampling_seed":`+seed+`}}`))
		require.NoError(t, err)
		_, err = r.Sample(1)
		assert.Equal(t, "sampling_params.sampling_seed", AsError(err).Param, seed)
	}
}

// Whatever the body: it is refused with a 400, or read the way a JSON reader
// reads it, and each of its samples is JSON that asks for one.
func FuzzNewRequest(f *testing.F) {
	for _, tt := range requestTests {
		f.Add(byte(tt.ep), []byte(tt.body))
	}
	for _, tt := range refusedTests {
		if len(tt.body) < 1000 {
			f.Add(byte(tt.ep), []byte(tt.body))
		}
	}
	f.Fuzz(func(t *testing.T, endpoint byte, body []byte) {
		ep := Endpoint(endpoint % 3)
		r, err := NewRequest(ep, body)
		if err != nil {
			require.Equal(t, http.StatusBadRequest, AsError(err).Status)
			require.True(t, json.Valid(AsError(err).JSON(ep)))
			return
		}
		require.True(t, json.Valid(body))
		require.Equal(t, body, r.Edit.Payload().Bytes())
		require.GreaterOrEqual(t, r.N, 1)
		require.GreaterOrEqual(t, r.Items, 1)
		require.True(t, r.Batch || r.Items == 1)
		s, err := r.Sample(1)
		if err != nil {
			require.Equal(t, Invalid, AsError(err).Kind)
			return
		}
		again, err := NewRequest(ep, s.Edit.Payload().Bytes())
		require.NoError(t, err)
		require.Equal(t, 1, again.N)
		require.Equal(t, [2]any{r.Batch, r.Items}, [2]any{again.Batch, again.Items})
	})
}

// What an engine gets as it came is judged by the engine: a request is read for
// what has to be known of it, and no more.
func TestNewSingleLeavesTheBodyToTheEngine(t *testing.T) {
	type seen struct {
		model  string
		stream bool
		n      int
		items  int
		rid    string
		rids   []string
	}
	f := func(name string, ep Endpoint, body string, want seen) {
		t.Run(name, func(t *testing.T) {
			r, err := NewSingle(ep, []byte(body))
			require.NoError(t, err)
			assert.Equal(t, want, seen{r.Model, r.Stream, r.N, r.Items, r.Rid, r.Rids})
			assert.Equal(t, body, string(r.Payload().Bytes()), "byte for byte")
			assert.EqualValues(t, len(body), r.Payload().Len())
		})
	}
	f("n is read", Chat, `{"model":"m", "n":3}`, seen{model: "m", n: 3, items: 1})
	f("n is not judged", Chat, `{"n":"2"}`, seen{n: 1, items: 1})
	f("nor is that of a list", Generate, `{"text":["a","b"],"sampling_params":[{"n":2},{"n":3}]}`, seen{n: 1, items: 2})
	f("a rid is read", Generate, `{"text":"a","rid":"r","stream":true}`, seen{stream: true, n: 1, items: 1, rid: "r"})
	f("another path's object is read", Other, `{"model":"m","stream":true,"input":"x","rid":"r"}`, seen{model: "m", stream: true, n: 1, items: 1, rid: "r"})
	f("another path's object is not judged", Other, `{"model":5,"stream":"yes","rid":["a"]}`, seen{n: 1, items: 1})
	f("no object", Other, `["a"]`, seen{n: 1, items: 1})
	f("no JSON", Other, "--part\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\xff\x00\r\n--part--", seen{n: 1, items: 1})
	f("nothing", Other, ``, seen{n: 1, items: 1})
	f("twice the same key and odd spaces", Other, " { \"a\" : 1 ,\n\"a\":2 } \n", seen{n: 1, items: 1})

	for _, body := range []string{``, `[]`, `{"stream":"true"}`, `{"model":5}`, `{"rid":5}`, "{\"a\":\"\xff\"}"} {
		_, err := NewSingle(Chat, []byte(body))
		assert.Equal(t, Invalid, AsError(err).Kind, body)
	}
}

func TestPathOfARequest(t *testing.T) {
	for _, ep := range []Endpoint{Generate, Chat, Completions} {
		r, err := NewSingle(ep, []byte(`{}`))
		require.NoError(t, err)
		assert.Equal(t, ep.Path(), r.Path())
		r.Target = ep.Path() + "?a=b"
		assert.Equal(t, ep.Path()+"?a=b", r.Path())
	}
	assert.Empty(t, Other.Path())
	assert.Equal(t, "other", Other.String())
	assert.True(t, Other.OpenAI())
}
