package health_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

func TestAWorkerJoinsWithItsFirstGoodProbe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": status(503)})
		f.is("prefill-0", pools.Ready, "")
		f.is("decode-0", pools.Starting, "health check: status 503")
		f.pass(100 * time.Second)
		f.is("decode-0", pools.Starting, "health check: status 503")

		asked := f.asks("decode-0")
		assert.Zero(t, asked[0], "the first probe is sent at once")
		waits(t, asked, seconds(1, 2, 4, 4.5, 4.5, 4.5)...)

		f.becomes("decode-0", ok)
		assert.LessOrEqual(t, f.until("decode-0", pools.Ready), 5*time.Second)
		f.is("decode-0", pools.Ready, "")
	})
}

func TestAStartingWorkerShowsWhyItDoesNotServe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": refusal})
		f.is("decode-0", pools.Starting, "refuses connections")
		f.becomes("decode-0", silence)
		f.pass(10 * time.Second)
		f.is("decode-0", pools.Starting, "health check: no answer within 5s")
	})
}

func TestAWorkerThatTakesTooLongIsDeadUntilItServes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": refusal})
		f.pass(30*time.Minute - 2*time.Second)
		f.is("decode-0", pools.Starting, "refuses connections")
		f.pass(3 * time.Second)
		f.is("decode-0", pools.Dead, "has not served for 30m0s")
		f.asks("decode-0")
		f.pass(time.Hour)
		f.is("decode-0", pools.Dead, "has not served for 30m0s")
		asked := f.asks("decode-0")
		assert.InDelta(t, 60, len(asked), 8, "probed each interval")

		f.becomes("decode-0", ok)
		assert.LessOrEqual(t, f.until("decode-0", pools.Ready), 67*time.Second)
		assert.Len(t, f.asks("decode-0"), 1, "one good probe is enough")
	})
}

func TestProbesAskForHealthWithTheWorkersKey(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		workers := pair()
		workers[1].APIKey = "secret"
		seen := make(map[string]*http.Request)
		var closed atomic.Int64
		see := func(req *http.Request) (*http.Response, error) {
			seen[req.URL.Host] = req
			return body(closing{endless{}, &closed})(req)
		}
		newFleet(t, health.Options{Path: "/ping"}, workers, map[string]reply{"prefill-0": see, "decode-0": see})
		for host, auth := range map[string][]string{"prefill-0": nil, "decode-0": {"Bearer secret"}} {
			require.Contains(t, seen, host)
			assert.Equal(t, "GET", seen[host].Method)
			assert.Equal(t, "/ping", seen[host].URL.Path)
			assert.Equal(t, auth, seen[host].Header["Authorization"])
		}
		assert.EqualValues(t, 2, closed.Load(), "bodies that were closed")
	})
}

func TestWhatIsAGoodProbe(t *testing.T) {
	moved := func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 307, Header: http.Header{"Location": {"http://elsewhere/health"}}, Body: http.NoBody}, nil
	}
	for _, c := range []struct {
		name  string
		reply reply
		why   string // empty for a good one
	}{
		{"200", ok, ""},
		{"204", status(204), ""},
		{"an engine that is well takes a second", after(1100*time.Millisecond, ok), ""},
		{"just in time", after(4900*time.Millisecond, ok), ""},
		{"a body without an end", body(endless{}), ""},
		{"late", after(5100*time.Millisecond, ok), "health check: no answer within 5s"},
		{"a redirect", moved, "health check: status 307"},
		{"404", status(404), "health check: status 404"},
		{"500", status(500), "health check: status 500"},
		{"a body that breaks", body(broken()), "health check: no usable answer"},
		{"no HTTP", failing(errors.New("malformed HTTP response")), "health check: no usable answer"},
		{"a panic", func(*http.Request) (*http.Response, error) { panic("oh") }, "health check: no usable answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": c.reply})
				f.pass(5500 * time.Millisecond)
				state := pools.Ready
				if c.why != "" {
					state = pools.Starting
				}
				f.is("decode-0", state, c.why)
				assert.Equal(t, c.why == "", f.probed["decode-0"][0] == nil)
				assert.Empty(t, f.asks("elsewhere"))
				if c.name == "a panic" {
					assert.Contains(t, f.told(), "panic oh true")
				}
			})
		})
	}
}

