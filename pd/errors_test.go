package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestErrorSaysWhatFailedOnWhomAndWhy(t *testing.T) {
	e := &Error{Stage: StageDecode, Worker: "decode-1", Kind: Lost, Status: 502, Code: "decode_connection_lost", Message: "for the client", Err: io.ErrUnexpectedEOF}
	assert.Equal(t, "decode on decode-1: lost (502) decode_connection_lost: unexpected EOF", e.Error())
	assert.ErrorIs(t, e, io.ErrUnexpectedEOF)
	assert.Equal(t, "request: invalid", (&Error{Stage: StageRequest}).Error())
}

func TestErrorShowsNoBodyOfAnEngine(t *testing.T) {
	e := &Error{Stage: StagePrefill, Kind: Refused, Body: []byte(`{"prompt":"secret"}`), Message: "secret"}
	assert.NotContains(t, e.Error(), "secret")
}

func TestAsError(t *testing.T) {
	own := InvalidField("n", "n must be 1")
	assert.Same(t, own, AsError(own))
	assert.Same(t, own, AsError(fmt.Errorf("wrapped: %w", own)))
	foreign := AsError(context.DeadlineExceeded)
	assert.Equal(t, Internal, foreign.Kind)
	assert.Equal(t, 500, foreign.Status)
	assert.ErrorIs(t, foreign, context.DeadlineExceeded)
	assert.NotContains(t, foreign.Message, "deadline", "a foreign error's words are for logs")
}

func TestOwnErrors(t *testing.T) {
	for wait, want := range map[Wait]struct {
		kind          Kind
		code, message string
	}{
		WaitAnswer:     {Deadline, "decode_timeout", "the answer of decode worker d-1 did not come within 3s"},
		WaitFirstEvent: {Late, "decode_first_event_timeout", "the first event of decode worker d-1 did not come within 3s"},
		WaitNextEvent:  {Deadline, "decode_idle_timeout", "the next event of decode worker d-1 did not come within 3s"},
		WaitRefusal:    {Deadline, "decode_refusal_timeout", "the body of a refusal of decode worker d-1 did not come within 3s"},
	} {
		e := ErrDeadline(StageDecode, "d-1", wait, 3*time.Second)
		assert.Equal(t, want.kind, e.Kind, wait)
		assert.Equal(t, want.code, e.Code)
		assert.Equal(t, want.message, e.Message)
		assert.Equal(t, 504, e.Status)
	}

	gone := ErrCancelled(StageClient)
	assert.Equal(t, Cancelled, gone.Kind)
	assert.Equal(t, 499, gone.Status)
}

func TestNames(t *testing.T) {
	kinds := map[string]bool{}
	for k := Invalid; k <= Internal; k++ {
		kinds[k.String()] = true
	}
	assert.Len(t, kinds, int(Internal)+1, "each kind has a name of its own")
	assert.Equal(t, "unknown", Kind(200).String())

	outcomes := map[string]bool{}
	for o := Unused; o <= Echo; o++ {
		outcomes[o.String()] = true
	}
	assert.Len(t, outcomes, int(Echo)+1)
	assert.Equal(t, "unknown", Outcome(200).String())

	assert.Equal(t, StagePrefill, StageOf(Prefill))
	assert.Equal(t, StageDecode, StageOf(Decode))
	assert.Equal(t, "prefill decode", Prefill.String()+" "+Decode.String())
	for ep, want := range map[Endpoint][2]string{
		Generate: {"generate", "/generate"}, Chat: {"chat", "/v1/chat/completions"}, Completions: {"completions", "/v1/completions"},
	} {
		assert.Equal(t, want, [2]string{ep.String(), ep.Path()})
		assert.Equal(t, ep != Generate, ep.OpenAI())
	}
}

func TestWorkerAddr(t *testing.T) {
	for url, want := range map[string]string{
		"http://10.0.0.1:30000": "10.0.0.1:30000", "https://[::1]:1/x": "[::1]:1", "host:1": "host:1", "http://host": "host",
	} {
		assert.Equal(t, want, (&Worker{URL: url}).Addr())
	}
}

func TestResponseBodyEndsOnce(t *testing.T) {
	errBroken := errors.New("broken")
	for name, tt := range map[string]struct {
		use  func(b io.ReadCloser)
		want error
	}{
		"read to its end, then closed": {func(b io.ReadCloser) { _, _ = io.ReadAll(b); _ = b.Close() }, nil},
		"closed before its end":        {func(b io.ReadCloser) { _ = b.Close(); _ = b.Close(); _, _ = io.ReadAll(b) }, ErrCancelled(StageClient)},
		"broken":                       {func(b io.ReadCloser) { _, _ = io.ReadAll(b); _ = b.Close() }, errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			var ends []error
			src := io.MultiReader(&oneRead{"some"}, &endless{tt.want})
			b := &endBody{ReadCloser: io.NopCloser(src), end: func(err error) { ends = append(ends, err) }}
			tt.use(b)
			assert.Equal(t, []error{tt.want}, ends)
		})
	}
}

// oneRead gives its text once.
type oneRead struct{ text string }

func (r *oneRead) Read(p []byte) (int, error) {
	n := copy(p, r.text)
	r.text = r.text[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// endless ends with err, io.EOF for nil.
type endless struct{ err error }

func (r *endless) Read([]byte) (int, error) {
	if r.err == nil {
		return 0, io.EOF
	}
	return 0, r.err
}
