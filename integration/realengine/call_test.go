//go:build realengine

package realengine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// request is a call to be made.
type request struct {
	url  string
	body cases.Body
}

func (r request) with(more cases.Body) request {
	r.body = r.body.With(more)
	return r
}

// call is one under way whose moments count. What it came to may be read when
// done is closed.
type call struct {
	first chan struct{} // closed at the first byte of the answer's body
	done  chan struct{} // closed at its end
	leave context.CancelFunc

	began, ended time.Time
	answer       cases.Answer
	err          error // also when the answer was cut short
}

// begin makes a call and does not wait for it.
func begin(t *testing.T, r request) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c := &call{first: make(chan struct{}), done: make(chan struct{}), leave: cancel, began: time.Now()}
	post := cases.NewRequest(t, ctx, r.url, r.body)
	go func() {
		defer cancel()
		defer close(c.done)
		c.answer, c.err = c.do(post)
		c.ended = time.Now()
	}()
	return c
}

func (c *call) do(post *http.Request) (answer cases.Answer, err error) {
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	answer.Status, answer.Header = response.StatusCode, response.Header
	var head [1]byte
	if _, err := io.ReadFull(response.Body, head[:]); err != nil {
		return answer, err
	}
	close(c.first)
	rest, err := io.ReadAll(response.Body)
	answer.Body = append(head[:], rest...)
	return answer, err
}

// awaitFirst waits for the first byte of the answer.
func (c *call) awaitFirst(t *testing.T) {
	t.Helper()
	select {
	case <-c.first:
	case <-c.done:
		require.Fail(t, "the call ended without a byte", "%v", c.err)
	}
}

// over reports whether the call is over.
func (c *call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// took is how long the call took; it waits for its end.
func (c *call) took() time.Duration {
	<-c.done
	return c.ended.Sub(c.began)
}

// status is that of the answer, or 0; it waits for its end.
func (c *call) status() int {
	<-c.done
	return c.answer.Status
}

// requireTokens requires an answer of n tokens.
func (c *call) requireTokens(t *testing.T, n int) []int {
	t.Helper()
	<-c.done
	require.NoError(t, c.err)
	var generated cases.Generated
	c.answer.Into(t, &generated)
	require.Len(t, generated.OutputIDs, n)
	return generated.OutputIDs
}

// requireStream requires a stream of n tokens that came to its end.
func (c *call) requireStream(t *testing.T, n int) {
	t.Helper()
	<-c.done
	require.NoError(t, c.err)
	events := cases.EventsAs[cases.Generated](t, c.answer)
	require.Len(t, events[len(events)-1].OutputIDs, n)
}

// requireCut requires a stream that ended with an error and in no other way.
func (c *call) requireCut(t *testing.T) {
	t.Helper()
	<-c.done
	require.Error(t, c.err, "the stream looks complete")
	require.Equal(t, http.StatusOK, c.answer.Status)
	assert.NotContains(t, string(c.answer.Body), "[DONE]")
	frames := bytes.Split(bytes.TrimSpace(c.answer.Body), []byte("\n\n"))
	data, ok := bytes.CutPrefix(frames[len(frames)-1], []byte("data: "))
	require.True(t, ok)
	requireErrorObject(t, data)
}

// requireError requires an error of Tandem's own instead of an answer, with one
// of some statuses.
func (c *call) requireError(t *testing.T, statuses ...int) {
	t.Helper()
	<-c.done
	require.NoError(t, c.err)
	require.Contains(t, statuses, c.answer.Status, "%.500s", c.answer.Body)
	assert.NotEmpty(t, c.answer.Header.Get("X-Tandem-Error"))
	requireErrorObject(t, c.answer.Body)
}

// requireErrorObject requires JSON of an error that has a message.
func requireErrorObject(t *testing.T, text []byte) {
	t.Helper()
	var body struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	require.NoError(t, json.Unmarshal(text, &body), "%.500s", text)
	assert.NotEmpty(t, body.Message+body.Error.Message, "%.500s", text)
}
