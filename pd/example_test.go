package pd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// onePair plans every request on the same two workers.
type onePair struct{ prefill, decode *pd.Worker }

func (p onePair) Plan(_ context.Context, _ *pd.Request, samples int, _ []pd.WorkerID) ([]*pd.Plan, error) {
	plans := make([]*pd.Plan, samples)
	for i := range plans {
		plans[i] = pd.NewPlan(pd.NewLease(p.prefill, nil, nil), pd.NewLease(p.decode, nil, nil), nil)
	}
	return plans, nil
}

// decodeAlone is the smallest dialect: it makes one call, to decode.
type decodeAlone struct{}

func (decodeAlone) Name() string                         { return "decode-alone" }
func (decodeAlone) Samples(req *pd.Request) (int, error) { return req.N, nil }

func (decodeAlone) Exchange(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	call := &pd.Call{
		Worker: plan.Decode.Worker, Method: req.Method, Path: req.Endpoint.Path(),
		Header: req.Header, Body: req.Edit.Payload(),
	}
	resp, err := up.Do(ctx, call)
	if err != nil {
		plan.End(pd.Unused, pd.Fault)
		return nil, err
	}
	plan.End(pd.Unused, pd.Success)
	return &pd.Response{Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: resp.ContentLength, Body: resp.Body}, nil
}

// Serve is all that an HTTP server needs to call; this one is net/http's.
func ExampleOrchestrator_Serve() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"text":"hello"}`)
	}))
	defer engine.Close()

	keep, fresh := pd.NewTransport(2*time.Second, true), pd.NewTransport(2*time.Second, false)
	defer keep.CloseIdleConnections()
	orch := &pd.Orchestrator{
		Planner: onePair{
			prefill: &pd.Worker{ID: "prefill-0", Role: pd.Prefill, URL: engine.URL},
			decode:  &pd.Worker{ID: "decode-0", Role: pd.Decode, URL: engine.URL},
		},
		Dialect:  decodeAlone{},
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 512<<20))
		if err != nil {
			return
		}
		req, err := pd.NewRequest(pd.Generate, body)
		var resp *pd.Response
		if err == nil {
			req.Header = pd.Outbound(r.Header)
			resp, err = orch.Serve(r.Context(), req)
		}
		var failed *pd.Error
		if errors.As(err, &failed) {
			w.WriteHeader(failed.Status)
			_, _ = w.Write(failed.JSON(pd.Generate))
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.Status)
		if _, err := io.Copy(w, resp.Body); err != nil {
			panic(http.ErrAbortHandler) // a cut answer must look cut
		}
	}))
	defer front.Close()
	defer http.DefaultClient.CloseIdleConnections()

	for _, body := range []string{`{"text":"hi"}`, `{"text":"hi","sampling_params":{"n":"2"}}`} {
		resp, err := http.Post(front.URL+"/generate", "application/json", strings.NewReader(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(resp.StatusCode, string(answer))
	}
	// Output:
	// 200 {"text":"hello"}
	// 400 {"error":{"message":"sampling_params.n must be a positive integer","type":"invalid_request_error","code":400}}
}
