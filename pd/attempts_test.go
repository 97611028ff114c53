package pd

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServeAttempts(t *testing.T) {
	tests := []struct {
		name    string
		limit   int
		fails   []*Error // what each attempt comes to; a further one answers
		made    int
		err     Kind // of the answer, when not all attempts were spent
		ok      bool
		fresh   []bool
		avoided [][]WorkerID
	}{
		{"the first answers", 5, nil, 1, 0, true, []bool{false}, [][]WorkerID{nil}},
		{"a limit of one by default", 0, []*Error{failing(Failed, "a")}, 1, Failed, false, []bool{false}, [][]WorkerID{nil}},
		{
			"failed workers are avoided from then on", 5,
			[]*Error{failing(Failed, "a"), failing(Unavailable, "b")},
			3, 0, true,
			[]bool{false, false, false},
			[][]WorkerID{nil, {"a"}, {"a", "b"}},
		},
		{
			"a stale connection is resent on a fresh one, beyond the limit, blaming nobody", 1,
			[]*Error{failing(Stale, "a")},
			2, 0, true,
			[]bool{false, true},
			[][]WorkerID{nil, {"a"}},
		},
		{"but once", 1, []*Error{failing(Stale, "a"), failing(Stale, "a")}, 2, Stale, false, []bool{false, true}, [][]WorkerID{nil, {"a"}}},
		{"a body that may have run runs once more", 5, []*Error{failing(Lost, "a"), failing(Lost, "b")}, 2, Lost, false, []bool{false, false}, [][]WorkerID{nil, {"a"}}},
		{"however it was lost", 5, []*Error{failing(Broken, "a"), failing(Broken, "b")}, 2, Broken, false, []bool{false, false}, [][]WorkerID{nil, {"a"}}},
		{"however late it was", 5, []*Error{failing(Late, "a"), failing(Lost, "b")}, 2, Lost, false, []bool{false, false}, [][]WorkerID{nil, {"a"}}},
		{
			"both of a pair that failed together are avoided", 5,
			[]*Error{{Kind: Lost, Worker: "a", Avoid: []WorkerID{"p", "d"}, Status: 500}, failing(Failed, "b")},
			3, 0, true,
			[]bool{false, false, false},
			[][]WorkerID{nil, {"p", "d"}, {"p", "d", "b"}},
		},
		{
			"a stale connection on the way changes nothing for the others", 5,
			[]*Error{failing(Failed, "a"), failing(Stale, "b"), failing(Failed, "c")},
			4, 0, true,
			[]bool{false, false, true, true},
			[][]WorkerID{nil, {"a"}, {"a", "b"}, {"a", "b", "c"}},
		},
		{"a failure of nobody's avoids nobody", 5, []*Error{failing(Failed, "")}, 2, 0, true, []bool{false, false}, [][]WorkerID{nil, nil}},
		{"a refusal is final", 5, []*Error{failing(Refused, "a")}, 1, Refused, false, []bool{false}, [][]WorkerID{nil}},
		{"a deadline is final", 5, []*Error{failing(Deadline, "a")}, 1, Deadline, false, []bool{false}, [][]WorkerID{nil}},
		{
			"five and no more", 5,
			[]*Error{failing(Failed, "1"), failing(Failed, "2"), failing(Failed, "3"), failing(Failed, "4"), failing(Failed, "5")},
			5, Failed, false,
			[]bool{false, false, false, false, false},
			[][]WorkerID{nil, {"1"}, {"1", "2"}, {"1", "2", "3"}, {"1", "2", "3", "4"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
					if attempt <= len(tt.fails) {
						return nil, tt.fails[attempt-1]
					}
					return answer("yes"), nil
				})
				o.Retry.MaxAttempts = tt.limit
				text, err := o.serve(t, `{"text":"a"}`)
				if tt.ok {
					require.Nil(t, err)
					assert.Equal(t, "yes", text)
					assert.Equal(t, 1, o.commits)
				} else {
					require.NotNil(t, err)
					assert.Equal(t, tt.err, err.Kind)
					assert.Zero(t, o.commits)
				}
				o.over(t)
				assert.Equal(t, tt.made, o.reports[0].Attempts)
				assert.Equal(t, tt.made, o.planned)
				assert.Len(t, o.retries, tt.made-1)
				assert.Equal(t, tt.fresh, o.fresh)
				assert.Equal(t, tt.avoided, o.avoided)
				assert.Equal(t, err, o.reports[0].Err)
			})
		})
	}
}

// pool is an Orchestrator's Others over workers that all take work.
func pool(workers ...*Worker) func(*Request, Role, []WorkerID) bool {
	return func(_ *Request, role Role, avoid []WorkerID) bool {
		return slices.ContainsFunc(workers, func(w *Worker) bool {
			return w.Role == role && !slices.Contains(avoid, w.ID)
		})
	}
}

