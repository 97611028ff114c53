package pd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Each row is a kind; each column a state of the request.
func TestRetry(t *testing.T) {
	states := []struct {
		name string
		a    attempts
	}{
		{"one attempt of one", attempts{made: 1, limit: 1, others: true}},
		{"first of five, nobody else left", attempts{made: 1, limit: 5}},
		{"first of five, others left", attempts{made: 1, limit: 5, others: true}},
		{"second of five, stale spent", attempts{made: 2, limit: 5, stale: true, others: true}},
		{"second of five, may have run before", attempts{made: 2, limit: 5, ran: true, others: true}},
		{"both of these spent, nobody else left", attempts{made: 2, limit: 5, stale: true, ran: true}},
		{"fourth of five, all spent", attempts{made: 4, limit: 5, stale: true, ran: true, double: true, others: true}},
		{"fifth of five", attempts{made: 5, limit: 5, others: true}},
		{"aborted", attempts{made: 1, limit: 5, others: true, aborted: true}},
	}
	type row [9]verdict
	var final row
	once := row{giveUp, again, again, again, giveUp, giveUp, giveUp, giveUp, giveUp}
	rows := map[Kind]row{
		Invalid: final, NoWorker: final, Refused: final, Deadline: final, Aborted: final, Cancelled: final, Internal: final,
		Overload:    {giveUp, giveUp, again, again, again, giveUp, again, giveUp, giveUp},
		Failed:      {giveUp, again, again, again, again, again, again, giveUp, giveUp},
		Unavailable: {giveUp, giveUp, elsewhere, elsewhere, elsewhere, giveUp, elsewhere, giveUp, giveUp},
		Stale:       {resend, resend, resend, again, resend, again, again, resend, giveUp}, // before the body was written
		Lost:        once,
		Broken:      once,
		Late:        once,
	}
	for k := Invalid; k <= Internal; k++ {
		want, ok := rows[k]
		assert.True(t, ok, "no row for %s", k)
		for i, s := range states {
			assert.Equal(t, want[i], retry(&Error{Kind: k}, s.a), "%s: %s", k, s.name)
		}
	}
}

// What was written to an engine may have run there, and may have killed it.
func TestRetryOfWhatMayHaveRun(t *testing.T) {
	for name, tt := range map[string]struct {
		err  Error
		a    attempts
		want verdict
	}{
		"stale, the first time":                        {Error{Kind: Stale, Ran: true}, attempts{made: 1, limit: 5}, resend},
		"stale, and it may have run before":            {Error{Kind: Stale, Ran: true}, attempts{made: 2, limit: 5, ran: true}, giveUp},
		"lost, and it may have run before":             {Error{Kind: Lost}, attempts{made: 2, limit: 5, ran: true}, giveUp},
		"nobody there, beside one who has it":          {Error{Kind: Unavailable, Ran: true}, attempts{made: 1, limit: 5, others: true}, elsewhere},
		"the same again":                               {Error{Kind: Unavailable, Ran: true}, attempts{made: 2, limit: 5, others: true, ran: true}, elsewhere},
		"nobody there on either leg, behind a loss":    {Error{Kind: Unavailable}, attempts{made: 2, limit: 5, others: true, ran: true}, elsewhere},
		"an engine that says no and lives, behind one": {Error{Kind: Failed}, attempts{made: 2, limit: 5, ran: true}, again},
	} {
		assert.Equal(t, tt.want, retry(&tt.err, tt.a), name)
	}
}

func TestRetryOfADuplicateRid(t *testing.T) {
	err := &Error{Kind: Refused, Code: CodeDuplicateRid}
	for name, tt := range map[string]struct {
		a    attempts
		want verdict
	}{
		"of the first attempt is the client's own doing": {attempts{made: 1, limit: 5}, giveUp},
		"after a resend":                {attempts{made: 1, limit: 1, stale: true}, resend},
		"after another attempt":         {attempts{made: 2, limit: 2}, resend},
		"a second time":                 {attempts{made: 2, limit: 5, double: true}, giveUp},
		"of a request somebody aborted": {attempts{made: 2, limit: 5, aborted: true}, giveUp},
	} {
		assert.Equal(t, tt.want, retry(err, tt.a), name)
	}
}

func TestBackoffGrowsUpToItsCap(t *testing.T) {
	f := func(name string, r Retry, want ...time.Duration) {
		t.Run(name, func(t *testing.T) {
			for i, w := range want {
				assert.Equal(t, w, r.withDefaults().backoff(i+1), "behind attempt %d", i+1)
			}
		})
	}
	const ms = time.Millisecond
	f("by default", Retry{Jitter: -1}, 50*ms, 75*ms, 112500*time.Microsecond, 168750*time.Microsecond)
	f("as it is told", Retry{InitialBackoff: 10 * ms, Multiplier: 10, MaxBackoff: time.Second, Jitter: -1}, 10*ms, 100*ms, time.Second, time.Second, time.Second)
	f("from above its cap", Retry{InitialBackoff: time.Minute, MaxBackoff: time.Second, Jitter: -1}, time.Second, time.Second)
	f("not at all", Retry{InitialBackoff: 10 * ms, Multiplier: 1, Jitter: -1}, 10*ms, 10*ms, 10*ms)
	many := Retry{Jitter: -1}.withDefaults()
	assert.Equal(t, 30*time.Second, many.backoff(1_000_000), "however many there were")
}

func TestBackoffIsGiveOrTakeItsJitter(t *testing.T) {
	for _, tt := range []struct {
		r        Retry
		low, top time.Duration
	}{
		{Retry{}, 40 * time.Millisecond, 60 * time.Millisecond},
		{Retry{InitialBackoff: time.Second, Jitter: 0.5}, 500 * time.Millisecond, 1500 * time.Millisecond},
		{Retry{InitialBackoff: time.Minute, MaxBackoff: 10 * time.Second, Jitter: 0.1}, 9 * time.Second, 11 * time.Second},
	} {
		r := tt.r.withDefaults()
		seen := map[time.Duration]bool{}
		for range 1000 {
			wait := r.backoff(1)
			assert.GreaterOrEqual(t, wait, tt.low)
			assert.LessOrEqual(t, wait, tt.top)
			seen[wait] = true
		}
		assert.Greater(t, len(seen), 100, "clients that failed together do not come back together")
	}
}

func TestSpentChancesStaySpent(t *testing.T) {
	var a attempts
	a.spend(resend, &Error{Kind: Stale})
	assert.Equal(t, attempts{stale: true, made: -1}, a, "a resend is outside the limit")
	a.spend(resend, &Error{Kind: Refused, Code: CodeDuplicateRid})
	assert.Equal(t, attempts{stale: true, double: true, made: -2}, a)
	a.spend(again, &Error{Kind: Failed})
	a.spend(elsewhere, &Error{Kind: Unavailable})
	assert.False(t, a.ran, "nothing has run")
	for _, k := range []Kind{Lost, Broken, Late} {
		a := attempts{}
		a.spend(again, &Error{Kind: k})
		assert.True(t, a.ran, k.String())
	}
	a = attempts{}
	a.spend(elsewhere, &Error{Kind: Unavailable, Ran: true})
	assert.Equal(t, attempts{ran: true}, a)
}
