package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// object is a JSON object.
type object = map[string]any

// The three endpoints.
const (
	generatePath    = "/generate"
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// call is a request to one of the endpoints.
type call struct {
	name, path string
	body       object
}

// with is the call with more fields in its body.
func (c call) with(more object) call {
	body := object{}
	for _, fields := range []object{c.body, more} {
		maps.Copy(body, fields)
	}
	return call{c.name, c.path, body}
}

// streamed is the call as a stream.
func (c call) streamed() call {
	c = c.with(object{"stream": true})
	c.name += " streamed"
	return c
}

func (c call) json() string {
	b, err := json.Marshal(c.body)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// generateCall, chatCall and completionsCall ask for n tokens, no fewer.
func generateCall(n int) call {
	return call{"generate", generatePath, object{"text": "Once upon a time", "sampling_params": object{"max_new_tokens": n, "ignore_eos": true}}}
}

func chatCall(n int) call {
	return call{"chat", chatPath, object{
		"model": "tiny", "messages": []object{{"role": "user", "content": "Tell me"}}, "max_tokens": n, "ignore_eos": true,
	}}
}

func completionsCall(n int) call {
	return call{"completions", completionsPath, object{"model": "tiny", "prompt": "Once upon", "max_tokens": n, "ignore_eos": true}}
}

// calls are all endpoints, plain and streamed.
func calls(n int) []call {
	var all []call
	for _, c := range []call{generateCall(n), chatCall(n), completionsCall(n)} {
		all = append(all, c, c.streamed())
	}
	return all
}

// reply is a whole answer. err is why its body ended before its time.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// events are the data of the answer's events.
func (r reply) events() (all []string) {
	for frame := range strings.SplitSeq(strings.ReplaceAll(r.body, "\r\n", "\n"), "\n\n") {
		if data, ok := strings.CutPrefix(frame, "data: "); ok {
			all = append(all, data)
		}
	}
	return all
}

func decoded[T any](t *testing.T, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), "%.500s", text)
	return v
}

// send sends a request and leaves the answer's body to the caller. header lists
// names and values in turn.
func (s *stack) send(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return s.client.Do(req)
}

// do sends a request and reads the whole answer.
func (s *stack) do(method, path, body string, header ...string) reply {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	resp, err := s.send(ctx, method, path, body, header...)
	require.NoError(s.t, err)
	return whole(resp)
}

func whole(resp *http.Response) reply {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body), err}
}

// post makes a call and reads the whole answer.
func (s *stack) post(c call, header ...string) reply {
	s.t.Helper()
	return s.do(http.MethodPost, c.path, c.json(), header...)
}

// ok makes a call that must succeed.
func (s *stack) ok(c call) reply {
	s.t.Helper()
	r := s.post(c)
	require.Equal(s.t, http.StatusOK, r.status, "%.500s", r.body)
	require.NoError(s.t, r.err)
	return r
}

// pending is a call under way, whose client can leave.
type pending struct {
	leave  context.CancelFunc
	answer chan reply // err alone is set when there was no answer
}

// start begins a call.
func (s *stack) start(c call, header ...string) *pending {
	ctx, cancel := context.WithCancel(s.t.Context())
	p := &pending{leave: cancel, answer: make(chan reply, 1)}
	s.t.Cleanup(cancel)
	go func() {
		resp, err := s.send(ctx, http.MethodPost, c.path, c.json(), header...)
		if err != nil {
			p.answer <- reply{err: err}
			return
		}
		p.answer <- whole(resp)
	}()
	return p
}

// wait returns the answer.
func (p *pending) wait(t *testing.T) reply {
	t.Helper()
	return within(t, p.answer, "the answer")
}

// listener reads a stream event by event.
type listener struct {
	t      *testing.T
	resp   *http.Response
	reader *bufio.Reader
	leave  context.CancelFunc
}

// listen opens a stream, which must be one.
func (s *stack) listen(c call, header ...string) *listener {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	resp, err := s.send(ctx, http.MethodPost, c.path, c.json(), header...)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	require.Contains(s.t, resp.Header.Get("Content-Type"), "text/event-stream")
	return &listener{s.t, resp, bufio.NewReader(resp.Body), cancel}
}

// next is the next event as it came, framing included.
func (l *listener) next() string {
	l.t.Helper()
	got := make(chan string, 1)
	go func() {
		var event []byte
		for !bytes.HasSuffix(event, []byte("\n\n")) && !bytes.HasSuffix(event, []byte("\r\n\r\n")) {
			line, err := l.reader.ReadBytes('\n')
			event = append(event, line...)
			if err != nil {
				break
			}
		}
		got <- string(event)
	}()
	return within(l.t, got, "an event")
}

// rest is what is left of the stream, and how it ended.
func (l *listener) rest() reply {
	body, err := io.ReadAll(l.reader)
	return reply{l.resp.StatusCode, l.resp.Header, string(body), err}
}

// within fails the test when c does not deliver in time.
func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "timeout", "waiting for %s", what)
		panic("unreachable")
	}
}

// arrived waits for n generation requests in all.
func arrived(t *testing.T, e *simengine.Engine, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, e.Wait(ctx, n), "%d requests reach %s", n, e.ID())
}

// generations are the records of generation requests.
func generations(e *simengine.Engine) (all []simengine.Record) {
	for _, r := range e.Records() {
		if r.Path == generatePath || strings.HasSuffix(r.Path, "completions") {
			all = append(all, r)
		}
	}
	return all
}

// aborts are the bodies of the abort requests.
func aborts(e *simengine.Engine) (bodies []string) {
	for _, r := range e.Records() {
		if r.Path == "/abort_request" {
			bodies = append(bodies, string(r.Body))
		}
	}
	return bodies
}

// told waits for an engine to have been told to abort a rid.
func (s *stack) told(e *simengine.Engine, rid string) {
	s.t.Helper()
	s.eventually(func() bool {
		return slices.ContainsFunc(aborts(e), func(body string) bool { return strings.Contains(body, `"`+rid+`"`) })
	}, "%s is told to abort %s", e.ID(), rid)
}

// over waits for generation i to be over in the engine, and requires that it was
// soon after the given time.
func over(t *testing.T, e *simengine.Engine, i int, since time.Time) simengine.Record {
	t.Helper()
	require.Eventually(t, func() bool {
		all := generations(e)
		return len(all) > i && !all[i].Ended.IsZero()
	}, patience, 2*time.Millisecond, "request %d of %s is over", i, e.ID())
	r := generations(e)[i]
	require.Less(t, r.Ended.Sub(since), soon, "%s: request %d", e.ID(), i)
	return r
}

// freed is over, by an abort.
func freed(t *testing.T, e *simengine.Engine, i int, since time.Time) simengine.Record {
	t.Helper()
	r := over(t, e, i, since)
	require.False(t, r.AbortedAt.IsZero(), "%s: request %d was aborted, not %q", e.ID(), i, r.End)
	return r
}
