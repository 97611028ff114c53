package registry

import (
	"cmp"
	"maps"

	"github.com/tandem-pd/tandem/pd"
)

// Change is what an operator changes of a worker. What is nil stays.
type Change struct {
	Priority  *int
	Cost      *float64
	Labels    map[string]string // all of them
	Model     *string           // empty for what the engine says
	APIKey    *string           // empty for the registry's
	Unchecked *bool

	role *pd.Role // since it was switched
}

// over is spec with the change.
func (c *Change) over(spec Spec) Spec {
	set(&spec.Priority, c.Priority)
	set(&spec.Cost, c.Cost)
	set(&spec.Model, c.Model)
	set(&spec.APIKey, c.APIKey)
	set(&spec.Unchecked, c.Unchecked)
	set(&spec.Role, c.role)
	if c.Labels != nil {
		spec.Labels = maps.Clone(c.Labels)
	}
	return spec
}

// and is the change with another behind it.
func (c Change) and(next Change) Change {
	c.Priority = cmp.Or(next.Priority, c.Priority)
	c.Cost = cmp.Or(next.Cost, c.Cost)
	c.Model = cmp.Or(next.Model, c.Model)
	c.APIKey = cmp.Or(next.APIKey, c.APIKey)
	c.Unchecked = cmp.Or(next.Unchecked, c.Unchecked)
	c.role = cmp.Or(next.role, c.role)
	if next.Labels != nil {
		c.Labels = maps.Clone(next.Labels)
	}
	return c
}

func set[T any](dst, to *T) {
	if to != nil {
		*dst = *to
	}
}

// Update changes what is said of a worker, whatever its source goes on saying.
// What is known of it stays, unless it is from now on looked at or not. The errors
// are [ErrUnknown], those of a [FieldError], and why it cannot be served like that;
// then nothing has changed.
func (r *Registry) Update(id pd.WorkerID, change Change) error {
	said := change.over(Spec{})
	if err := said.check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.unlock()
	e := r.byID(id)
	if e == nil || !e.stays() {
		return ErrUnknown
	}
	before := e.change
	e.change = e.change.and(change)
	if err := r.settle(e); err != nil {
		e.change = before
		r.keep(e)
		return err
	}
	r.save()
	return nil
}
