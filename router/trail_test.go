package router

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// trailing is a router whose workers are told later, and which counts the requests
// that it makes of them.
type trailing struct {
	*rig
	workers []*pd.Worker
	sent    atomic.Int32
}

func startTrailing(t *testing.T) *trailing {
	t.Helper()
	direct := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(direct.CloseIdleConnections)
	r, trail := &trailing{}, NewTrail()
	r.rig = start(t, Config{
		Regular: true, Trail: trail, Workers: func() []*pd.Worker { return r.workers },
		Transport: trail.Transport(transportFunc(func(req *http.Request) (*http.Response, error) {
			if r.sent.Add(1) > 100 {
				return nil, errors.New("it goes round")
			}
			return direct.RoundTrip(req)
		})),
	})
	return r
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestARequestThatComesBackGoesNoFurther(t *testing.T) {
	asked := func(one, two *trailing, path string) {
		t.Helper()
		one.workers = []*pd.Worker{{ID: "w", Role: pd.Regular, URL: "http://" + two.addr}}
		two.workers = []*pd.Worker{{ID: "w", Role: pd.Regular, URL: "http://" + one.addr}}
		resp, _ := one.do("GET", path, "")
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.EqualValues(t, 1, one.sent.Load())
		assert.EqualValues(t, 1, two.sent.Load(), "its own answer is that nobody has answered it")
	}
	for _, path := range []string{"/server_info", "/model_info", "/v1/models"} {
		self := startTrailing(t)
		asked(self, self, path)
		asked(startTrailing(t), startTrailing(t), path)
	}
}

func TestWhatAReturnedRequestIsTold(t *testing.T) {
	trail := NewTrail()
	r := start(t, Config{Trail: trail})
	resp, _ := r.do("GET", "/health", "", "Via", trail.name)
	assert.Equal(t, http.StatusLoopDetected, resp.StatusCode)
	assert.Equal(t, "loop_detected", resp.Header.Get(headerError))

	resp, _ = r.do("GET", "/health", "", "Via", "1.1 "+NewTrail().name+", 1.1 nginx")
	assert.Equal(t, http.StatusOK, resp.StatusCode, "another router is no loop")
}

func TestATrailKeepsTheVia(t *testing.T) {
	var got []string
	trail := NewTrail()
	rt := trail.Transport(transportFunc(func(req *http.Request) (*http.Response, error) {
		got = req.Header["Via"]
		return nil, io.EOF
	}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Via", "1.1 nginx")
	_, err = rt.RoundTrip(req)
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, []string{"1.1 nginx", trail.name}, got)
	assert.Equal(t, []string{"1.1 nginx"}, req.Header["Via"], "the request is its caller's")
}
