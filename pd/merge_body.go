package pd

import (
	"errors"
	"io"
	"net/http"

	"github.com/tandem-pd/tandem/pd/sse"
)

// streamRead is how much of a sample's stream is read at once, in bytes.
const streamRead = 16 << 10

// mergedStream is the Body of a streamed fan-out. Each sample's goroutine reads
// one stream, rewrites its events and hands them over one by one, so that a slow
// client slows every sample down and each holds one finished event at most.
type mergedStream struct {
	*fan
	merge   *streamMerge
	commits chan *Response // room for one: only the first counts
	events  chan []byte    // unbuffered

	rest []byte // of the event that is being read; Read's own, like err
	err  error  // what follows rest, once the samples have ended
}

func newMergedStream(f *fan) *mergedStream {
	return &mergedStream{
		fan: f, merge: newStreamMerge(newMerging(f.req, len(f.samples))),
		commits: make(chan *Response, 1), events: make(chan []byte),
	}
}

// open starts the samples and returns when the first has committed or failed.
func (s *mergedStream) open() (*Response, error) {
	s.start(s.sample)
	var first *Response
	select {
	case first = <-s.commits:
	case <-s.ctx.Done():
	}
	if first == nil || s.failed() != nil { // a failure known by now is still the attempt's
		s.fail(cancelCause(s.ctx)) // counts when no sample has failed
		<-s.ended
		return nil, s.failed()
	}
	return &Response{Status: http.StatusOK, Header: first.Header, Length: -1, Stream: true, Body: s}, nil
}

// sample runs sample j from its dispatch to the end of its stream.
func (s *mergedStream) sample(j int) error {
	resp, err := s.exchange(j)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	select {
	case s.commits <- resp:
	default:
	}
	return s.pump(j, resp.Body)
}

// pump hands over the events of sample j until its stream has ended. An event
// that cannot be merged fails the sample, unless it is the rest of a stream that
// was cut: then its sample says why right behind it, and that counts.
func (s *mergedStream) pump(j int, body io.Reader) error {
	framer := sse.Framer{Max: s.o.MaxEvent}
	var bad error
	told := false // the engine has ended the sample with an error event of its own
	emit := func(event []byte) error {
		if told {
			return toldError{sampleFailed()}
		}
		out, failed, err := s.merge.take(j, event)
		switch {
		case bad != nil && !failed:
			return bad
		case err != nil:
			bad = broken("bad_event", "the engine sent an event that cannot be merged", err)
		case out != nil:
			told = failed
			return s.send(out)
		}
		return nil
	}
	buf := make([]byte, streamRead)
	for {
		n, readErr := body.Read(buf)
		err := framer.Push(buf[:n], emit)
		if readErr == io.EOF && err == nil && len(framer.Pending()) > 0 {
			// The engine's last event lacks its end, which it needs among others.
			err = emit(append(framer.Pending(), "\n\n"...))
		}
		switch {
		case err != nil:
			return s.pushError(err)
		case readErr == io.EOF && told:
			return toldError{sampleFailed()}
		case readErr == io.EOF:
			return bad
		case readErr != nil:
			return toldError{readErr}
		}
	}
}

// sampleFailed is the failure of a sample whose engine said so in the midst of
// its stream and then ended it well.
func sampleFailed() *Error {
	return &Error{
		Stage: StageDecode, Kind: Failed, Status: http.StatusBadGateway,
		Code: "sample_failed", Message: "the engine ended a sample with an error",
	}
}

func (s *mergedStream) pushError(err error) error {
	if !errors.Is(err, sse.ErrTooLong) {
		return err
	}
	if s.o.Hooks.Bound != nil {
		s.o.Hooks.Bound("event")
	}
	return broken("event_too_large", "the engine sent an event that is too large", err)
}

// send hands an event over. Once ctx is over nothing is: every sample then says
// so, and end says it once.
func (s *mergedStream) send(event []byte) error {
	if gone := cancelCause(s.ctx); gone != nil {
		return gone
	}
	select {
	case s.events <- event:
		return nil
	case <-s.ctx.Done():
		return cancelCause(s.ctx)
	}
}

// Read returns the samples' events as they come, then the end that they share.
// The error of a sample that failed follows what the others had handed over.
func (s *mergedStream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		select {
		case s.rest = <-s.events:
		case <-s.ended:
			s.rest, s.err = s.end()
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// end is the last bytes of the stream and the error behind them. A client that
// no sample has told of its failure is told here.
func (s *mergedStream) end() ([]byte, error) {
	s.cancel()
	s.mu.Lock()
	failure, told := s.failure, s.told
	s.mu.Unlock()
	switch {
	case failure == nil:
	case told, failure.Kind == Cancelled:
		return nil, failure
	default:
		return failure.Event(s.req.Endpoint), failure
	}
	tail, err := s.merge.tail()
	if err != nil {
		failure = broken("bad_event", "the engine sent usage that cannot be merged", err)
		return failure.Event(s.req.Endpoint), failure
	}
	return tail, io.EOF
}

// Close ends every sample and waits for them.
func (s *mergedStream) Close() error {
	s.fail(ErrCancelled(StageClient))
	<-s.ended
	return nil
}