func TestAWorkerWhoseAddressCannotBeUsedNeverJoins(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		workers := pair()
		workers[1].URL = "http://a host"
		f := newFleet(t, health.Options{}, workers, nil)
		f.is("decode-0", pools.Starting, "health check: no usable answer")
	})
}

func TestFailuresInARowTakeAWorkerOut(t *testing.T) {
	for _, c := range []struct {
		reply reply
		why   string
	}{
		{status(503), "health check: status 503"},
		{silence, "health check: no answer within 5s"},
		{failing(dialError(timeout{})), "health check: takes no connection"},
		{failing(&net.DNSError{Err: "server misbehaving", IsTemporary: true}), "health check: no usable answer"},
		{failing(syscall.ECONNRESET), "health check: no usable answer"},
	} {
		t.Run(c.why, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, health.Options{}, four(), nil)
				f.becomes("decode-0", c.reply)
				f.asks("decode-0")
				took := f.until("decode-0", pools.Dead)
				assert.Len(t, f.asks("decode-0"), 3)
				assert.InDelta(t, 185, took.Seconds(), 25, "three intervals")
				f.is("decode-0", pools.Dead, c.why)
				f.is("decode-1", pools.Ready, "")
			})
		})
	}
}

// timeout is what a dialer says that has waited long enough.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestAGoodProbeEndsARowOfFailures(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		n := 0
		f.becomes("decode-0", func(req *http.Request) (*http.Response, error) {
			if n++; n%3 == 0 {
				return ok(req)
			}
			return status(503)(req)
		})
		for range 60 {
			f.pass(time.Minute)
			f.is("decode-0", pools.Ready, "")
		}
		assert.Greater(t, n, 40)
	})
}

func TestARefusedConnectionTakesAWorkerOutAtOnce(t *testing.T) {
	for _, c := range []struct {
		err error
		why string
	}{
		{dialError(syscall.ECONNREFUSED), "refuses connections"},
		{dialError(syscall.EHOSTUNREACH), "health check: no route"},
		{dialError(syscall.ENETUNREACH), "health check: no route"},
		{dialError(&net.DNSError{Err: "no such host", IsNotFound: true}), "health check: its name is not known"},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, health.Options{}, pair(), nil)
				f.becomes("decode-0", failing(c.err))
				f.asks("decode-0")
				assert.LessOrEqual(t, f.until("decode-0", pools.Dead), 67*time.Second)
				assert.Len(t, f.asks("decode-0"), 1)
				f.is("decode-0", pools.Dead, c.why)
			})
		})
	}
}

func TestWhatThisMachineCannotAskSaysNothingOfAWorker(t *testing.T) {
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		inBubble(t, func(t *testing.T) {
			exhausted := failing(dialError(err))
			f := newFleet(t, health.Options{}, pair(), map[string]reply{"prefill-0": exhausted})
			f.is("prefill-0", pools.Starting, "")
			f.becomes("prefill-0", ok)
			f.until("prefill-0", pools.Ready)
			for _, host := range []string{"prefill-0", "prefill-0:8998", "decode-0"} {
				f.becomes(host, exhausted)
			}
			f.pass(time.Hour)
			f.is("prefill-0", pools.Ready, "")
			f.is("decode-0", pools.Ready, "")
			assert.Equal(t, pools.ReachUp, f.set.Find("prefill-0").Reach())
		})
	}
}

func TestAWorkerThatIsOutIsProbedLessAndLess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		f.becomes("decode-0", refusal)
		f.until("decode-0", pools.Dead)
		f.pass(10 * time.Minute)
		waits(t, f.asks("decode-0")[1:], seconds(1, 2, 4, 8, 16, 32, 60, 60, 60)...)
		f.becomes("decode-0", status(503))
		f.pass(67 * time.Second)
		f.is("decode-0", pools.Dead, "health check: status 503")
	})
}

func TestSuccessesInARowBringAWorkerBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		f.becomes("decode-0", refusal)
		f.until("decode-0", pools.Dead)
		f.asks("decode-0")
		n := 0
		f.becomes("decode-0", func(req *http.Request) (*http.Response, error) {
			if n++; n == 2 {
				return status(503)(req)
			}
			return ok(req)
		})
		f.until("decode-0", pools.Ready)
		f.is("decode-0", pools.Ready, "")
		asked := f.asks("decode-0")
		require.Len(t, asked, 4, "well, 503, well, well")
		waits(t, asked, seconds(1, 2, 1)...)
	})
}

