package router

import (
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// originsAge is for how long a browser may remember a preflight's answer, in
// seconds.
const originsAge = "3600"

// origins are those whose pages may call the router from a browser.
type origins struct {
	any  bool
	list map[string]bool // lower case
}

func newOrigins(names []string) origins {
	o := origins{list: make(map[string]bool)}
	for _, name := range names {
		o.any = o.any || name == "*"
		o.list[strings.ToLower(name)] = true
	}
	return o
}

// forPages reports whether a path is one that pages may call: the APIs that
// generate. What looks after workers is nothing for a page, whoever made it.
func forPages(path string) bool {
	return path == "/generate" || strings.HasPrefix(path, "/v1/")
}

// allow writes into an answer's header whether the page that asked may read it,
// and reports that.
func (o origins) allow(req *fasthttp.RequestHeader, resp *fasthttp.ResponseHeader) bool {
	switch {
	case o.any:
		resp.Set(fiber.HeaderAccessControlAllowOrigin, "*")
	case len(o.list) == 0:
		return false
	default:
		resp.Add(fiber.HeaderVary, fiber.HeaderOrigin) // a cache must not give this answer to another page
		origin := req.Peek(fiber.HeaderOrigin)
		if !o.list[string(origin)] {
			return false
		}
		resp.SetBytesV(fiber.HeaderAccessControlAllowOrigin, origin)
	}
	resp.Set(fiber.HeaderAccessControlExposeHeaders, headerRequestID)
	return true
}

// isPreflight reports whether a browser asks if a page may make a request.
func (a *App) isPreflight(c *fiber.Ctx) bool {
	return c.Method() == http.MethodOptions && (a.origins.any || len(a.origins.list) > 0) &&
		forPages(c.Path()) && c.Get(fiber.HeaderAccessControlRequestMethod) != ""
}

// preflight answers a browser. A page may send whichever headers it asks for:
// none of them gives it more than its origin does.
func (v *visit) preflight() {
	v.status = http.StatusNoContent
	v.c.Status(v.status)
	h := &v.c.Response().Header
	if len(h.Peek(fiber.HeaderAccessControlAllowOrigin)) == 0 {
		return // without it the browser says no
	}
	h.Set(fiber.HeaderAccessControlAllowMethods, "GET, POST, PUT, PATCH, DELETE, OPTIONS")
	if asked := v.c.Get(fiber.HeaderAccessControlRequestHeaders); asked != "" {
		h.Set(fiber.HeaderAccessControlAllowHeaders, asked)
	}
	h.Set(fiber.HeaderAccessControlMaxAge, originsAge)
}

// isPageHeader reports whether a header says which pages may read an answer. An
// engine's would speak for the router.
func isPageHeader(name string) bool { return strings.HasPrefix(name, "Access-Control-") }
