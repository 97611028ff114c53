package router

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Bounds of the admin endpoints.
const (
	flushTimeout    = 5 * time.Second  // over the one that the client asks for
	flushTimeoutMax = 10 * time.Minute // that a client may ask for
	abortBody       = 1 << 20          // bytes
	passTimeout     = time.Minute      // for a request passed on, to its answer's end
)

// flushed is the answer of /flush_cache, as SGLang's gateway words it. Workers
// stand there by their ids, as everywhere but under /workers, which has the
// addresses that belong to them: for the gateway's clients it is a name either way.
type flushed struct {
	Status     string        `json:"status"`
	Message    string        `json:"message"`
	Flushed    int           `json:"workers_flushed"`
	TotalHTTP  int           `json:"total_http_workers"`
	Total      int           `json:"total_workers"`
	Successful []pd.WorkerID `json:"successful,omitempty"`
	Failed     []flushFailed `json:"failed,omitempty"`
}

type flushFailed struct {
	Worker pd.WorkerID `json:"worker"`
	Error  string      `json:"error"`
}

// flushCache has every engine that is selected drop its cache: 200 when all did,
// else 206.
func (a *App) flushCache(v *visit) error {
	timeout, err := flushWait(v.c.Query("timeout"))
	if err != nil {
		return err
	}
	sel, err := v.selection("timeout")
	if err != nil {
		return err
	}
	if sel.timeout == 0 {
		sel.timeout = timeout + flushTimeout
	}
	if err := v.begin(); err != nil {
		return err
	}
	c := call{method: http.MethodPost, path: "/flush_cache" + sel.query, timeout: sel.timeout}
	replies := a.askAll(v, sel.of(enginesOf(a.cfg.Workers())), c)
	out := flushed{TotalHTTP: len(replies), Total: len(replies)}
	for _, r := range replies {
		if r.ok() {
			out.Successful = append(out.Successful, r.worker.ID)
		} else {
			out.Failed = append(out.Failed, flushFailed{r.worker.ID, r.failure()})
		}
	}
	out.Flushed = len(out.Successful)
	if len(out.Failed) > 0 {
		out.Status = "partial_success"
		out.Message = fmt.Sprintf("the cache of %d of %d workers was flushed", out.Flushed, out.Total)
		return v.document(http.StatusPartialContent, out)
	}
	out.Status, out.Successful = "success", nil
	out.Message = fmt.Sprintf("the cache of all %d workers was flushed", out.Total)
	return v.document(http.StatusOK, out)
}

// flushWait reads how many seconds an engine may wait to become idle.
func flushWait(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds <= flushTimeoutMax.Seconds()) {
		return 0, pd.InvalidField("timeout", fmt.Sprintf("timeout must be a number of seconds from 0 to %.0f", flushTimeoutMax.Seconds()))
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// abort passes a client's abort on. An empty rid would abort everything, since
// engines match by prefix: that takes abort_all.
func (a *App) abort(v *visit) error {
	body, err := v.body(abortBody)
	if err != nil {
		return err
	}
	var ask struct {
		Rid *string `json:"rid"`
		All *bool   `json:"abort_all"`
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		return pd.InvalidField("", `the body must be {"rid": string} or {"abort_all": true}`)
	}
	header, err := v.header()
	if err != nil {
		return err
	}
	req := pd.AbortRequest{Header: header}
	if ask.Rid != nil {
		req.Rid = *ask.Rid
	}
	if ask.All != nil {
		req.All = *ask.All
	}
	if req.Rid == "" && !req.All {
		return pd.InvalidField("rid", "rid must not be empty unless abort_all is true")
	}
	if err := v.begin(); err != nil {
		return err
	}
	if a.admission.abort(req.Rid, req.All) > 0 && !req.All {
		return v.aborted() // no engine has it yet
	}
	result, err := a.cfg.Server.Abort(v.ctx, req)
	if err != nil {
		return err
	}
	r := v.c.Response()
	v.status = result.Status
	r.SetStatusCode(result.Status)
	v.addHeader(result.Header)
	r.SetBodyRaw(result.Body)
	return nil
}

// aborted answers as the engines do.
func (v *visit) aborted() error {
	v.status = http.StatusOK
	v.c.Response().SetStatusCode(http.StatusOK)
	return nil
}

// passToPrefill passes a request to the first prefill worker of its model that
// can be reached, and its answer back, both as they are.
func (a *App) passToPrefill(v *visit) error {
	body, err := v.body(a.cfg.MaxPayload)
	if err != nil {
		return err
	}
	header, err := v.header()
	if err != nil {
		return err
	}
	path := v.c.Route().Path + v.query() // as routed: an engine redirects from a path with a slash behind it
	if err := v.begin(); err != nil {
		return err
	}
	workers, err := a.workersOf(body)
	if err != nil {
		return err
	}
	for _, w := range withRole(workers, pd.Prefill) {
		ctx, cancel := context.WithTimeout(v.ctx, passTimeout)
		resp, err := a.send(ctx, w, http.MethodPost, path, header.Clone(), body)
		if err != nil {
			cancel()
			continue
		}
		if resp.StatusCode < 200 || resp.StatusCode >= 300 && resp.StatusCode < 400 {
			_ = resp.Body.Close()
			cancel()
			return errNoReply(w, resp.StatusCode)
		}
		v.send(&pd.Response{
			Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: resp.ContentLength,
			Body: &passedBody{resp.Body, cancel},
		})
		return nil
	}
	if v.ctx.Err() != nil {
		return pd.ErrCancelled(pd.StagePrefill)
	}
	return &pd.Error{
		Stage: pd.StagePrefill, Kind: pd.Unavailable, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "prefill_unavailable", Message: "no prefill worker can be reached",
	}
}

// workersOf are the workers of the model that a body names. What else is wrong
// with the body the engine says.
func (a *App) workersOf(body []byte) ([]*pd.Worker, error) {
	if a.cfg.WorkersOf == nil {
		return a.cfg.Workers(), nil
	}
	var named struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(body, &named)
	return a.cfg.WorkersOf(named.Model)
}

// errNoReply is the error of a worker that answers with a redirect, which would
// show its address, or takes the connection for another protocol.
func errNoReply(w *pd.Worker, status int) *pd.Error {
	return &pd.Error{
		Stage: pd.StagePrefill, Worker: w.ID, Kind: pd.Broken, Status: http.StatusBadGateway, Code: "prefill_bad_response",
		Message: fmt.Sprintf("prefill worker %s sent an answer with status %d", w.ID, status),
	}
}

// passedBody is an answer's body that ends its deadline when it is closed.
type passedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *passedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