func TestWhileTokensFlowSilenceIsForgiven(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.becomes("decode-0", silence)
		f.tokens(60, 50*time.Second, "prefill-0", "decode-0")
		f.is("decode-0", pools.Ready, "")
		f.asks("decode-0")
		f.until("decode-0", pools.Dead) // once it is silent in both ways
		assert.Contains(t, []int{3, 4}, len(f.asks("decode-0")), "the last tokens may excuse one more")
	})
}

// An engine that is told to end finishes what it has, takes new work until it is
// killed, and says so at once.
func TestWhileTokensFlowABadAnswerIsNotForgiven(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.becomes("decode-0", status(503))
		f.tokens(60, 5*time.Second, "prefill-0", "decode-0")
		f.is("decode-0", pools.Dead, "health check: status 503")
	})
}

func TestAFailedProbeOfABusyWorkerIsForgiven(t *testing.T) {
	opt := health.Options{Interval: 10 * time.Second, Timeout: 30 * time.Second}
	for _, c := range []struct {
		name     string
		reply    reply
		forgiven bool
	}{
		{"silence", silence, true},
		{"a status, after a while", after(20*time.Second, status(503)), true},
		{"nobody there, after a while", after(20*time.Second, refusal), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, opt, four(), nil)
				f.becomes("decode-0", c.reply)
				f.asks("decode-0")
				f.tokens(40, 15*time.Second, "prefill-0", "decode-0")
				assert.NotEmpty(t, f.asks("decode-0"), "it was asked")
				assert.Equal(t, c.forgiven, f.state("decode-0") == pools.Ready)
			})
		})
	}
}

func TestTheLastWorkerOfARoleIsNotTakenOutForSilence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, append(names(pd.Prefill, 1), names(pd.Decode, 2)...), nil)
		f.becomes("decode-0", silence)
		f.becomes("decode-1", silence)
		f.pass(time.Hour)
		left := []pools.State{f.state("decode-0"), f.state("decode-1")}
		assert.ElementsMatch(t, []pools.State{pools.Ready, pools.Dead}, left, "one goes, one stays")
		last, other := pd.WorkerID("decode-0"), pd.WorkerID("decode-1")
		if f.state(other) == pools.Ready {
			last, other = other, last
		}
		assert.Equal(t, []string{fmt.Sprintf("kept %s: health check: no answer within 5s", last)}, f.told(), "told once")

		f.becomes(string(other), ok)
		f.until(other, pools.Ready)
		f.until(last, pools.Dead)
		assert.Empty(t, f.told(), "now there is another")
	})
}

func TestWhatTheLastWorkerOnceSaidIsForgottenWhenItIsWell(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		for range 2 {
			f.becomes("decode-0", status(503))
			f.pass(67 * time.Second)
			f.becomes("decode-0", ok)
			f.pass(67 * time.Second)
			f.becomes("decode-0", silence)
			f.pass(time.Hour)
			f.is("decode-0", pools.Ready, "")
			assert.Equal(t, []string{"kept decode-0: health check: no answer within 5s"}, f.told())
			f.becomes("decode-0", ok)
			f.pass(2 * time.Minute)
		}
	})
}

func TestTheLastWorkerOfARoleGoesForWhatItSays(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply reply
		why   string
		asks  int
	}{
		{"503", status(503), "health check: status 503", 3},
		{"refused", refusal, "refuses connections", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, health.Options{}, pair(), nil)
				f.becomes("decode-0", c.reply)
				f.asks("decode-0")
				f.until("decode-0", pools.Dead)
				f.is("decode-0", pools.Dead, c.why)
				assert.Len(t, f.asks("decode-0"), c.asks)
				assert.Empty(t, f.told())
			})
		})
	}
}

func TestDrainingWorkersAreProbedOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), map[string]reply{"decode-1": status(503)})
		require.True(t, f.set.Drain("decode-0"))
		require.True(t, f.set.Drain("decode-1"))
		f.becomes("decode-0", refusal)
		f.becomes("decode-1", ok)
		f.pass(67 * time.Second)
		f.is("decode-0", pools.Draining, "refuses connections")
		require.True(t, f.set.Resume("decode-0"))
		require.True(t, f.set.Resume("decode-1"))
		f.is("decode-0", pools.Dead, "refuses connections")
		f.is("decode-1", pools.Ready, "")
	})
}
