package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

func TestF31ARefusalIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	f := func(role pd.Role, c call, status int, body string) {
		t.Run(fmt.Sprintf("%s %s %d", role, c.name, status), func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: retrying(5, nil)})
			refusing, other, id := s.p, s.d, pd.WorkerID("prefill-0")
			if role == pd.Decode {
				refusing, other, id = s.d, s.p, "decode-0"
			}
			refusing.SetFault(onceAt(t.Context(), other, simengine.Fault{
				Status: status, Body: []byte(body), Header: http.Header{"X-Engine": {"a", "b"}},
			}))
			r := s.post(c)
			assert.Equal(t, status, r.status)
			assert.Equal(t, body, r.body)
			assert.Equal(t, []string{"a", "b"}, r.header.Values("X-Engine"))
			kind := "application/json"
			if body[0] != '{' {
				kind = "text/plain; charset=utf-8"
			}
			assert.Equal(t, kind, r.header.Get("Content-Type"))
			s.idle()
			assert.Len(t, generations(refusing), 1, "one call")
			assert.Equal(t, []pd.Outcome{pd.ClientFlaw}, s.outcomes(2)[id], "nobody's fault")
		})
	}
	const notFound = `{"error":{"message":"model x not found", "n":12345678901234567890}}`
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, c := range calls(4) {
			f(role, c, 404, notFound)
		}
		f(role, generateCall(4), 400, "no JSON at all")
		f(role, generateCall(4), 401, `{"error":"Unauthorized"}`)
		f(role, generateCall(4), 422, `{"detail":[]}`)
	}
}

func TestF32WhoCannotBeReachedIsNamed(t *testing.T) {
	t.Parallel()
	f := func(name string, role pd.Role, prepare func(s *stack, e *simengine.Engine), status int, code string, attempts int, says ...string) {
		for _, c := range calls(4) {
			t.Run(fmt.Sprintf("%s %s %s", role, name, c.name), func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{orchestrator: func(o *pd.Orchestrator) {
					o.Retry.MaxAttempts = 5 // though nobody else is there
					o.Upstream.Deadlines = pd.Deadlines{Request: 2 * time.Second, FirstEvent: 2 * time.Second}
				}})
				e := s.p
				if role == pd.Decode {
					e = s.d
				}
				prepare(s, e)
				r := s.post(c)
				assert.Equal(t, status, r.status, r.body)
				assert.Equal(t, code, r.header.Get("X-Tandem-Error"))
				assert.Equal(t, code, r.header.Get("X-SMG-Error-Code"))
				assert.Equal(t, status == 503, r.header.Get("Retry-After") != "")
				assert.Equal(t, attempts, s.report(0).Attempts)
				assert.Equal(t, "application/json", r.header.Get("Content-Type"))
				failure := decoded[struct {
					Error struct{ Message, Type string }
				}](t, r.body).Error
				for _, word := range says {
					assert.Contains(t, failure.Message, word)
				}
				for _, engine := range s.engines() {
					assert.NotContains(t, r.body, strings.TrimPrefix(engine.URL(), "http://"))
				}
			})
		}
	}
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		name := role.String()
		f("refuses the connection", role, (*stack).kill, 503, name+"_unavailable", 1, name+"-0")
		f("closes without a byte", role, func(_ *stack, e *simengine.Engine) {
			e.SetFault(always(simengine.Fault{Reset: true}))
		}, 502, name+"_connection_lost", 2, name+"-0")
	}
	f("says nothing", pd.Prefill, func(s *stack, e *simengine.Engine) {
		s.d.SetFault(always(simengine.Fault{Hang: true}))
		e.SetFault(always(simengine.Fault{Hang: true}))
	}, 504, "prefill_timeout", 1, "prefill-0", "the answer")
}

func TestF32ADecodeThatSaysNothingIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: -1, scripts: []*script{readyPrefill(t)}, orchestrator: func(o *pd.Orchestrator) {
				o.Retry.MaxAttempts = 5
				o.Upstream.Deadlines = pd.Deadlines{Request: 2 * time.Second, FirstEvent: 500 * time.Millisecond}
			}})
			s.d.SetFault(always(simengine.Fault{Hang: true}))
			r := s.post(c)
			code, attempts := "decode_timeout", 1 // it may have run all the time
			if strings.HasSuffix(c.name, "streamed") {
				code, attempts = "decode_first_event_timeout", 2
			}
			assert.Equal(t, attempts, s.report(0).Attempts)
			assert.Equal(t, 504, r.status)
			assert.Equal(t, code, r.header.Get("X-Tandem-Error"))
			assert.Contains(t, r.body, "decode-0")
			s.told(s.d, generations(s.d)[0].Rids[0])
		})
	}
}

// An engine's words pass as they are, but for the addresses of the pair: those
// become the workers' ids.
func TestAnEnginesWordsShowNoAddress(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			api := func(e *simengine.Engine) string { return strings.TrimPrefix(e.URL(), "http://") }
			bootstrap := fmt.Sprintf("%s:%d", s.p.Host(), s.p.BootstrapPort())
			const words = `{"message":"request failed (bootstrap_addr: %s), I am %s, \u00e9 it was %s", "code":500}`
			s.d.SetFault(onceAt(t.Context(), s.p, simengine.Fault{
				Status: 500, Body: fmt.Appendf(nil, words, bootstrap, api(s.d), api(s.p)),
			}))
			r := s.post(c)
			assert.Equal(t, 500, r.status)
			assert.Equal(t, fmt.Sprintf(words, "prefill-0", "decode-0", "prefill-0"), r.body)
		})
	}
}

func TestF34ABodyThatIsNotJSONIsRefusedShortly(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	secret := "a prompt that nobody may see "
	f := func(name, body string, offset int) {
		for _, path := range []string{generatePath, chatPath, completionsPath} {
			t.Run(name+path, func(t *testing.T) {
				r := s.do(http.MethodPost, path, body)
				assert.Equal(t, 400, r.status)
				assert.Less(t, len(r.body), 1<<10)
				assert.NotContains(t, r.body, secret)
				failure := decoded[struct{ Error struct{ Message string } }](t, r.body).Error
				assert.Contains(t, failure.Message, fmt.Sprintf("byte %d", offset))
				assert.Equal(t, "invalid_json", r.header.Get("X-Tandem-Error"))
			})
		}
	}
	f("a brace and a word", `{bad`, 1)
	big := `{"text":"` + strings.Repeat(secret, 5<<20/len(secret)) + `"`
	f("five megabytes without an end", big, len(big))
	f("nothing", ``, 0)
	for _, e := range s.engines() {
		assert.Empty(t, e.Records(), "%s hears nothing", e.ID())
	}
}

func TestF35RequestsOnOneConnectionAreIndependent(t *testing.T) {
	t.Parallel()
	const clients, each = 8, 50
	s := newStack(t, setup{decodes: 2})
	var all errgroup.Group
	var asked [clients * each]call
	var answers [clients * each]reply
	for n := range clients {
		all.Go(func() error {
			// A client of its own has a connection of its own.
			own := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}}
			defer own.CloseIdleConnections()
			for i := n * each; i < (n+1)*each; i++ {
				asked[i] = differentCall(i)
				resp, err := own.Post(s.url+asked[i].path, "application/json", strings.NewReader(asked[i].json()))
				if err != nil {
					return err
				}
				answers[i] = whole(resp)
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for i, c := range asked {
		want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
		require.NoError(t, err)
		require.Equal(t, want[0].Text, textOf(t, c.path, answers[i])[0], "call %d", i)
	}
}

// differentCall is the i-th of many calls that differ in all they can.
func differentCall(i int) call {
	text := strings.Repeat("x", i*7%900) + fmt.Sprint(i)
	c := generateCall(3 + i%5).with(object{"text": text})
	if i%3 == 1 {
		c = completionsCall(3 + i%5).with(object{"prompt": text})
	}
	if i%2 == 1 {
		c = c.streamed()
	}
	return c
}
