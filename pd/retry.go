package pd

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// Retry says how often and how soon a request is tried again when an attempt
// fails before the commit. The zero value makes one attempt.
type Retry struct {
	// MaxAttempts counts all attempts; 1 when 0. Two resends are outside of it:
	// that of a stale connection and that of a rid not yet let go.
	MaxAttempts int
	// The wait before attempt k+2 is InitialBackoff · Multiplier^k, at most
	// MaxBackoff, give or take the share Jitter of it. 50 ms, 1.5, 30 s and 0.2
	// when 0; a negative Jitter is none. A worker that could not be reached is
	// not waited for.
	InitialBackoff, MaxBackoff time.Duration
	Multiplier, Jitter         float64
	// Budget bounds the attempts that repeat failed ones over all requests; nil
	// for no bound.
	Budget *Budget
}

// withDefaults fills in what is zero.
func (r Retry) withDefaults() Retry {
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 1)
	r.InitialBackoff = cmp.Or(r.InitialBackoff, 50*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, 30*time.Second)
	r.Multiplier = cmp.Or(r.Multiplier, 1.5)
	r.Jitter = cmp.Or(r.Jitter, 0.2)
	return r
}

// backoff is the wait behind the given number of attempts, 1 or more.
func (r Retry) backoff(made int) time.Duration {
	wait := float64(r.InitialBackoff) * math.Pow(r.Multiplier, float64(made-1))
	wait = min(wait, float64(r.MaxBackoff))
	if r.Jitter > 0 {
		wait *= 1 + r.Jitter*(2*rand.Float64()-1)
	}
	return time.Duration(wait)
}

// attempts is what the retry decision knows of a request so far.
type attempts struct {
	began   time.Time // of the first: what the request waited for before is not the engines'
	made    int       // attempts that count against the limit
	limit   int       // of attempts in all
	stale   bool      // the one resend after a stale connection is spent
	ran     bool      // an engine may have run the body
	double  bool      // the one resend after a duplicate rid is spent
	aborted bool      // somebody asked for the request's abort
	others  bool      // a worker of the failed one's role is left that was not tried
}

// verdict is what follows a failed attempt.
type verdict uint8

const (
	giveUp    verdict = iota
	again             // another attempt, which counts, waits, and is taken from the budget
	elsewhere         // another attempt at once, which counts but was no work for an engine
	resend            // another attempt at once, outside the limit: the engine did not take the last one
)

// retry decides what follows a failed attempt that nothing was committed of.
// It is pure. A deadline, an abort, a cancelled client and an engine's refusal
// are final; a body over which an engine may have been lost runs once more at
// most, since some bodies kill the engine that runs them, and a body that may have
// run beside a worker that was not there has had that. A worker that is not there,
// or is busy, is not asked twice.
func retry(err *Error, a attempts) verdict {
	switch {
	case a.aborted, lostOver(err) && a.ran:
		return giveUp
	case err.Kind == Stale && !a.stale:
		return resend
	case err.Code == CodeDuplicateRid && (a.stale || a.made > 1) && !a.double:
		return resend // the engine has not yet let go of the attempt before
	case a.made >= a.limit:
		return giveUp
	case err.Kind == Failed, err.Kind == Stale, lostOver(err):
		return again
	case err.Kind == Unavailable && a.others:
		return elsewhere
	case err.Kind == Overload && a.others:
		return again
	default:
		return giveUp
	}
}

// spend notes what v, which follows err, uses up.
func (a *attempts) spend(v verdict, err *Error) {
	if v == resend {
		a.stale = a.stale || err.Kind == Stale
		a.double = a.double || err.Code == CodeDuplicateRid
		a.made--
	}
	a.ran = a.ran || lostOver(err) || err.Ran
}

// lostOver reports whether the engine that failed so may have run the body, and
// may have died of it.
func lostOver(err *Error) bool {
	switch err.Kind {
	case Lost, Broken, Late:
		return true
	default:
		return err.Kind == Stale && err.Ran
	}
}
