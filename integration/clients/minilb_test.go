//go:build clients

package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// freeWithin is how soon the engines must be free of a call whose client has
// left; left alone they would work twice as long.
const freeWithin = 2 * time.Second

// pair is one prefill and one decode engine.
type pair struct{ prefill, decode *simengine.Engine }

func newPair(t *testing.T) pair {
	t.Helper()
	engine := func(role simengine.Role) *simengine.Engine {
		e, err := simengine.Start(simengine.Config{
			Role: role, HealthDelay: -1, HideDebug: true,
			Speed: simengine.Speed{PrefillDelay: 5 * time.Millisecond, TokenInterval: 5 * time.Millisecond},
		})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, e.Close()) })
		return e
	}
	return pair{engine(simengine.Prefill), engine(simengine.Decode)}
}

// renew starts both engines anew at their addresses, whatever a call has left
// in them, and with empty caches.
func (p pair) renew(t *testing.T) {
	t.Helper()
	require.NoError(t, p.prefill.Restart())
	require.NoError(t, p.decode.Restart())
}

func (p pair) free() bool {
	a, b := p.prefill.Loads(), p.decode.Loads()
	return a.Waiting+a.Running+a.Inflight+b.Waiting+b.Running == 0
}

// flags are the command line that mini_lb and Tandem have in common.
func (p pair) flags(port string) []string {
	return []string{
		"--mini-lb", "--pd-disaggregation",
		"--prefill", p.prefill.URL(), strconv.Itoa(p.prefill.BootstrapPort()), "--decode", p.decode.URL(),
		"--host", "127.0.0.1", "--port", port,
	}
}

// verdict is what a call made of a router: nil is right.
func verdict(t *testing.T, p pair, o *oracle, router string) (answer, error) {
	t.Helper()
	p.renew(t)
	url := router + o.call.path
	if o.call.outcome == freed {
		if err := leave(url, o.call.body, func() bool { return p.decode.Loads().Running > 0 }); err != nil {
			return answer{}, err
		}
		if !within(freeWithin, p.free) {
			return answer{}, fmt.Errorf("an engine is still at work %s after the client has left", freeWithin)
		}
		return answer{}, nil
	}
	a := ask(url, o.call.body)
	if o.call.outcome == refused {
		return a, checkRefusal(a)
	}
	return a, o.check(a)
}

// checkRefusal requires a 400 in JSON that names the reason in a place where
// clients look for it.
func checkRefusal(a answer) error {
	if a.status != 0 && a.status != http.StatusBadRequest {
		return fmt.Errorf("status %d instead of 400", a.status)
	}
	if a.err != nil {
		return a.err
	}
	var body struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil {
		return err
	}
	if !strings.Contains(body.Message+body.Error.Message, "longer than the model's context length") {
		return fmt.Errorf("no reason: %.200s", a.body)
	}
	return nil
}

func shownVerdict(err error) string {
	switch {
	case err == nil:
		return "right"
	case errors.Is(err, errHangs):
		return "hangs"
	default:
		return "wrong: " + strings.ReplaceAll(err.Error(), "|", `\|`)
	}
}

// TestCallsBesideMiniLB makes every call through mini_lb and through Tandem,
// started with the same command line over the same engines. Tandem must be
// right, and answer as mini_lb does wherever that is right too.
func TestCallsBesideMiniLB(t *testing.T) {
	p := newPair(t)
	start := func(name, ready, program string, args ...string) (*process, string) {
		port := freePort(t)
		router := run(t, name, program, append(args, p.flags(port)...)...)
		url := "http://127.0.0.1:" + port
		router.ready(t, url+ready)
		return router, url
	}
	_, miniLB := start("mini_lb", "/health", installed(t, "venv", "bin", "python"), "-m", "sglang_router.launch_router")
	router, tandem := start("tandem", "/readiness", tandem(t))

	table := []string{"| call | mini_lb | Tandem |", "|---|---|---|"}
	theirs := 0
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			o := &oracle{call: c}
			if c.outcome == answered {
				p.renew(t)
				var err error
				o, err = newOracle(c, p.prefill.URL())
				require.NoError(t, err)
			}
			other, otherErr := verdict(t, p, o, miniLB)
			got, err := verdict(t, p, o, tandem)
			table = append(table, fmt.Sprintf("| %s | %s | %s |", c.name, shownVerdict(otherErr), shownVerdict(err)))
			require.NoError(t, err, "%s%s", got.body, strings.Join(texts(got.events), "\n"))
			assert.NoError(t, p.prefill.Fatal())
			assert.NoError(t, p.decode.Fatal())
			if otherErr != nil || c.outcome == freed {
				return
			}
			theirs++
			requireSame(t, other, got)
		})
	}
	t.Logf("\n%s\n", strings.Join(table, "\n"))
	assert.Greater(t, theirs, 15, "the answers of mini_lb that Tandem's are held against")
	p.renew(t)
	router.interrupt(t)
}

func requireSame(t *testing.T, theirs, ours answer) {
	t.Helper()
	want, err := theirs.comparable()
	require.NoError(t, err)
	got, err := ours.comparable()
	require.NoError(t, err)
	assert.Equal(t, theirs.status, ours.status)
	assert.Equal(t, theirs.done, ours.done)
	assert.Equal(t, want, got)
}

func texts(events [][]byte) []string {
	var list []string
	for _, event := range events {
		list = append(list, string(event))
	}
	return list
}
