package router

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/pd"
)

// Steps by which a body of unknown length grows.
const (
	bodyStepMin = 4 << 10
	bodyStepMax = 4 << 20
)

// budget bounds the memory of all bodies together.
type budget struct {
	limit int64
	mu    sync.Mutex
	used  int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.limit-b.used {
		return false
	}
	b.used += n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// hold is one body's share of the budget. It is given back at the end of the
// answer's body: until then an engine may still be reading the request's, and
// the end of the answer is the first moment at which that is known to be over.
type hold struct {
	budget *budget
	n      int64
}

func (h *hold) grow(n int64) bool {
	if !h.budget.take(n) {
		return false
	}
	h.n += n
	return true
}

func (h *hold) shrink(n int64) {
	h.budget.give(n)
	h.n -= n
}

func (h *hold) give() {
	if h.budget != nil {
		h.shrink(h.n)
	}
}

// body reads the request's body whole, into one buffer of its own of exactly
// its size, within limit and the budget.
func (v *visit) body(limit int64) ([]byte, error) {
	header := &v.c.Request().Header
	if enc := header.Peek(fiber.HeaderContentEncoding); len(enc) > 0 {
		v.closeAfter()
		return nil, &pd.Error{
			Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusUnsupportedMediaType,
			Code: "unsupported_content_encoding", Message: "the body must be sent without a Content-Encoding",
		}
	}
	stream := v.c.Context().RequestBodyStream()
	if stream == nil {
		return nil, nil
	}
	v.held.budget = &v.app.memory
	var (
		body []byte
		err  error
	)
	if n := int64(header.ContentLength()); n >= 0 {
		body, err = v.readSized(stream, n, limit)
	} else {
		body, err = v.readChunked(stream, limit)
	}
	if err != nil {
		v.closeAfter()
		return nil, err
	}
	v.conn.linger.Store(false)
	return body, nil
}

// closeAfter has the connection closed behind an answer that the client may not
// expect yet, since it is still sending.
func (v *visit) closeAfter() {
	v.c.Response().SetConnectionClose()
	v.conn.linger.Store(true)
}

func (v *visit) readSized(stream io.Reader, n, limit int64) ([]byte, error) {
	if n > limit {
		return nil, v.tooLarge(limit)
	}
	if !v.held.grow(n) {
		return nil, v.noMemory()
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(stream, body); err != nil {
		return nil, v.readError(err)
	}
	return body, nil
}

// readChunked collects pieces and joins them once: a buffer that grows in place
// would leave copies of itself behind. For the join, the body is held twice.
func (v *visit) readChunked(stream io.Reader, limit int64) ([]byte, error) {
	var (
		pieces [][]byte
		total  int64
		held   int64
		step   = int64(bodyStepMin)
	)
	for {
		size := min(step, limit+1-total) // one byte more than allowed is too large
		if !v.held.grow(size) {
			return nil, v.noMemory()
		}
		held += size
		piece := make([]byte, size)
		n, err := io.ReadFull(stream, piece)
		pieces = append(pieces, piece[:n])
		total += int64(n)
		if total > limit {
			return nil, v.tooLarge(limit)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && !v.conn.left() {
			break
		}
		if err != nil {
			return nil, v.readError(err)
		}
		step = min(2*step, bodyStepMax)
	}
	if !v.held.grow(total) {
		return nil, v.noMemory()
	}
	body := make([]byte, 0, total)
	for i, piece := range pieces {
		body = append(body, piece...)
		pieces[i] = nil
	}
	v.held.shrink(held)
	return body, nil
}

func (v *visit) tooLarge(limit int64) *pd.Error {
	v.app.cfg.Bound("payload_size")
	return tooLarge(limit)
}

func (v *visit) noMemory() *pd.Error {
	v.app.cfg.Bound("body_memory")
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Overload, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "body_memory_exhausted", Message: "the router holds as many request bodies as it may; try again",
	}
}

// readError says why a body could not be read: the client is slow, gone, or
// does not speak HTTP.
func (v *visit) readError(err error) *pd.Error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &pd.Error{
			Stage: pd.StageRequest, Kind: pd.Deadline, Status: http.StatusRequestTimeout, Code: "request_timeout",
			Message: fmt.Sprintf("no byte of the body came for %s", v.app.cfg.BodyIdle), Err: err,
		}
	case v.conn.left():
		return pd.ErrCancelled(pd.StageRequest)
	default:
		return &pd.Error{
			Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusBadRequest, Code: "invalid_body",
			Message: "the body is not framed as HTTP demands", Err: err,
		}
	}
}

func tooLarge(limit int64) *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusRequestEntityTooLarge,
		Code: "payload_too_large", Message: fmt.Sprintf("the body must be at most %d bytes", limit),
	}
}

// headerReceived makes a request whose announced body is too large wait for a
// permission to send it, whether it asked for one or not: fasthttp would read
// the body's beginning first. See expect.
func (a *App) headerReceived(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if int64(h.ContentLength()) > a.cfg.MaxPayload {
		h.Set(fiber.HeaderExpect, "100-continue")
	}
	return none
}

// expect answers a request that waits for permission to send its body. No public
// route takes one, so whoever has no key gets no permission.
func (a *App) expect(ctx *fasthttp.RequestCtx) int {
	known := a.lock.opens(&ctx.Request.Header)
	if known && int64(ctx.Request.Header.ContentLength()) <= a.cfg.MaxPayload {
		return http.StatusContinue
	}
	c := a.fiber.AcquireCtx(ctx)
	defer a.fiber.ReleaseCtx(c)
	v := a.newVisit(c, "upload", shapeOf(c.Path()))
	v.closeAfter()
	if known {
		v.fail(v.tooLarge(a.cfg.MaxPayload))
	} else {
		v.fail(errNoKey())
	}
	v.end()
	return v.status
}
