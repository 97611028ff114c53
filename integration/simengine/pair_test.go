package simengine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a prefill and a decode and a client that is not kept alive.
type pair struct {
	t               *testing.T
	prefill, decode *Engine
	client          *http.Client
}

// newPair starts a pair whose 300 s timers run in 1.5 s.
func newPair(t *testing.T, change func(prefill, decode *Config)) *pair {
	t.Helper()
	p := Config{Role: Prefill, TimeScale: 0.005, HealthDelay: -1}
	d := Config{Role: Decode, TimeScale: 0.005, HealthDelay: -1}
	if change != nil {
		change(&p, &d)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	two := &pair{t: t, client: &http.Client{Transport: transport, Timeout: 20 * time.Second}}
	two.prefill, two.decode = start(t, p), start(t, d)
	return two
}

func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e, err := Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

type object = map[string]any

// routed is body with the pairing fields of the pair's prefill.
func (p *pair) routed(room any, body object) object {
	out := object{"bootstrap_host": p.prefill.Host(), "bootstrap_port": p.prefill.BootstrapPort(), "bootstrap_room": room}
	maps.Copy(out, body)
	return out
}

// reply is an answer, or why there is none.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

// events are the data of an event stream.
func (r reply) events() []string {
	var out []string
	for block := range strings.SplitSeq(string(r.body), "\n\n") {
		if data, ok := strings.CutPrefix(block, "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}

func (r reply) object(t *testing.T) object {
	t.Helper()
	require.NoError(t, r.err)
	return decodeObject(t, r.body)
}

func decodeObject(t *testing.T, text []byte) object {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal(text, &o), "%s", text)
	return o
}

func (p *pair) post(ctx context.Context, e *Engine, path string, body any) reply {
	text, ok := body.([]byte)
	if !ok {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+path, bytes.NewReader(text))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	return p.do(req)
}

func (p *pair) get(e *Engine, path string) reply {
	req, err := http.NewRequest(http.MethodGet, e.URL()+path, nil)
	if err != nil {
		return reply{err: err}
	}
	return p.do(req)
}

func (p *pair) do(req *http.Request) reply {
	began := time.Now()
	resp, err := p.client.Do(req)
	if err != nil {
		return reply{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: body, err: err, took: time.Since(began)}
}

// start sends a call and gives its answer later.
func (p *pair) start(ctx context.Context, e *Engine, path string, body any) <-chan reply {
	answer := make(chan reply, 1)
	go func() { answer <- p.post(ctx, e, path, body) }()
	return answer
}

// both sends the same body to both sides and returns both answers.
func (p *pair) both(path string, body any) (prefill, decode reply) {
	answer := p.start(p.t.Context(), p.prefill, path, body)
	decode = p.post(p.t.Context(), p.decode, path, body)
	return <-answer, decode
}

func TestAPairAnswersWithTheExpectedOutput(t *testing.T) {
	p := newPair(t, nil)
	f := func(name, path, body string) {
		t.Run(name, func(t *testing.T) {
			fields := decodeObject(t, []byte(body))
			want, err := ExpectedFor(path, []byte(body))
			require.NoError(t, err)
			pre, dec := p.both(path, p.routed(len(p.decode.Records())+1, fields))
			require.Equal(t, http.StatusOK, pre.status, "%s", pre.body)
			require.Equal(t, http.StatusOK, dec.status, "%s", dec.body)
			require.Contains(t, string(dec.body), string(appendString(nil, want[0].Text)))
		})
	}
	f("text", "/generate", `{"text":"Hi","sampling_params":{"max_new_tokens":8}}`)
	f("token ids", "/generate", `{"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":8,"sampling_seed":7}}`)
	f("batch", "/generate", `{"text":["a","b"],"sampling_params":{"max_new_tokens":8}}`)
	f("stream", "/generate", `{"text":"Hi","stream":true,"sampling_params":{"max_new_tokens":8}}`)
	f("chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}],"max_tokens":8}`)
	f("completions", "/v1/completions", `{"prompt":"hello","max_tokens":8}`)
	f("completions of a list", "/v1/completions", `{"prompt":["hello","you"],"max_tokens":8}`)
}
