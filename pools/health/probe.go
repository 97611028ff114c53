package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
)

// maxBody bounds what is read of an answer, in bytes.
const maxBody = 4 << 10

// verdict is what asking a worker has shown of it.
type verdict uint8

const (
	well    verdict = iota
	unknown         // it could not be asked
	silent          // no answer came in time
	sick            // an answer came, but no good one
	refused         // nobody is there
)

// answer is what came of asking once.
type answer struct {
	verdict verdict
	why     string // short, without an address
	err     error
}

// probe is one look at a worker: at its API, at its bootstrap server, or at both
// where they count together.
type probe struct {
	watch  *watch // for Run's goroutine alone
	worker *pd.Worker
	as     phase // when it began
	began  time.Time

	api, boot bool
	meet      bool // it is to be met if its API is well
	suspected bool // its bootstrap server is asked because of a suspicion

	answer, bootstrap answer
	took              time.Duration // of the API's answer
	agree             func() error  // of who has met the worker; nil if nobody has
}

// run asks, and returns when both answers are in.
func (p *probe) run(ctx context.Context, opt *Options) {
	var both sync.WaitGroup
	if p.boot {
		both.Go(func() {
			p.bootstrap = ask(ctx, opt, func(ctx context.Context) error {
				return bootstrap.Probe(ctx, opt.Transport, p.worker.BootstrapHost, p.worker.BootstrapPort)
			})
			if p.bootstrap.verdict == refused {
				p.bootstrap.verdict = sick // its worker may be there all the same
			}
			p.bootstrap.why = "health check: no good answer from the bootstrap server"
		})
	}
	if p.api {
		p.answer = ask(ctx, opt, func(ctx context.Context) error { return get(ctx, opt, p.worker) })
		p.took = time.Since(p.began)
	}
	if p.meet && p.answer.verdict == well {
		met := ask(ctx, opt, func(ctx context.Context) error {
			p.agree = opt.Meet(ctx, p.worker)
			return nil
		})
		if met.verdict != well { // it has panicked
			p.answer = met
		}
	}
	both.Wait()
}

// statusError is an answer that is none of 2xx.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("health is %d", int(e)) }

var errPanicked = errors.New("the probe panicked")

// get asks a worker's API.
func get(ctx context.Context, opt *Options, w *pd.Worker) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+opt.Path, http.NoBody)
	if err != nil {
		return err
	}
	w.Authorize(req.Header)
	resp, err := opt.Transport.RoundTrip(req) // follows no redirect
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return statusError(resp.StatusCode)
	}
	return nil
}

// ask runs one of the two questions within Timeout.
func ask(ctx context.Context, opt *Options, question func(context.Context) error) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, opt.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			opt.Panic(v, debug.Stack())
			a = classify(ctx, opt, errPanicked)
		}
	}()
	return classify(ctx, opt, question(ctx))
}

// classify says what an error means for the worker.
func classify(ctx context.Context, opt *Options, err error) answer {
	status, isStatus := errors.AsType[statusError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	name, isName := errors.AsType[*net.DNSError](err)
	switch {
	case err == nil:
		return answer{}
	case isStatus:
		return answer{sick, fmt.Sprintf("health check: status %d", int(status)), err}
	case pd.Exhausted(err):
		return answer{unknown, "", err} // it is this machine that has no more connections
	case errors.Is(err, syscall.ECONNREFUSED):
		return answer{refused, "refuses connections", err}
	case isAny(err, syscall.EHOSTUNREACH, syscall.ENETUNREACH):
		return answer{refused, "health check: no route", err}
	case isName && name.IsNotFound:
		return answer{refused, "health check: its name is not known", err}
	case ctx.Err() != nil:
		return answer{silent, "health check: no answer within " + opt.Timeout.String(), err}
	case isNet && timeout.Timeout():
		return answer{silent, "health check: takes no connection", err}
	default:
		return answer{sick, "health check: no usable answer", err}
	}
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
