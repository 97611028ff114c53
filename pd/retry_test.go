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
		{"one attempt of one", attempts{made: 1, limit: 1}},
		{"first of five", attempts{made: 1, limit: 5}},
		{"first of five, others left", attempts{made: 1, limit: 5, others: true}},
		{"second of five, stale spent", attempts{made: 2, limit: 5, stale: true}},
		{"second of five, may have run before", attempts{made: 2, limit: 5, lost: true, others: true}},
		{"fifth of five", attempts{made: 5, limit: 5, others: true}},
		{"aborted", attempts{made: 1, limit: 5, others: true, aborted: true}},
	}
	final := [7]verdict{}
	rows := map[Kind][7]verdict{
		Invalid: final, NoWorker: final, Refused: final, Deadline: final, Aborted: final, Cancelled: final, Internal: final,
		Overload:    {giveUp, giveUp, again, giveUp, again, giveUp, giveUp},
		Failed:      {giveUp, again, again, again, again, giveUp, giveUp},
		Unavailable: {giveUp, again, again, again, again, giveUp, giveUp},
		Stale:       {resend, resend, resend, again, resend, resend, giveUp},
		Lost:        {giveUp, again, again, again, giveUp, giveUp, giveUp},
		Broken:      {giveUp, again, again, again, giveUp, giveUp, giveUp},
	}
	for k := Invalid; k <= Internal; k++ {
		row, ok := rows[k]
		assert.True(t, ok, "no row for %s", k)
		for i, s := range states {
			assert.Equal(t, row[i], retry(&Error{Kind: k}, s.a), "%s: %s", k, s.name)
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
