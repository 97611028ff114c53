package cases

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
)

// callTimeout bounds one call. It is far beyond what any case needs: engines on
// a busy machine stall for half a minute.
const callTimeout = 2 * time.Minute

// Body is a JSON object to be sent.
type Body map[string]any

// With returns a copy of b that has the fields of more too.
func (b Body) With(more Body) Body {
	merged := maps.Clone(b)
	maps.Copy(merged, more)
	return merged
}

// Answer is a whole HTTP answer.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Post sends a body, marshalled unless it is a string, and reads the whole
// answer, a stream too.
func Post(t *testing.T, url string, body any, header ...string) Answer {
	t.Helper()
	return call(t, NewRequest(t, t.Context(), url, body, header...))
}

// Get fetches a URL.
func Get(t *testing.T, url string) Answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return call(t, request)
}

// NewRequest makes a POST; header lists names and values in turn.
func NewRequest(t *testing.T, ctx context.Context, url string, body any, header ...string) *http.Request {
	t.Helper()
	text, ok := body.(string)
	if !ok {
		marshalled, err := json.Marshal(body)
		require.NoError(t, err)
		text = string(marshalled)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	return request
}

func call(t *testing.T, request *http.Request) Answer {
	t.Helper()
	answer, err := do(request)
	require.NoError(t, err, "status %d, and this much of the body: %.500s", answer.Status, answer.Body)
	return answer
}

func do(request *http.Request) (Answer, error) {
	client := http.Client{Timeout: callTimeout}
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{Status: response.StatusCode, Header: response.Header, Body: body}, err
}

// Pending is a call under way.
type Pending struct {
	done   chan struct{}
	answer Answer
	err    error
}

// Begin makes a call and does not wait for its answer.
func Begin(request *http.Request) *Pending {
	p := &Pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.answer, p.err = do(request)
	}()
	return p
}

// Answer waits for the call to end and requires it to have gone well.
func (p *Pending) Answer(t *testing.T) Answer {
	t.Helper()
	<-p.done
	require.NoError(t, p.err)
	return p.answer
}

// Wait waits for the call to end, however it does.
func (p *Pending) Wait() { <-p.done }

// Into requires a 200 and decodes its JSON.
func (a Answer) Into(t *testing.T, value any) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.Status, "%.500s", a.Body)
	require.NoError(t, json.Unmarshal(a.Body, value), "%.500s", a.Body)
}

// Events requires a 200 stream that ends with exactly one [DONE], and returns
// the data of the events before it.
func (a Answer) Events(t *testing.T) [][]byte {
	t.Helper()
	require.Equal(t, http.StatusOK, a.Status, "%.500s", a.Body)
	require.Contains(t, a.Header.Get("Content-Type"), "text/event-stream")
	var events [][]byte
	for frame := range bytes.SplitSeq(bytes.TrimSuffix(a.Body, []byte("\n\n")), []byte("\n\n")) {
		data, ok := bytes.CutPrefix(frame, []byte("data: "))
		require.True(t, ok, "a frame without data: %.200q", frame)
		events = append(events, data)
	}
	require.NotEmpty(t, events)
	require.Equal(t, 1, bytes.Count(a.Body, []byte("data: [DONE]")), "%.2000s", a.Body)
	require.Equal(t, "[DONE]", string(events[len(events)-1]))
	return events[:len(events)-1]
}

// EventsAs decodes every event of a stream before its [DONE].
func EventsAs[T any](t *testing.T, a Answer) []T {
	t.Helper()
	var decoded []T
	for _, data := range a.Events(t) {
		var event T
		require.NoError(t, json.Unmarshal(data, &event), "%.500s", data)
		decoded = append(decoded, event)
	}
	return decoded
}
