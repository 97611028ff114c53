package pd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of an abort sent on a client's behalf.
const (
	abortTimeout  = 5 * time.Second
	abortParallel = 32
	abortAnswer   = 64 << 10 // bytes of an engine's answer that are passed on
)

// AbortRequest is a client's POST /abort_request.
type AbortRequest struct {
	Rid    string
	All    bool
	Header http.Header // the client's; its Authorization goes on
}

// AbortResult is the engines' answer to an abort: the first refusal, else the
// last acceptance.
type AbortResult struct {
	Status int
	Header http.Header
	Body   []byte
}

// Abort passes a client's abort on to the engines that hold the rid, for every
// sample of a fan-out, or to all of them when nobody here knows it. The live
// requests it hits are marked first: their failures are nobody's fault and
// nothing is tried again.
func (o *Orchestrator) Abort(ctx context.Context, a AbortRequest) (*AbortResult, error) {
	targets := o.live.mark(a.Rid, a.All)
	if (len(targets) == 0 || a.All) && o.Workers != nil {
		targets = targets[:0]
		asked := make(map[string]bool) // the ranks of an engine share its URL
		for _, w := range o.Workers() {
			if !asked[w.URL] {
				asked[w.URL] = true
				targets = append(targets, target{w, a.Rid})
			}
		}
	}
	if len(targets) == 0 {
		return nil, &Error{
			Stage: StagePlan, Kind: NoWorker, Status: http.StatusServiceUnavailable,
			Code: "no_worker", Message: "there is no worker to abort on", RetryAfter: "1",
		}
	}
	ctx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	results := make([]*AbortResult, len(targets))
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	slots := make(chan struct{}, abortParallel)
	for i, t := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					errs[i] = AsError(errors.New("panic in an abort"))
					if o.Hooks.Panic != nil {
						o.Hooks.Panic(v, debug.Stack())
					}
				}
				<-slots
			}()
			results[i], errs[i] = SendAbort(ctx, o.Upstream.Transport, t.worker, a.Header, t.rid, a.All)
		})
	}
	wg.Wait()
	return worst(results, errs)
}

func worst(results []*AbortResult, errs []error) (*AbortResult, error) {
	var ok *AbortResult
	for _, r := range results {
		switch {
		case r == nil:
		case r.Status >= 300:
			return r, nil
		default:
			ok = r
		}
	}
	if ok != nil {
		return ok, nil
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return nil, ErrCancelled(StageClient)
}

// SendAbort posts one /abort_request to a worker, with the worker's own key or
// else the Authorization of h, and nothing else of it.
func SendAbort(ctx context.Context, rt http.RoundTripper, w *Worker, h http.Header, rid string, all bool) (*AbortResult, error) {
	body, err := json.Marshal(struct {
		Rid string `json:"rid"`
		All bool   `json:"abort_all,omitempty"`
	}{rid, all})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/abort_request", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header["User-Agent"] = []string{""}
	// Unlike a leg, an abort may be sent twice: with this key, which is not
	// written, the transport repeats one that met a closed idle connection.
	req.Header["X-Idempotency-Key"] = nil
	if auth := h.Get("Authorization"); auth != "" {
		req.Header.Set("Authorization", auth)
	}
	w.Authorize(req.Header)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, &Error{
			Stage: StageOf(w.Role), Worker: w.ID, Kind: Unavailable, Status: http.StatusBadGateway,
			Code: "abort_failed", Message: "the abort did not reach worker " + string(w.ID), Err: unquoted(err),
		}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, abortAnswer))
	if err != nil {
		return nil, &Error{
			Stage: StageOf(w.Role), Worker: w.ID, Kind: Lost, Status: http.StatusBadGateway,
			Code: "abort_failed", Message: "the abort's answer was lost", Err: unquoted(err),
		}
	}
	return &AbortResult{Status: resp.StatusCode, Header: Inbound(resp.Header), Body: answer}, nil
}
