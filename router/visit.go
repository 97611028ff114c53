package router

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
)

// visit is one request, from its header to the end of its answer. The handler's
// goroutine owns it, then the one that writes the answer, which is the same
// connection's; only cut comes from elsewhere.
type visit struct {
	app   *App
	c     *fiber.Ctx // valid until the handler returns
	conn  *conn
	id    string
	name  string // of the endpoint, for the log
	shape shape
	start time.Time

	status int  // as sent, or 499
	broken bool // the answer was not sent whole

	ctx      context.Context
	cancel   context.CancelCauseFunc
	attended bool
	admitted bool // holds a place, see admission.go
	held     hold
	severed  atomic.Bool // ended by the shutdown
	handed   bool        // the answer's Close ends the visit
	once     sync.Once
}

// handler answers one request, or returns an error to be answered.
type handler func(*visit) error

// public makes a fiber handler: the request id, the error's shape, panics, the
// end of what was taken and the log line are the same for all endpoints.
func (a *App) public(name string, sh shape, h handler) fiber.Handler {
	return func(c *fiber.Ctx) error {
		v := a.newVisit(c, name, sh)
		v.run(h)
		v.c = nil // fiber uses it for other requests from here on
		if !v.handed {
			v.end()
		}
		return nil
	}
}

func (a *App) newVisit(c *fiber.Ctx, name string, sh shape) *visit {
	v := &visit{app: a, c: c, conn: connOf(c.Context().Conn()), name: name, shape: sh, start: time.Now()}
	for _, header := range a.cfg.RequestIDHeaders {
		if id := c.Get(header); id != "" {
			v.id = strings.Clone(id) // fiber reuses its memory
			break
		}
	}
	if v.id == "" {
		v.id = newID(name)
	}
	v.conn.linger.Store(c.Request().IsBodyStream()) // until it has been read
	v.label()
	return v
}

// label writes what every answer says: the request's id, and which pages may
// read it.
func (v *visit) label() {
	h := &v.c.Response().Header
	h.Set(headerRequestID, v.id)
	if forPages(v.c.Path()) {
		v.app.origins.allow(&v.c.Request().Header, h)
	}
}

func (v *visit) run(h handler) {
	defer func() {
		if value := recover(); value != nil {
			v.app.panicked(v.id, value)
			v.c.Response().Reset() // closes a body that was set already
			v.label()
			v.fail(errPanic())
		}
	}()
	if v.app.cfg.Trail.returned(&v.c.Request().Header) {
		v.fail(errLoop())
		return
	}
	if err := h(v); err != nil {
		v.fail(pd.AsError(err))
	}
}

// begin makes the visit's context, which ends when the client leaves; fiber's
// own never does. An error means that it has left already, or that the shutdown
// ends what is under way. It is called when the body has been read.
func (v *visit) begin() error {
	v.ctx, v.cancel = context.WithCancelCause(v.c.UserContext())
	leave := func() {
		defer v.app.recovered(v.id)
		v.cancel(nil)
	}
	if !v.conn.attend(leave) {
		return pd.ErrCancelled(pd.StageRequest)
	}
	v.attended = true
	a := v.app
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase.Load() == cutting {
		return errShutdown()
	}
	a.visits[v] = struct{}{}
	return nil
}

// end gives back what the visit holds and logs it, once.
func (v *visit) end() {
	v.once.Do(func() {
		if v.cancel != nil {
			v.cancel(nil)
		}
		if v.attended {
			v.conn.release()
			a := v.app
			a.mu.Lock()
			delete(a.visits, v)
			a.mu.Unlock()
		}
		if v.admitted {
			v.app.admission.leave()
		}
		v.held.give()
		v.app.access(v)
	})
}

// header is a copy of the request's header, less what concerns this connection
// only, with the request id. A name with a space in it, which fasthttp lets
// through, is refused here: no call to an engine could be made with it, and the
// engine would be blamed.
func (v *visit) header() (http.Header, error) {
	in := make(http.Header)
	for name, value := range v.c.Request().Header.All() {
		if bytes.IndexByte(name, ' ') >= 0 {
			return nil, unmatchedError(http.StatusBadRequest)
		}
		in.Add(string(name), string(value))
	}
	out := pd.Outbound(in)
	if v.app.lock.closed {
		out.Del(fiber.HeaderAuthorization) // it holds the router's key
	}
	out.Set(headerRequestID, v.id)
	v.app.cfg.Trail.mark(out) // once for both legs
	return out, nil
}

// addHeader adds all values of h to the answer; the request id stays ours, and
// so does who may read it.
func (v *visit) addHeader(h http.Header) {
	for name, values := range h {
		if name == headerRequestID || isPageHeader(name) {
			continue
		}
		for _, value := range values {
			v.c.Response().Header.Add(name, value)
		}
	}
}

// query is a copy of the request's raw query with its question mark, or empty.
func (v *visit) query() string {
	if q := string(v.c.Request().URI().QueryString()); q != "" {
		return "?" + q
	}
	return ""
}

// json answers with a JSON document.
func (v *visit) json(status int, doc []byte) {
	v.status = status
	r := v.c.Response()
	r.SetStatusCode(status)
	r.Header.SetContentType(contentTypeJSON)
	r.SetBodyRaw(doc)
}

// Header names and values of our own.
const (
	headerRequestID = "X-Request-Id"
	contentTypeJSON = "application/json"
)

// idLetters are what request ids are made of.
const idLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newID makes a request id in the style of the endpoint's API.
func newID(endpoint string) string {
	prefix := "req-"
	switch endpoint {
	case "chat":
		prefix = "chatcmpl-"
	case "completions":
		prefix = "cmpl-"
	case "generate":
		prefix = "gnt-"
	}
	id := make([]byte, 24)
	for i := range id {
		id[i] = idLetters[rand.IntN(len(idLetters))]
	}
	return prefix + string(id)
}
