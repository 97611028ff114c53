package health

import (
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

const (
	// soon is the first wait of a back-off, and what a suspicion shortens a wait to.
	soon = time.Second
	// startPause is the longest wait between the probes of a worker that starts:
	// 5 s at most with the jitter, so that it joins within seconds.
	startPause = 4500 * time.Millisecond
	// shortly is how long before a probe a sign of life still excuses its silence
	// where there is cause for suspicion; the interval otherwise.
	shortly = time.Second
	// weighed is after how long a bad answer says no more than silence: an engine
	// that has waited in vain for its scheduler is busy, one that ends says so at once.
	weighed = 10 * time.Second
)

// phase is what a worker's probes have come to. A member's state shows less of
// it: draining hides the rest.
type phase uint8

const (
	starting phase = iota // has not served yet
	serving
	out // has served, and does not
)

// watch is what is known of an engine besides its members' states.
type watch struct {
	engine engine
	round  uint64 // in which it was last seen among the members
	phase  phase
	since  time.Time     // when it was first seen
	next   time.Time     // when it is due
	pause  time.Duration // the wait after the next probe, while it does not serve

	probing bool // its API is being asked
	asking  bool // its bootstrap server is, by itself
	queued  bool // something is due but has no place; Bound has been told
	urgent  bool // there is news since the last probe began: the next comes soon
	overdue bool

	good, bad int  // probes in a row
	explicit  bool // of the bad ones, some were more than silence
	kept      bool // Kept has been told
	blamed    bool // its bootstrap server went silent when decode workers lost it

	ask       time.Time // when its bootstrap server is due, zero if it is not
	asked     time.Time // when that last has been asked
	suspected bool      // it is due because of a suspicion
}

func newWatch(e engine, now time.Time) *watch {
	w := &watch{engine: e, since: now, next: now, pause: soon}
	switch e[0].State() {
	case pools.Ready, pools.Busy, pools.Broken:
		w.phase = serving
	case pools.Dead:
		w.phase = out
	}
	return w
}

// hasBootstrap reports whether there is a bootstrap server to ask.
func (w *watch) hasBootstrap() bool {
	return w.engine.worker().Role == pd.Prefill && w.engine.worker().BootstrapPort != 0
}

// questions appends what is to be asked, and when.
func (w *watch) questions(to []question) []question {
	if !w.probing {
		to = append(to, question{w, true, w.next})
	}
	if !w.asking && !w.ask.IsZero() {
		to = append(to, question{w, false, w.ask})
	}
	return to
}

// hurry makes the next probe one that is sent within a second.
func (w *watch) hurry(now time.Time) {
	w.urgent = true
	if at := now.Add(jitter(soon)); at.Before(w.next) {
		w.next = at
	}
}

// backOff waits for longer each time, up to limit.
func (w *watch) backOff(now time.Time, limit time.Duration) {
	wait := min(w.pause, limit)
	w.next, w.pause = now.Add(jitter(wait)), 2*wait
}

// jitter keeps many workers, and many routers, from being in step: ±10 %.
func jitter(d time.Duration) time.Duration {
	if d < 10 {
		return d
	}
	return d - d/10 + rand.N(d/5)
}

// notice takes in what became known in other ways than by probes.
func (r *round) notice(w *watch, now time.Time) {
	suspected := w.engine.suspected() // before the state, which changes first
	if w.phase == serving && w.engine.dead() {
		w.phase, w.good, w.pause = out, 0, soon
		w.hurry(now)
	}
	switch {
	case !suspected:
	case w.phase == serving && w.hasBootstrap():
		// Decode workers say that they lost it. Asked at once, but no more than
		// once a second however many say so.
		w.suspected, w.ask = true, now
		if next := w.asked.Add(soon); next.After(now) {
			w.ask = next
		}
	default:
		w.hurry(now)
	}
	if w.phase == starting && !w.overdue && now.Sub(w.since) >= r.opt.StartupTimeout {
		w.overdue = true
		w.engine.overdue("has not served for " + r.opt.StartupTimeout.String())
	}
	if due := !w.probing && !w.next.After(now); due && w.hasBootstrap() && !r.opt.RequireBootstrap && w.ask.IsZero() {
		w.ask = w.next // by itself, so that neither waits for the other
	}
}

// judge draws the conclusions of a probe.
func (r *round) judge(p *probe, now time.Time) {
	w := p.watch
	if p.boot {
		w.asked = now
		r.reached(p, now)
		if w.suspected { // others said so meanwhile
			w.ask = now.Add(soon)
		}
	}
	if !p.api {
		w.asking = false
		return
	}
	w.probing = false
	a := p.answer
	if a.verdict == sick && p.took >= weighed {
		a.verdict = silent
	}
	if p.boot && a.verdict == well { // it is part of the worker's health
		a = p.bootstrap
	}
	r.opt.Probed(p.worker, p.took, a.err)
	if a.verdict == well && p.as != w.phase {
		a.verdict = unknown // it was asked before it went
	}
	if a.verdict == well && p.agree != nil {
		if err := p.agree(); err != nil {
			a = answer{sick, err.Error(), err}
		}
	}
	switch w.phase {
	case serving:
		r.judgeServing(w, a, p.began, now)
	case starting:
		r.judgeStarting(w, a, now)
	case out:
		r.judgeOut(w, a, now)
	}
	if w.urgent {
		w.hurry(now)
	}
}

func (r *round) judgeStarting(w *watch, a answer, now time.Time) {
	if a.verdict == well {
		r.join(w, now)
		return
	}
	limit := startPause
	if w.overdue {
		limit = r.opt.Interval
	} else if a.verdict != unknown {
		w.engine.down(a.why)
	}
	w.backOff(now, limit)
}

func (r *round) judgeOut(w *watch, a answer, now time.Time) {
	switch a.verdict {
	case well:
		w.good++
		w.pause = soon
		if w.good >= r.opt.Successes {
			r.join(w, now)
			return
		}
	case unknown:
	default:
		w.good = 0
		w.engine.down(a.why)
	}
	w.backOff(now, r.opt.Interval)
}

// join says that w serves.
func (r *round) join(w *watch, now time.Time) {
	w.phase = serving
	w.engine.up()
	r.well(w, now)
}

// well starts a new count of failures.
func (r *round) well(w *watch, now time.Time) {
	w.bad, w.explicit, w.kept, w.blamed = 0, false, false, false
	w.next = now.Add(jitter(r.opt.Interval))
}

func (r *round) judgeServing(w *watch, a answer, began, now time.Time) {
	lately := r.opt.Interval
	if w.blamed {
		lately = shortly
	}
	switch {
	case a.verdict == refused:
		r.leave(w, a.why, now)
		return
	case a.verdict == well, a.verdict == silent && w.engine.worksSince(began.Add(-lately)):
		r.well(w, now) // or busy, but not dead
		return
	}
	w.next = now.Add(jitter(r.opt.Interval))
	if w.blamed { // silence all around: not one that is merely busy
		w.hurry(now)
	}
	if a.verdict == unknown {
		return
	}
	w.bad++
	w.explicit = w.explicit || a.verdict != silent
	switch {
	case w.bad < r.opt.Failures:
	case w.explicit || !r.set.Last(w.engine[0]):
		r.leave(w, a.why, now)
	case !w.kept:
		w.kept = true
		r.opt.Kept(w.engine.worker(), a.why)
	}
}

// leave says that w does not serve any more.
func (r *round) leave(w *watch, why string, now time.Time) {
	w.phase, w.good, w.pause = out, 0, soon
	w.engine.down(why)
	w.backOff(now, r.opt.Interval)
}

// reached notes whether a bootstrap server has answered. A worker that decode
// workers had trouble with is blamed when its server has gone silent since.
func (r *round) reached(p *probe, now time.Time) {
	w, before := p.watch, p.watch.engine[0].Reach()
	switch {
	case p.bootstrap.verdict == unknown:
	case p.bootstrap.verdict == well:
		w.engine.setReach(pools.ReachUp)
		if before == pools.ReachDown {
			r.opt.Unreached(p.worker, nil)
		}
	case before != pools.ReachDown:
		w.engine.setReach(pools.ReachDown)
		r.opt.Unreached(p.worker, p.bootstrap.err)
		if (p.suspected || w.suspected) && before == pools.ReachUp {
			w.engine.blame()
			w.next, w.urgent, w.blamed = now, true, true
		}
	}
}