func TestABusyOrAbsentWorkerIsLeftForAnother(t *testing.T) {
	three := pool(&Worker{ID: "prefill-1", Role: Prefill}, &Worker{ID: "prefill-2", Role: Prefill}, &Worker{ID: "decode-1", Role: Decode})
	for _, tt := range []struct {
		name   string
		busy   Stage
		others func(*Request, Role, []WorkerID) bool
		made   int
	}{
		{"while one of its role is left", StagePrefill, three, 2},
		{"but not for one of the other role", StageDecode, three, 1},
		{"while the limit allows, where it is not known who is left", StagePrefill, nil, 5},
	} {
		for _, kind := range []Kind{Overload, Unavailable} {
			t.Run(kind.String()+": "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
						busy := WorkerID(fmt.Sprintf("%s-%d", tt.busy, attempt))
						return nil, &Error{Kind: kind, Stage: tt.busy, Worker: busy, Status: 429, Body: []byte("{}"), RetryAfter: "7"}
					})
					o.Others = tt.others
					_, err := o.serve(t, `{"text":"a"}`)
					require.NotNil(t, err)
					assert.Equal(t, [3]any{429, "{}", "7"}, [3]any{err.Status, string(err.Body), err.RetryAfter}, "passed on as it was")
					o.over(t)
					assert.Equal(t, tt.made, o.reports[0].Attempts)
				})
			})
		}
	}
}

// A client's own rid travels with every attempt, so that the next one waits for
// the engines to forget the one before.
func TestRetryWithAClientsRidWaitsForTheAttemptBefore(t *testing.T) {
	f := func(name, body string, held, want time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(func(attempt int, req *Request, _ *Plan) (*Response, error) {
					if attempt > 1 {
						return answer("yes"), nil
					}
					h := req.Hold(workerA, []string{"mine"})
					time.AfterFunc(held, h.Release)
					return nil, failing(Unavailable, "b")
				})
				start := time.Now()
				_, err := o.serve(t, body)
				require.Nil(t, err)
				assert.Equal(t, want, time.Since(start))
				time.Sleep(held)
				synctest.Wait()
				o.over(t)
			})
		})
	}
	f("as long as it takes", `{"text":"a","rid":"mine"}`, 300*time.Millisecond, 300*time.Millisecond)
	f("two seconds at most", `{"text":"a","rid":"mine"}`, time.Minute, ridSettle)
	f("a list of rids too", `{"text":["a"],"rid":["mine"]}`, 300*time.Millisecond, 300*time.Millisecond)
	f("not for a rid of ours", `{"text":"a"}`, 300*time.Millisecond, 0)
}

// An engine that still holds the attempt before says nothing of the request, so
// it is not what the client is told; and it is not asked again where another is.
func TestADuplicateRidOfOursIsNotTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twice := func(id WorkerID) *Error {
			return &Error{Kind: Refused, Code: CodeDuplicateRid, Worker: id, Status: 400}
		}
		fails := []*Error{failing(Failed, "a"), twice("b"), twice("c")}
		o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) { return nil, fails[attempt-1] })
		_, err := o.serve(t, `{"text":"a","rid":"mine"}`)
		require.Error(t, err)
		assert.Equal(t, Failed, AsError(err).Kind)
		assert.Equal(t, [][]WorkerID{nil, {"a"}, {"a", "b"}}, o.avoided)
	})
}

func TestDuplicateRidAfterAResendIsNotFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := []*Error{failing(Stale, "a"), {Kind: Refused, Code: CodeDuplicateRid, Worker: "a", Status: 400}}
		o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
			if attempt <= len(fails) {
				return nil, fails[attempt-1]
			}
			return answer("yes"), nil
		})
		o.Retry.MaxAttempts = 1
		text, err := o.serve(t, `{"text":"a","rid":"mine"}`)
		require.Nil(t, err)
		assert.Equal(t, "yes", text)
		assert.Equal(t, 3, o.planned)
		o.over(t)
	})
}

func TestAbortedRequestIsNotTriedAgain(t *testing.T) {
	f := func(name string, abort func(o *orchTest, req *Request)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(nil)
				o.exchange = func(_ int, req *Request, _ *Plan) (*Response, error) {
					abort(o, req)
					return nil, failing(Unavailable, "a")
				}
				_, err := o.serve(t, `{"text":"a","rid":"mine"}`)
				require.NotNil(t, err)
				assert.Equal(t, 1, o.planned)
				time.Sleep(time.Minute)
				synctest.Wait()
				o.over(t)
			})
		})
	}
	f("aborted while it runs", func(o *orchTest, _ *Request) { o.live.mark("mine", false) })
	f("aborted while the next attempt waits", func(o *orchTest, req *Request) {
		h := req.Hold(workerA, []string{"mine"})
		time.AfterFunc(100*time.Millisecond, func() { o.live.mark("mine", false) })
		time.AfterFunc(200*time.Millisecond, h.Release)
	})
}
