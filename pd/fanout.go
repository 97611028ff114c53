package pd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// defaultMaxAnswer bounds the bytes of the answers that are held to be merged.
const defaultMaxAnswer = 64 << 20

// exchangeFunc runs one sample on one plan and returns at its commit. It ends
// the plan on every path. Cancelling ctx ends it and its response's Body at once.
type exchangeFunc func(ctx context.Context, req *Request, plan *Plan) (*Response, error)

// fanOut runs one exchange for each plan, all at once, and makes one answer of
// theirs. A plain answer is returned when all samples have answered whole, a
// stream when the first sample has committed. Until then the first sample that
// fails fails them all; every plan has ended when the error is returned.
func (o *Orchestrator) fanOut(ctx context.Context, req *Request, plans []*Plan, run exchangeFunc) (*Response, error) {
	samples := make([]*Request, len(plans))
	for j := range plans {
		sample, err := req.Sample(j)
		if err != nil {
			for _, plan := range plans {
				plan.End(Unused, Unused)
			}
			return nil, err
		}
		samples[j] = sample
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &fan{
		o: o, req: req, samples: samples, plans: plans, run: run,
		ctx: ctx, cancel: cancel, ended: make(chan struct{}),
	}
	if req.Stream {
		return newMergedStream(f).open()
	}
	return f.plain()
}

// fan is the exchanges of one request's samples, each on a goroutine of its own.
type fan struct {
	o       *Orchestrator
	req     *Request
	samples []*Request
	plans   []*Plan
	run     exchangeFunc

	ctx    context.Context // of every exchange
	cancel context.CancelFunc

	running atomic.Int32
	ended   chan struct{} // closed by the last goroutine as it ends

	mu      sync.Mutex
	failure *Error
	told    bool // the failed sample has told the client in its stream
}

// start runs sample for each of the samples; the first error or panic ends them
// all. The caller must wait for ended.
func (f *fan) start(sample func(j int) error) {
	f.running.Store(int32(len(f.samples)))
	for j := range f.samples {
		go func() { // whoever reads ended waits for it
			defer func() {
				if f.running.Add(-1) == 0 {
					close(f.ended)
				}
			}()
			if err := f.guard(j, sample); err != nil {
				f.fail(err)
			}
		}()
	}
}

func (f *fan) guard(j int, sample func(j int) error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		f.plans[j].End(Unused, Unused) // no verdict: it is not known how far it came
		if f.o.Hooks.Panic != nil {
			f.o.Hooks.Panic(v, debug.Stack())
		}
		err = AsError(fmt.Errorf("sample %d panicked", j))
	}()
	return sample(j)
}

// exchange runs sample j up to its commit.
func (f *fan) exchange(j int) (*Response, error) {
	resp, err := f.run(f.ctx, f.samples[j], f.plans[j])
	if err != nil {
		return nil, err
	}
	if resp.Stream != f.req.Stream || resp.Status != http.StatusOK {
		_ = resp.Body.Close()
		return nil, broken("bad_answer", "the engine answered a sample with something else than was asked for",
			fmt.Errorf("sample %d: status %d, stream %t", j, resp.Status, resp.Stream))
	}
	return resp, nil
}

// toldError is a failure that the sample's stream has told the client of, in an
// error event of its own.
type toldError struct{ error }

func (e toldError) Unwrap() error { return e.error }

// fail cancels all samples. It keeps the failure that counts: the first, but a
// real one rather than that of a client who left.
func (f *fan) fail(err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = AsError(err)
		if f.ctx.Err() != nil { // what goes wrong after a cancel comes from it
			e = cancelCause(f.ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil || f.failure.Kind == Cancelled && e.Kind != Cancelled {
		f.failure = e
		f.told = errors.As(err, new(toldError))
	}
	f.cancel()
}

func (f *fan) failed() *Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// plain reads all answers whole and merges them.
func (f *fan) plain() (*Response, error) {
	defer f.cancel()
	var budget atomic.Int64
	budget.Store(defaultMaxAnswer)
	if f.o.MaxAnswer > 0 {
		budget.Store(int64(f.o.MaxAnswer))
	}
	headers := make([]http.Header, len(f.samples))
	bodies := make([][]byte, len(f.samples))
	f.start(func(j int) error {
		resp, err := f.exchange(j)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		headers[j] = resp.Header
		bodies[j], err = io.ReadAll(&budgetReader{resp.Body, &budget, f.o.Hooks.Bound})
		return err
	})
	<-f.ended
	if err := f.failed(); err != nil {
		return nil, err
	}
	merged, err := newMerging(f.req, len(f.samples)).plain(bodies)
	if err != nil {
		return nil, broken("bad_answer", "the engine's answers cannot be merged", err)
	}
	return &Response{
		Status: http.StatusOK, Header: headers[0], Length: int64(len(merged)),
		Body: io.NopCloser(bytes.NewReader(merged)),
	}, nil
}

// budgetReader takes what it reads out of a budget that it shares with others.
type budgetReader struct {
	r      io.Reader
	budget *atomic.Int64
	bound  func(name string)
}

func (b *budgetReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	left := b.budget.Add(-int64(n))
	if left >= 0 {
		return n, err
	}
	if crossed := left+int64(n) >= 0; crossed && b.bound != nil {
		b.bound("answer")
	}
	e := broken("answer_too_large", "the answers of all samples are too large to be merged", nil)
	e.Kind = Internal // a bound of ours: final, and no worker's fault
	return 0, e
}
