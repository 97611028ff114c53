package sglang

import (
	"bytes"
	"net/http"
	"strconv"
)

// Failure is a failure that an engine wrote into a payload, which may have come
// with status 200.
type Failure struct {
	Status  int    // 400-599, to answer with
	Body    []byte // the JSON to answer with; a copy
	Message string // the engine's words; they may hold the client's rid
	Aborted bool   // an abort without a status: somebody's /abort_request
}

// The texts of aborts that carry no message of the engine.
const (
	abortedMessage = `"The request was aborted on the engine."`
	abortedOpenAI  = `{"object":"error","message":` + abortedMessage + `,"type":"ServiceUnavailable","param":null,"code":503}`
)

// EventFailure reads the failure in one event's payload of any endpoint: an
// {"error":…} frame, a flat {"object":"error",…} frame, a /generate event whose
// finish_reason is an abort, an OpenAI chunk with such a choice. It reports false
// for everything else, payloads that are not JSON included.
//
// Status is the frame's code or status_code when that lies in 400-599. A frame
// without one is a 400: whatever it complains of, a retry would meet it again. An
// abort whose status is null or absent is Aborted with 503; one whose status is
// no error status is a 500.
func EventFailure(data []byte) (*Failure, bool) { return readFailure(data) }

// BodyFailure reads the failure in a whole JSON body: what EventFailure reads, in
// an object or in the items of a batch. The first failing item counts, but an
// Aborted one only when no other failed.
func BodyFailure(body []byte) (*Failure, bool) { return readFailure(body) }

func readFailure(data []byte) (*Failure, bool) {
	// Nearly every payload ends here; the walk tells the few apart whose text or
	// tokens have these words. The needles leave out the front of "error" and
	// "abort", because a search stops at each byte that may start a match, and
	// quotes are everywhere in JSON.
	if !bytes.Contains(data, []byte(`rror"`)) && !bytes.Contains(data, []byte(`bort"`)) {
		return nil, false
	}
	var first *Failure
	add := func(f *Failure) {
		if f != nil && (first == nil || first.Aborted && !f.Aborted) {
			first = f
		}
	}
	w := newWalk(data)
	err := w.document(func() error {
		if w.kind() != '[' {
			return w.answerFailure(data, add)
		}
		return w.array(func(int) error { return w.answerFailure(nil, add) })
	})
	if err != nil || first == nil {
		return nil, false
	}
	return first, true
}

// answerFailure reads one object. payload is the whole payload when the object
// is all of it, and nil for an item of a batch, which cannot be an error frame.
func (w walk) answerFailure(payload []byte, add func(*Failure)) error {
	var top frame
	var nested *frame
	err := w.object(func(name []byte) (err error) {
		switch string(name) {
		case "error":
			nested, err = w.errorMember()
		case "meta_info":
			err = w.finishReason(add)
		case "choices":
			err = w.array(func(int) error { return w.choiceFailure(add) })
		default:
			err = w.frameMember(&top, name)
		}
		return err
	})
	switch {
	case err != nil || payload == nil:
	case nested != nil:
		add(nested.failure(payload))
	case string(top.object.raw) == `"error"`:
		add(top.failure(payload))
	}
	return err
}

// frame is what counts in an error frame or in the finish_reason of an abort.
type frame struct {
	object, kind, message, code, statusCode span
}

func (w walk) frameMember(f *frame, name []byte) (err error) {
	switch string(name) {
	case "object":
		f.object, err = w.value()
	case "type":
		f.kind, err = w.value()
	case "message":
		f.message, err = w.value()
	case "code":
		f.code, err = w.value()
	case "status_code":
		f.statusCode, err = w.value()
	}
	return err
}

// errorMember reads the value of "error": an object, or a bare message. null is
// how some answers say that there is none.
func (w walk) errorMember() (*frame, error) {
	switch w.kind() {
	case 'n':
		return nil, nil
	case '{':
		var f frame
		err := w.object(func(name []byte) error { return w.frameMember(&f, name) })
		return &f, err
	default:
		message, err := w.value()
		return &frame{message: message}, err
	}
}

func (w walk) finishReason(add func(*Failure)) error {
	return w.object(func(name []byte) error {
		if string(name) != "finish_reason" {
			return nil
		}
		var f frame
		err := w.object(func(name []byte) error { return w.frameMember(&f, name) })
		if err == nil && string(f.kind.raw) == `"abort"` {
			add(f.abort())
		}
		return err
	})
}

func (w walk) choiceFailure(add func(*Failure)) error {
	return w.object(func(name []byte) error {
		if string(name) != "finish_reason" {
			return nil
		}
		reason, err := w.value()
		if err == nil && string(reason.raw) == `"abort"` {
			add(&Failure{Status: http.StatusServiceUnavailable, Body: []byte(abortedOpenAI), Message: text([]byte(abortedMessage)), Aborted: true})
		}
		return err
	})
}

func (f *frame) failure(payload []byte) *Failure {
	status := http.StatusBadRequest
	for _, code := range []span{f.code, f.statusCode} {
		if n, ok := errorStatus(code.raw); ok {
			status = n
			break
		}
	}
	return &Failure{Status: status, Body: bytes.Clone(bytes.TrimSpace(payload)), Message: text(f.message.raw)}
}

func (f *frame) abort() *Failure {
	message := f.message.raw
	if len(message) == 0 {
		message = []byte(abortedMessage)
	}
	body := append([]byte(`{"error":{"message":`), message...)
	failure := &Failure{Body: append(body, "}}"...), Message: text(message)}
	if len(f.statusCode.raw) == 0 || string(f.statusCode.raw) == "null" {
		failure.Status, failure.Aborted = http.StatusServiceUnavailable, true
		return failure
	}
	status, ok := errorStatus(f.statusCode.raw)
	if !ok {
		status = http.StatusInternalServerError
	}
	failure.Status = status
	return failure
}

// errorStatus reads a number or a numeric string that is an HTTP error status.
func errorStatus(raw []byte) (int, bool) {
	if s, ok := unquote(raw); ok {
		raw = s
	}
	n, err := strconv.Atoi(string(raw))
	return n, err == nil && n >= 400 && n <= 599
}

// text is the text of a raw JSON string, or "".
func text(raw []byte) string {
	s, _ := unquote(raw)
	return string(s)
}
