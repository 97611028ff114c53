package router

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/pd"
)

// A Trail writes into a router's own requests that they come from it, and so knows
// one that comes back: the router is a worker of its own, or of one of its workers.
// Such a request would go round until no descriptor is left, and a router that has
// itself for a worker needs no client for that, since it asks its workers who they
// are.
type Trail struct {
	name string // of this router alone, as it stands in Via
}

// NewTrail is that of one router.
func NewTrail() *Trail { return &Trail{"1.1 tandem-" + strconv.FormatUint(rand.Uint64(), 36)} }

// Transport is rt for the router's requests. They keep the Via that they have.
func (t *Trail) Transport(rt http.RoundTripper) http.RoundTripper { return trailed{rt, t} }

// returned reports whether a request comes from this router.
func (t *Trail) returned(h *fasthttp.RequestHeader) bool {
	if t == nil {
		return false
	}
	return slices.ContainsFunc(h.PeekAll(fiber.HeaderVia), func(via []byte) bool {
		return bytes.Contains(via, []byte(t.name))
	})
}

type trailed struct {
	rt    http.RoundTripper
	trail *Trail
}

// RoundTrip sends req if it is marked, else a copy that is.
func (t trailed) RoundTrip(req *http.Request) (*http.Response, error) {
	if slices.Contains(req.Header[fiber.HeaderVia], t.trail.name) {
		return t.rt.RoundTrip(req)
	}
	out := *req
	if out.Header = maps.Clone(req.Header); out.Header == nil {
		out.Header = make(http.Header)
	}
	t.trail.mark(out.Header)
	return t.rt.RoundTrip(&out)
}

// mark adds the router to the Via of a request that it makes. What h shares with
// another stays as it is.
func (t *Trail) mark(h http.Header) {
	if t != nil {
		h[fiber.HeaderVia] = append(slices.Clip(h[fiber.HeaderVia]), t.name)
	}
}

// via is the Via of the client's request, for those that are made on its behalf.
func (v *visit) via() (values []string) {
	for _, via := range v.c.Request().Header.PeekAll(fiber.HeaderVia) {
		values = append(values, string(via))
	}
	return values
}

func errLoop() *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusLoopDetected, Code: "loop_detected",
		Message: "the request has come back to this router: its workers' addresses lead to itself",
	}
}
