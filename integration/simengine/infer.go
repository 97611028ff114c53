package simengine

import (
	"context"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"
)

// maxBody bounds what is read of a request.
const maxBody = 1 << 30

// call is one generation request being served.
type call struct {
	l     *life
	r     *http.Request
	req   *request
	rec   *record
	began time.Time
	out   *out
	fault *Fault
	over  chan struct{} // closed when the handler is done

	mu         sync.Mutex // the frames of a stream, made and sent in one step
	endedItems int        // of an OpenAI stream
	sequence   int        // events of a stream of /v1/responses
}

// infer serves an endpoint that uses the model.
func (l *life) infer(ep endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			panic(http.ErrAbortHandler) // the client left within its body
		}
		if !l.pass() {
			panic(http.ErrAbortHandler)
		}
		req, bad := l.parse(ep, body, r.Header)
		if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); ep != epGenerate && media != "application/json" {
			bad = &malformed{"Unsupported Media Type: Only 'application/json' is allowed"}
		}
		c := &call{l: l, r: r, req: req, began: time.Now(), over: make(chan struct{})}
		c.rec = l.e.records.arrive(r, body, true)
		c.rec.update(func(rec *Record) {
			rec.Stream = req.stream
			for _, it := range req.items {
				rec.Rids = append(rec.Rids, it.rid)
				if it.room != "" {
					rec.Rooms = append(rec.Rooms, it.room)
				}
			}
		})
		c.rec.tell()
		c.fault = l.faultFor(c.rec)
		c.out = &out{c: c, w: w}
		defer c.finish()
		if !c.before() {
			c.admit(bad)
		}
		if c.out.unfinished() {
			panic(http.ErrAbortHandler)
		}
	}
}

// finish closes the record of a call that nothing else closed.
func (c *call) finish() {
	how := "finished"
	switch snap := c.rec.snapshot(); {
	case c.l.ctx.Err() != nil:
		how = "down"
	case snap.Status == 0:
		how = "gone"
	case snap.Status >= http.StatusBadRequest:
		how = "failed"
	}
	c.rec.done(0, how)
}

func (c *call) ended(how string) {
	c.rec.update(func(r *Record) {
		if r.End == "" {
			r.End = how
		}
	})
}

// admit puts a request's items into the scheduler, or refuses it.
func (c *call) admit(bad error) {
	if bad == nil {
		bad = c.req.accepts(c.l.role())
	}
	if bad == nil {
		if c.l.role() == Regular {
			c.req.sample()
		}
		for _, it := range c.req.items {
			c.prepare(it)
		}
		if bad = c.l.live.add(c.req.items); bad != nil {
			c.cancelItems()
		}
	}
	if bad != nil {
		c.refuse(bad)
		c.ended("refused")
		return
	}
	stop := c.watch()
	defer stop()
	if c.req.stream && c.req.ep == epGenerate {
		c.out.stream()
	}
	switch {
	case c.req.n > 1 && c.l.role() != Regular:
		c.hangSamples()
	case len(c.req.items) == 1:
		c.serveOne(c.req.items[0])
	default:
		c.serveBatch()
	}
}

func (c *call) cancelItems() {
	for _, it := range c.req.items {
		it.cancel(nil)
	}
}

func (c *call) prepare(it *item) {
	it.l, it.call, it.arrived, it.role = c.l, c, c.began, c.l.role()
	it.ctx, it.cancel = context.WithCancelCause(c.l.ctx)
}

// hangSamples is what n > 1 does in prefill/decode mode: one room for a primer
// and all samples, which nobody gets out of. Prefill keeps a request in flight
// for ever.
func (c *call) hangSamples() {
	defer c.cancelItems()
	for _, it := range c.req.items {
		c.l.live.remove(it) // samples have rids of their own
		if c.l.role() == Prefill {
			it.enter(stateInflight)
			continue
		}
		it.enter(stateTransfer)
		defer it.enter(stateNone)
	}
	<-c.r.Context().Done()
	c.l.pass()
}

// serveOne runs the only item in the handler.
func (c *call) serveOne(it *item) {
	defer it.cancel(nil)
	e := c.run(it)
	c.l.live.remove(it)
	c.conclude(e)
	if c.req.stream {
		c.sendEnd(it, e)
		if !e.gone {
			c.endStream()
		}
		return
	}
	if e.gone {
		return
	}
	if e.status != 0 {
		c.refuseEnd(e)
		return
	}
	c.out.json(http.StatusOK, c.answer([]end{e}))
}

// serveBatch runs every item in a goroutine of its own. The first one that
// fails answers a plain call; the others go on, as they do in the engine.
func (c *call) serveBatch() {
	type result struct {
		index int
		e     end
	}
	results := make(chan result, len(c.req.items))
	for _, it := range c.req.items {
		release := c.rec.hold()
		started := c.l.spawn(func() {
			res := result{it.index, end{gone: true}}
			defer func() {
				it.cancel(nil)
				release()
				results <- res
			}()
			res.e = c.run(it)
			c.l.live.remove(it)
			if c.req.stream {
				c.sendEnd(it, res.e)
			}
		})
		if !started {
			it.cancel(nil)
			release()
			results <- result{it.index, end{gone: true}}
		}
	}
	ends := make([]end, len(c.req.items))
	gone := false
	for range c.req.items {
		res := <-results
		ends[res.index] = res.e
		gone = gone || res.e.gone
		c.conclude(res.e)
		if res.e.status != 0 && !c.req.stream {
			c.refuseEnd(res.e)
			return
		}
	}
	if gone {
		return
	}
	if c.req.stream {
		c.endStream()
		return
	}
	c.out.json(http.StatusOK, c.answer(ends))
}

// conclude notes in the record how an item ended, if it did not end well.
func (c *call) conclude(e end) {
	switch {
	case e.gone:
		c.ended("down")
	case e.status != 0:
		c.ended("failed")
	case e.aborted:
		c.ended("aborted")
	}
}

// run takes an item through the scheduler.
func (c *call) run(it *item) end {
	c.l.generated.Add(1)
	roles := &c.l.roles
	if !roles.admit(it) {
		it.enter(stateNone)
		return it.notComputed()
	}
	defer roles.leave()
	defer it.enter(stateNone)
	if roles.broken.Load() {
		return failed(http.StatusServiceUnavailable, "The engine has to be restarted: a role switch has failed")
	}
	e, ok := c.l.checkRouting(it)
	if !ok {
		return e
	}
	progress := func(tokens int) { c.sendProgress(it, tokens) }
	switch it.role {
	case Prefill:
		e = c.l.prefillItem(it)
	case Decode:
		e = c.l.decodeItem(it, progress)
	default:
		e = c.l.regularItem(it, progress)
	}
	it.finished = time.Now()
	return e
}
