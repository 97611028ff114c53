package router

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pd"
)

// pairRoutes are what pairs have beside the endpoints that all workers have: those
// that prefill alone serves, and those that are not served. Engines of a pair refuse
// the latter, whose bodies have no place for what pairs them.
func (a *App) pairRoutes() {
	f := a.fiber
	for _, path := range []string{"/tokenize", "/detokenize"} {
		f.Post(path, a.route(path[1:], plain, a.passToPrefill))
		f.Post("/v1"+path, a.route(path[1:], openAI, a.passToPrefill))
	}
	for _, path := range []string{
		"/v1/embeddings", "/v1/rerank", "/rerank", "/v1/classify", "/v1/score", "/v1/responses", "/v1/messages",
	} {
		f.Post(path, a.route("unsupported", shapeOf(path), unsupported))
	}
}

// regularRoutes are what whole engines serve beside the endpoints that all have:
// every path under /v1, with any method, and the old names of some.
func (a *App) regularRoutes() {
	methods := []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} // OPTIONS is the browsers', see preflight
	add := func(path string, sh shape) {
		for _, method := range methods {
			a.fiber.Add(method, path, a.route("other", sh, a.other))
		}
	}
	for _, path := range []string{"/rerank", "/encode", "/classify", "/invocations", "/tokenize", "/detokenize"} {
		add(path, plain)
	}
	add("/v1/messages", anthropic)
	add("/v1/messages/*", anthropic)
	add("/v1/*", openAI) // behind all that has a name
}

// other passes a request on as it came, and its answer back.
func (a *App) other(v *visit) error {
	req, err := v.request(pd.Other)
	if err != nil {
		return err
	}
	resp, err := v.serve(req)
	if err != nil {
		return err
	}
	if req.Method == http.MethodHead || resp.Status == http.StatusNoContent {
		return v.sendHead(resp)
	}
	v.send(resp)
	return nil
}

// sendHead answers with a response that has no body.
func (v *visit) sendHead(resp *pd.Response) error {
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
		return &pd.Error{
			Stage: pd.StageRegular, Kind: pd.Broken, Status: http.StatusBadGateway, Code: "regular_bad_response",
			Message: "a worker sent a body where there is none",
		}
	}
	r := v.c.Response()
	v.status = resp.Status
	r.SetStatusCode(resp.Status)
	v.addHeader(resp.Header)
	r.SkipBody = true
	if resp.Length >= 0 {
		r.Header.SetContentLength(int(resp.Length))
	}
	return nil
}

// target is the path and query that an engine is asked, as they came. Of a path
// that is known by its name the name is taken: an engine redirects from one with a
// slash behind it. A path that climbs could end elsewhere than where it was let in.
func (v *visit) target(ep pd.Endpoint) (string, error) {
	if ep != pd.Other {
		return ep.Path() + v.query(), nil
	}
	path := string(v.c.Request().URI().PathOriginal())
	plain, err := url.PathUnescape(path)
	climbs := func(segment string) bool { return segment == "." || segment == ".." }
	if err != nil || slices.ContainsFunc(strings.Split(plain, "/"), climbs) {
		return "", unmatchedError(http.StatusNotFound)
	}
	return path + v.query(), nil
}
