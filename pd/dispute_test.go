package pd

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// judged plans on one worker after the other, and notes what is said of each.
type judged struct {
	mu   sync.Mutex
	next int
	said []string
	last []*Plan
}

func (j *judged) Plan(context.Context, *Request, int, []WorkerID) ([]*Plan, error) {
	ids := []WorkerID{"a", "b", "c", "d"}
	if j.next == len(ids) {
		return nil, errors.New("nobody is left")
	}
	id := ids[j.next]
	j.next++
	note := func(o Outcome) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.said = append(j.said, string(id)+" "+o.String())
	}
	j.last = []*Plan{NewPlan(nil, NewLease(&Worker{ID: id, Role: Decode}, note, nil).OrDispute(note), nil)}
	return j.last, nil
}

// failsOn fails each attempt in a way of its own, then answers.
type failsOn struct {
	kinds []Kind
	late  bool // a failed leg ends when the request has
	ended []func()
}

func (*failsOn) Name() string                  { return "fails" }
func (*failsOn) Samples(*Request) (int, error) { return 1, nil }

func (f *failsOn) Exchange(_ context.Context, _ *Upstream, req *Request, plan *Plan) (*Response, error) {
	if req.Attempt > len(f.kinds) {
		resp := answer("yes")
		resp.Body = &endBody{ReadCloser: resp.Body, end: func(error) { plan.End(Unused, Success) }}
		return resp, nil
	}
	kind := f.kinds[req.Attempt-1]
	end := func() { plan.End(Unused, Fault) }
	if f.late {
		f.ended = append(f.ended, end)
	} else {
		end()
	}
	return nil, &Error{Stage: StageDecode, Kind: kind, Worker: plan.Decode.Worker.ID, Status: 500}
}

// A request that every worker fails is to blame itself: some bodies make any
// engine fail, and must not take the workers from the others.
func TestWhoIsBlamedWhenSeveralFail(t *testing.T) {
	f := func(name string, kinds []Kind, limit int, want ...string) {
		for _, late := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				j, d := new(judged), &failsOn{kinds: kinds, late: late}
				o := &Orchestrator{Planner: j, Dialect: d, Retry: Retry{MaxAttempts: limit, InitialBackoff: 1}}
				req, err := NewRequest(Generate, []byte(`{"text":"a"}`))
				require.NoError(t, err)
				resp, err := o.Serve(t.Context(), req)
				for _, end := range d.ended {
					end()
				}
				if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				j.mu.Lock()
				defer j.mu.Unlock()
				assert.ElementsMatch(t, want, j.said)
			})
		}
	}
	f("one, and another does it", []Kind{Failed}, 5, "a disputed", "a fault", "b success")
	f("two, and another does it", []Kind{Failed, Failed}, 5, "a disputed", "b disputed", "a fault", "b fault", "c success")
	f("one, and there is no other attempt", []Kind{Failed}, 1, "a disputed", "a fault")
	f("all that were tried", []Kind{Failed, Failed, Failed}, 3,
		"a disputed", "b disputed", "c disputed", "a unused", "b unused", "c unused")
	f("all are lost", []Kind{Lost, Lost}, 5, "a disputed", "b disputed", "a unused", "b unused")
	f("one is slow and one fails", []Kind{Late, Failed, Failed, Failed}, 2, "a disputed", "b disputed", "a fault", "b fault")
}

func TestALeaseThatIsNotDisputedIsJudgedAtOnce(t *testing.T) {
	var said []Outcome
	note := func(o Outcome) { said = append(said, o) }
	d := new(dispute)
	for _, o := range []Outcome{Success, Unreachable, Overloaded, Echo} {
		l := NewLease(&Worker{ID: "a"}, note, nil).OrDispute(note)
		l.dispute = d
		l.End(o)
	}
	NewLease(&Worker{ID: "a"}, note, nil).End(Fault)
	assert.Equal(t, []Outcome{Success, Unreachable, Overloaded, Echo, Fault}, said)
}

// What may have run the body counts, whoever was heard first.
func TestABodyThatMayHaveRunIsRunOnceMore(t *testing.T) {
	f := func(name string, fails []*Error, made int) {
		t.Run(name, func(t *testing.T) {
			o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) { return nil, fails[attempt-1] })
			o.Retry.InitialBackoff = 1
			_, err := o.serve(t, `{"text":"a"}`)
			require.NotNil(t, err)
			assert.Equal(t, made, o.planned)
		})
	}
	ran := func(k Kind, id WorkerID) *Error {
		e := failing(k, id)
		e.Ran = true
		return e
	}
	f("a stale connection that had the whole body", []*Error{ran(Stale, "a"), failing(Lost, "b")}, 2)
	f("one that had not", []*Error{failing(Stale, "a"), failing(Lost, "b"), failing(Lost, "c")}, 3)
	f("the other leg of one that was refused", []*Error{ran(Unavailable, "a"), failing(Lost, "b")}, 2)
	f("a loss, a refusal and a loss", []*Error{failing(Lost, "a"), ran(Unavailable, "b"), failing(Lost, "c")}, 3)
	f("a stale connection behind a loss", []*Error{failing(Lost, "a"), ran(Stale, "b")}, 2)
	f("two that are not there do not make a loss", []*Error{ran(Unavailable, "a"), ran(Unavailable, "b"), ran(Unavailable, "c"), failing(Refused, "d")}, 4)
	f("refused on both legs", []*Error{failing(Unavailable, "a"), failing(Lost, "b"), failing(Lost, "c")}, 3)
}
