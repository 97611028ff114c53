package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
)

// url is the entry's; one that goes keeps what its members have.
func (e *entry) url() string {
	if len(e.claims) > 0 {
		return e.claims[0].spec.URL
	}
	if len(e.members) > 0 {
		return e.members[0].URL
	}
	return ""
}

// spec is what counts: what the first source says, and what operators have changed
// of it.
func (e *entry) spec() Spec { return e.change.over(e.claims[0].spec) }

// settle makes the set follow an entry. Doing it again does nothing.
func (r *Registry) settle(e *entry) error {
	if e.move != nil {
		return nil // its role is being switched, which settles it at the end
	}
	if !e.stays() {
		r.leave(e)
		return nil
	}
	if !e.leaving.IsZero() { // the one that leaves and the one that comes are not the same
		r.takeOut(e)
		r.entries = append(r.entries, e)
		e.facts, e.refused, e.since = Facts{}, "", time.Now()
	}
	members, err := r.members(e)
	if err != nil {
		return err
	}
	return r.follow(e, members)
}

// members are the workers that an entry stands for.
func (r *Registry) members(e *entry) ([]*pd.Worker, error) {
	spec := e.spec()
	w := pd.Worker{
		ID: e.id, Role: spec.Role, URL: spec.URL, APIKey: spec.APIKey, CloseOnly: r.opt.CloseOnly,
		DPSize: e.facts.DPSize, Model: spec.Model, KVTokens: e.facts.KVTokens, PageSize: e.facts.PageSize,
		Unchecked: spec.Unchecked, Priority: spec.Priority, Cost: spec.Cost, Labels: maps.Clone(spec.Labels),
	}
	if w.Model == "" {
		w.Model = e.facts.Model
	}
	if spec.DPSize != 0 {
		w.DPSize = spec.DPSize
	}
	if w.APIKey == "" {
		w.APIKey = r.opt.APIKey
	}
	if spec.Role == pd.Prefill {
		var err error
		if w.BootstrapHost, w.BootstrapPort, err = bootstrap.Resolve(spec.URL, spec.Bootstrap); err != nil {
			return nil, err
		}
		if spec.Bootstrap == "" {
			w.BootstrapPort = e.facts.BootstrapPort
		}
	}
	if !r.opt.Ranks || w.DPSize <= 1 {
		return []*pd.Worker{&w}, nil
	}
	ranks := make([]*pd.Worker, w.DPSize)
	for rank := range ranks {
		one := w
		one.ID, one.Rank = pd.WorkerID(fmt.Sprintf("%s@%d", e.id, rank)), &rank
		ranks[rank] = &one
	}
	return ranks, nil
}

// follow puts members in the place of those that the entry has in the set. Where
// they are the same workers, what is known of them stays.
func (r *Registry) follow(e *entry, members []*pd.Worker) error {
	same := func(a, b *pd.Worker) bool {
		return a.ID == b.ID && a.Role == b.Role && a.URL == b.URL && a.Unchecked == b.Unchecked
	}
	if !slices.EqualFunc(e.members, members, same) {
		r.takeOutMembers(e)
		for _, w := range members {
			if err := r.set.Add(w); err != nil {
				r.takeOutMembers(e)
				return err
			}
			e.members = append(e.members, w)
		}
		return nil
	}
	for i, w := range members {
		if reflect.DeepEqual(e.members[i], w) {
			continue
		}
		if err := r.set.Update(w); err != nil {
			return err
		}
		e.members[i] = w
	}
	return nil
}

// leave drains an entry that is to go, and has it seen off.
func (r *Registry) leave(e *entry) {
	if e.leaving.IsZero() {
		e.leaving = time.Now().Add(r.opt.Drain)
		for _, w := range e.members {
			r.set.Drain(w.ID)
		}
	}
	if r.drained(e) {
		r.takeOut(e)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default: // it has been told already
	}
}

// takeOut ends an entry. One that a source still names is remembered as deleted.
func (r *Registry) takeOut(e *entry) {
	r.takeOutMembers(e)
	e.leaving = time.Time{}
	if len(e.claims) == 0 || !e.deleted {
		r.entries = slices.DeleteFunc(r.entries, func(other *entry) bool { return other == e })
	}
}

func (r *Registry) takeOutMembers(e *entry) {
	for _, w := range e.members {
		_ = r.set.Remove(w.ID) // which may have gone
	}
	e.members = nil
}

// Meet asks a worker for its facts and says whether it may join, see
// [health.Options].
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
	defer r.mu.Unlock()
	e := r.byID(id)
	if e == nil || !e.stays() || e.move != nil {
		return errors.New("it is on its way out")
	}
	e.refused = ""
	if err := contradiction(e.spec().Role, facts.Mode); err != nil {
		e.refused = err.Error()
		return err
	}
	e.facts = facts
	return r.settle(e)
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
		return fmt.Errorf("refused: it runs as a %s engine of a pair, and is to serve alone: see its --disaggregation-mode", is)
	}
	return fmt.Errorf("refused: it runs as a %s engine, and is to be a %s worker: see its --disaggregation-mode", is, role)
}
