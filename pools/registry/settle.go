package registry

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// maxRanks bounds the data-parallel ranks of an engine that become workers.
const maxRanks = 1024

const (
	// lookEvery is how often those that leave are looked at.
	lookEvery = 100 * time.Millisecond
	// retryEvery is how often it is tried again to make members of those that could
	// not become any.
	retryEvery = 5 * time.Second
)

// Run sees workers off that have to go, and tries those again that could not be
// made members, until ctx ends. It is needed for that alone.
func (r *Registry) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
		}
		if wait := r.turn(time.Now()); wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop() // there is nothing to wait for but news
		}
	}
}

// turn does what is due, and says when to look again; 0 for not before there is
// news.
func (r *Registry) turn(now time.Time) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	leaving := false
	for _, e := range slices.Clone(r.entries) {
		if e.leaving.IsZero() || e.move != nil {
			continue
		}
		if now.Sub(e.leaving) > r.opt.Drain || r.drained(e) {
			r.takeOut(e)
		} else {
			leaving = true
		}
	}
	for _, e := range r.entries { // behind the others, whose ids they may want
		if e.stays() && e.move == nil && len(e.members) == 0 && !r.try(e) {
			wait = retryEvery
		}
	}
	if leaving {
		wait = lookEvery
	}
	return wait
}

// news has Run look soon.
func (r *Registry) news() {
	select {
	case r.wake <- struct{}{}:
	default: // it has been told already
	}
}

// keep settles an entry, or has it tried again.
func (r *Registry) keep(e *entry) {
	if !r.try(e) {
		r.news()
	}
}

// try settles an entry. It tells of what keeps that out once for as long as it
// does.
func (r *Registry) try(e *entry) bool {
	before := e.failed.text
	err := r.settle(e)
	e.failed.isError(err)
	if err != nil && e.failed.text != before {
		r.opt.Report(e.source(), e.id, err)
	}
	return err == nil
}

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
		r.takeOutMembers(e)
		e.known = known{since: time.Now()}
	}
	if r.ids[e.id] == nil {
		r.ids[e.id] = e
	}
	if r.ids[e.id] != e {
		return errTaken
	}
	members, err := r.members(e)
	if err != nil {
		return err
	}
	return r.follow(e, members)
}

// worker is what an entry stands for, its engine as a whole. On an error, which is
// that of its bootstrap server's address, that is missing.
func (r *Registry) worker(e *entry) (*pd.Worker, error) {
	spec := e.spec()
	w := &pd.Worker{
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
	if spec.Role != pd.Prefill {
		return w, nil
	}
	host, port, err := bootstrap.Resolve(spec.URL, spec.Bootstrap)
	if err != nil {
		return w, err
	}
	if spec.Bootstrap == "" {
		port = e.facts.BootstrapPort
	}
	w.BootstrapHost, w.BootstrapPort = host, port
	return w, nil
}

// members are the workers that an entry stands for in the set.
func (r *Registry) members(e *entry) ([]*pd.Worker, error) {
	w, err := r.worker(e)
	switch {
	case err != nil:
		return nil, err
	case !r.opt.Ranks || w.DPSize <= 1:
		return []*pd.Worker{w}, nil
	case w.DPSize > maxRanks:
		return nil, fmt.Errorf("it has %d data-parallel ranks, and %d can be targets", w.DPSize, maxRanks)
	}
	ranks := make([]*pd.Worker, w.DPSize)
	for rank := range ranks {
		one := *w
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
		return r.replace(e, members)
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

// replace has members begin anew, all or none. Those that were to take no work
// still do not.
func (r *Registry) replace(e *entry, members []*pd.Worker) error {
	spec := e.spec()
	out := e.out(&spec) || len(e.members) > 0 && r.draining(e)
	r.takeOutMembers(e)
	for _, w := range members {
		if err := r.set.Add(w); err != nil {
			r.takeOutMembers(e)
			return err
		}
		e.members = append(e.members, w)
		if out {
			r.set.Drain(w.ID)
		}
	}
	return nil
}

// leave drains an entry that is to go, and has it seen off.
func (r *Registry) leave(e *entry) {
	if e.leaving.IsZero() {
		e.leaving = time.Now()
		for _, w := range e.members {
			r.set.Drain(w.ID)
		}
	}
	if r.drained(e) {
		r.takeOut(e)
		return
	}
	r.news()
}

// takeOut ends an entry. One that a source still names is remembered as deleted.
func (r *Registry) takeOut(e *entry) {
	r.takeOutMembers(e)
	e.known = known{since: e.since}
	if r.ids[e.id] == e {
		delete(r.ids, e.id)
	}
	if e.deleted {
		return
	}
	delete(r.urls, e.url)
	r.entries = slices.DeleteFunc(r.entries, func(other *entry) bool { return other == e })
}

func (r *Registry) takeOutMembers(e *entry) {
	for _, w := range e.members {
		_ = r.set.Remove(w.ID) // which may have gone
	}
	e.members = nil
}

// drained reports whether the entry's members take no work and have none.
func (r *Registry) drained(e *entry) bool {
	return r.all(e, (*pools.Member).Drained)
}

// draining reports whether the entry's members take no work.
func (r *Registry) draining(e *entry) bool {
	return r.all(e, func(m *pools.Member) bool { return m.State() == pools.Draining })
}

// all reports whether is holds for all members that the entry has in the set.
func (r *Registry) all(e *entry, is func(*pools.Member) bool) bool {
	return !slices.ContainsFunc(e.members, func(w *pd.Worker) bool {
		m := r.set.Find(w.ID)
		return m != nil && !is(m)
	})
}
