package pd

// attempts is what the retry decision knows of a request so far.
type attempts struct {
	made    int  // attempts that count against the limit
	limit   int  // of attempts in all
	stale   bool // the one resend after a stale connection is spent
	lost    bool // the one attempt of a body that may have run is spent
	double  bool // the one resend after a duplicate rid is spent
	aborted bool // somebody asked for the request's abort
	others  bool // a worker of the failed one's role is left that was not tried
}

// verdict is what follows a failed attempt.
type verdict uint8

const (
	giveUp verdict = iota
	again          // another attempt, which counts
	resend         // the same on a fresh connection, outside the limit
)

// retry decides what follows a failed attempt that nothing was committed of.
// It is pure. A deadline, an abort, a cancelled client and an engine's refusal
// are final; a body that may have been executed runs once more at most, since
// some bodies kill the engine that runs them.
func retry(err *Error, a attempts) verdict {
	if a.aborted {
		return giveUp
	}
	if err.Kind == Stale && !a.stale {
		return resend
	}
	if err.Code == CodeDuplicateRid && (a.stale || a.made > 1) && !a.double {
		return resend // the engine has not yet let go of the attempt before
	}
	if a.made >= a.limit {
		return giveUp
	}
	switch {
	case err.Kind == Unavailable, err.Kind == Failed:
		return again
	case mayHaveRun(err.Kind) && !a.lost:
		return again
	case err.Kind == Overload && a.others:
		return again
	default:
		return giveUp
	}
}

// spend notes what v, which follows err, uses up.
func (a *attempts) spend(v verdict, err *Error) {
	switch v {
	case resend:
		a.stale = a.stale || err.Kind == Stale
		a.double = a.double || err.Code == CodeDuplicateRid
		a.made--
	case again:
		a.lost = a.lost || mayHaveRun(err.Kind)
	}
}

// mayHaveRun reports whether a worker that failed so may have run the body, and
// may have died of it.
func mayHaveRun(k Kind) bool { return k == Stale || k == Lost || k == Broken }
