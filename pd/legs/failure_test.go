package legs

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// legOf is a leg on a worker of the role, as far as failures are concerned.
func legOf(t *testing.T, role pd.Role) *Leg {
	l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(&pd.Worker{ID: "w-0", Role: role, URL: "http://h:899"}), nil, new(ends).end)
	t.Cleanup(func() { l.End(pd.Unused, nil) })
	return l
}

func TestTheStatusOfARefusalSaysWhatItIs(t *testing.T) {
	f := func(kind pd.Kind, statuses ...int) {
		for _, status := range statuses {
			e := legOf(t, pd.Decode).Refused(status)
			assert.Equal(t, kind, e.Kind, status)
			assert.Equal(t, pd.Error{Stage: pd.StageDecode, Worker: "w-0", Kind: kind, Status: status, Code: "decode_error"}, *e)
		}
	}
	f(pd.Overload, 408, 429, 503)
	f(pd.Refused, 400, 401, 404, 409, 413, 422, 499)
	f(pd.Failed, 500, 501, 502, 504, 599)
}

func TestRefusal(t *testing.T) {
	refusal := func(status int, body io.Reader) (*pd.Error, *Failure) {
		resp := &http.Response{StatusCode: status, Header: http.Header{
			"Content-Type": {"application/json"}, "Retry-After": {"3"}, "X-Engine": {"e"}, "Connection": {"close"},
		}, Body: io.NopCloser(body)}
		return legOf(t, pd.Regular).Refusal(resp, func(words []byte) []byte { return HideAddr(words, "h:899", "w-0") })
	}
	t.Run("its words pass without addresses", func(t *testing.T) {
		e, fail := refusal(429, strings.NewReader(`{"at":"h:899"}`))
		require.Nil(t, fail)
		assert.Equal(t, `{"at":"w-0"}`, string(e.Body))
		assert.Equal(t, [3]string{"application/json", "3", ""}, [3]string{e.ContentType, e.RetryAfter, e.Message})
		assert.Equal(t, "e", e.Header.Get("X-Engine"))
		assert.NotContains(t, e.Header, "Connection")
		assert.Equal(t, pd.Overload, e.Kind)
	})
	t.Run("another status is a broken answer, and is not read", func(t *testing.T) {
		for _, status := range []int{101, 199, 301, 307, 399, 600} {
			e, fail := refusal(status, iotest.ErrReader(io.ErrNoProgress))
			require.Nil(t, e)
			assert.Equal(t, [2]any{pd.Broken, pd.Fault}, [2]any{fail.Err.Kind, fail.Outcome})
			assert.Contains(t, fail.Err.Message, "regular worker w-0 sent an answer with status ")
		}
	})
	t.Run("one that breaks off is lost", func(t *testing.T) {
		e, fail := refusal(400, iotest.ErrReader(io.ErrUnexpectedEOF))
		require.Nil(t, e)
		assert.Equal(t, pd.Lost, fail.Err.Kind)
	})
	t.Run("one that is too large is broken", func(t *testing.T) {
		e, fail := refusal(400, strings.NewReader(strings.Repeat("x", MaxErrorBody+1)))
		require.Nil(t, e)
		assert.Equal(t, pd.Broken, fail.Err.Kind)
	})
}

func TestHideAddr(t *testing.T) {
	f := func(words, want string) {
		t.Helper()
		came := []byte(words)
		assert.Equal(t, want, string(HideAddr(came, "h:899", "p-0")))
		assert.Equal(t, words, string(came), "the words are not changed")
	}
	f("", "")
	f("nothing", "nothing")
	f("h:899", "p-0")
	f("lost (h:899), lost h:899/x", "lost (p-0), lost p-0/x")
	f("h:8998 is another, h:899 is not", "h:8998 is another, p-0 is not")
	f("h:8998", "h:8998")
	assert.Equal(t, "h:899", string(HideAddr([]byte("h:899"), "", "p-0")), "no address stands nowhere")
}
