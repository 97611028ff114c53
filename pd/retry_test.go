package pd

import (
	"testing"

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
		{"second of five, may have run before", attempts{made: 2, limit: 5, lost: true, others: true}},
		{"both of these spent, nobody else left", attempts{made: 2, limit: 5, stale: true, lost: true}},
		{"fourth of five, all spent", attempts{made: 4, limit: 5, stale: true, lost: true, double: true, others: true}},
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
		Stale:       {resend, resend, resend, again, resend, giveUp, giveUp, resend, giveUp},
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
