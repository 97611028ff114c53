package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-pd/tandem/pd"
)

// Meet asks a worker for its facts and says whether it may join: it is the Meet of
// the health monitor's options.
func (r *Registry) Meet(ctx context.Context, w *pd.Worker) (agree func() error) {
	facts, err := ask(ctx, r.opt.Transport, w)
	if err != nil {
		return func() error { return err }
	}
	return func() error { return r.learn(w.ID, facts) }
}

// learn takes in what an engine says of itself. The error says why it may not
// join.
func (r *Registry) learn(id pd.WorkerID, facts Facts) error {
	r.mu.Lock()
	defer r.unlock()
	e := r.byID(id)
	switch {
	case e == nil || !e.stays():
		return errors.New("it is on its way out")
	case e.move != nil:
		return errors.New("its role is being switched")
	}
	err := r.agree(e, facts)
	e.refused.isError(err)
	if err == nil {
		e.met = true
	}
	return err
}

// agree has an entry be what its engine says, where that may be.
func (r *Registry) agree(e *entry, facts Facts) error {
	role, known := pairRole(facts.Mode)
	switch {
	case known && (e.lost || e.change.role != nil && facts.live):
		// An engine that may be either is what it is: one that has been switched comes
		// back as what it was when it starts anew.
		if role != e.spec().Role {
			e.become(role)
			r.save()
		}
	case e.lost:
		return errors.New(e.held.text + "; it does not say its role itself: resume or delete it")
	default:
		if err := contradiction(e.spec().Role, facts.Mode); err != nil {
			return err
		}
	}
	e.facts = facts
	if e.lost {
		e.held, e.lost = reason{}, false
	}
	err := r.settle(e)
	e.failed.isError(err)
	if err != nil {
		r.news()
	}
	return err
}

// pairRole is the role of a pair that an engine says it has.
func pairRole(mode string) (pd.Role, bool) {
	role, ok := pd.ParseRole(mode)
	return role, ok && role != pd.Regular
}

// contradiction is the error of an engine that is not what it is to be.
func contradiction(role pd.Role, mode string) error {
	is := mode
	switch mode {
	case "", role.String():
		return nil
	case "null":
		if role == pd.Regular {
			return nil
		}
		is = "whole"
	}
	if role == pd.Regular {
		return fmt.Errorf("refused: it runs as a %.20s engine of a pair, and is to serve alone: it was launched so (--disaggregation-mode), or has switched its role", is)
	}
	return fmt.Errorf("refused: it runs as a %.20s engine, and is to be a %s worker: it was launched so (--disaggregation-mode), or has switched its role", is, role)
}
