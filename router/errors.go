package router

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
)

// shape is how an endpoint's API writes an error.
type shape uint8

const (
	// plain is SGLang's own: {"error":{"message","type","code"}} with the status
	// as code. Its clients read error.message, as OpenAI's do.
	plain     shape = iota
	openAI          // {"error":{"message","type","param","code"}}
	anthropic       // {"type":"error","error":{"type","message"}}
	flat            // {"error":text,"code":CODE}, the gateway's for workers
)

// shapeOf is the shape of the API that a path belongs to.
func shapeOf(path string) shape {
	switch {
	case strings.HasPrefix(path, "/v1/messages"):
		return anthropic
	case path == "/v1" || strings.HasPrefix(path, "/v1/"):
		return openAI
	case path == "/workers" || strings.HasPrefix(path, "/workers/") || path == "/pd_role_switch":
		return flat
	default:
		return plain
	}
}

// Headers that name an error of ours; the second is what SGLang's gateway calls it.
const (
	headerError        = "X-Tandem-Error"
	headerGatewayError = "X-SMG-Error-Code"
)

// statusLeft is what the log calls a request whose client has left.
const statusLeft = 499

// fail answers with an error. A client that has left is told nothing; a request
// that the shutdown ended is told so.
func (v *visit) fail(e *pd.Error) {
	cancelled := e.Kind == pd.Cancelled || v.ctx != nil && v.ctx.Err() != nil
	if cancelled && !v.severed.Load() {
		v.status = statusLeft
		v.conn.drop()
		return
	}
	if cancelled {
		e = errShutdown()
	}
	status, header, body := render(v.shape, e)
	v.json(status, body)
	v.addHeader(header)
	if e.Err != nil {
		v.app.cfg.Log.Debug().Str("id", v.id).Err(e).Msg("request failed")
	}
}

// render is the answer to an error: an engine's words as they came, or ours in
// the endpoint's shape.
func render(sh shape, e *pd.Error) (status int, header http.Header, body []byte) {
	status = e.Status
	if status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	header = e.Header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	if e.RetryAfter != "" {
		header.Set(fiber.HeaderRetryAfter, e.RetryAfter)
	}
	if e.Body != nil {
		if e.ContentType != "" {
			header.Set(fiber.HeaderContentType, e.ContentType)
		}
		return status, header, e.Body
	}
	if e.Code != "" {
		header.Set(headerError, e.Code)
		header.Set(headerGatewayError, e.Code)
	}
	own := *e
	own.Status = status
	return status, header, document(sh, &own)
}

// document is an error of ours in JSON.
func document(sh shape, e *pd.Error) []byte {
	switch sh {
	case openAI:
		return e.JSON(pd.Chat)
	case plain:
		return e.JSON(pd.Generate)
	case flat:
		return flatDocument(e)
	default:
		return e.AnthropicJSON()
	}
}

// flatDocument is an error with its code as the gateway's clients know it.
func flatDocument(e *pd.Error) []byte {
	code := strings.ToUpper(e.Code)
	switch e.Status {
	case http.StatusBadRequest:
		code = "BAD_REQUEST"
	case http.StatusInternalServerError:
		code = "INTERNAL_SERVER_ERROR"
	}
	doc, err := json.Marshal(struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}{e.Message, code})
	if err != nil {
		panic("BUG: strings that do not marshal: " + err.Error())
	}
	return doc
}

// event is an error of ours as the last event of a stream.
func event(sh shape, e *pd.Error) []byte {
	_, _, body := render(sh, e)
	return append(append([]byte("data: "), body...), "\n\n"...)
}

// unmatched answers what reached no endpoint: no such path, another method, or
// a request that could not be read.
func (a *App) unmatched(c *fiber.Ctx, err error) error {
	status := http.StatusInternalServerError
	if e, ok := err.(*fiber.Error); ok {
		status = e.Code
	}
	if a.isPreflight(c) {
		v := a.newVisit(c, "preflight", plain)
		v.preflight()
		v.end()
		return nil
	}
	v := a.newVisit(c, "unmatched", shapeOf(c.Path()))
	if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
		v.closeAfter() // what still comes is not a request
	}
	v.fail(unmatchedError(status))
	v.end()
	return nil
}

func unmatchedError(status int) *pd.Error {
	e := &pd.Error{Stage: pd.StageRequest, Kind: pd.Invalid, Status: status}
	switch status {
	case http.StatusNotFound:
		e.Code, e.Message = "not_found", "there is no such path"
	case http.StatusMethodNotAllowed:
		e.Code, e.Message = "method_not_allowed", "the path does not take this method"
	case http.StatusRequestHeaderFieldsTooLarge:
		e.Code, e.Message = "headers_too_large", "the request's headers are too large"
	case http.StatusRequestTimeout:
		e.Code, e.Message = "request_timeout", "the request did not come in time"
	case http.StatusBadRequest:
		e.Code, e.Message = "invalid_http", "the request is not valid HTTP"
	default:
		return errPanic()
	}
	return e
}

func errPanic() *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Internal, Status: http.StatusInternalServerError,
		Code: "internal_error", Message: "the router failed to handle the request",
	}
}

func errShutdown() *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Overload, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "shutting_down", Message: "the router is shutting down",
	}
}

// unsupported answers for endpoints that have no prefill/decode form here.
func unsupported(v *visit) error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotImplemented,
		Code: "unsupported_endpoint", Message: "this endpoint is not served over prefill/decode pairs: engines refuse it there, since its body has no bootstrap fields",
	}
}
