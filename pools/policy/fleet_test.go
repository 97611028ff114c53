package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// decoder is decode worker i. The ids are as a command line gives them.
func decoder(i int) *pd.Worker {
	return &pd.Worker{ID: pd.WorkerID(fmt.Sprintf("decode-%d", i)), Role: pd.Decode, URL: fmt.Sprintf("http://10.0.%d.%d:30000", i/256, i%256)}
}

// fleet is one prefill and n decodes, among which p picks.
func fleet(t testing.TB, n int, p pools.Policy) *pools.Set {
	t.Helper()
	workers := []*pd.Worker{{ID: "prefill-0", Role: pd.Prefill, URL: "http://10.1.0.0:30000"}}
	for i := range n {
		workers = append(workers, decoder(i))
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(Random{}, p)})
	require.NoError(t, err)
	return set
}

// decoders are the members of a fleet among which its policy picks.
func decoders(set *pools.Set) []*pools.Member {
	return slices.DeleteFunc(set.Members(), func(m *pools.Member) bool { return m.Worker.Role != pd.Decode })
}

// send plans one sample of req, which the caller ends.
func send(t testing.TB, set *pools.Set, req *pd.Request) *pd.Plan {
	t.Helper()
	plans, err := set.Plan(t.Context(), req, 1, nil)
	require.NoError(t, err)
	return plans[0]
}

func finish(plans []*pd.Plan) {
	for _, p := range plans {
		p.End(pd.Success, pd.Success)
	}
}

// home is the decode that req goes to when little is in flight.
func home(t testing.TB, set *pools.Set, req *pd.Request) pd.WorkerID {
	t.Helper()
	plan := send(t, set, req)
	plan.End(pd.Success, pd.Success)
	return plan.Decode.Worker.ID
}

// homes are where all the requests go when little is in flight.
func homes(t testing.TB, set *pools.Set, reqs []*pd.Request) []pd.WorkerID {
	t.Helper()
	ids := make([]pd.WorkerID, len(reqs))
	for i, req := range reqs {
		ids[i] = home(t, set, req)
	}
	return ids
}

// spread is how much the decodes have in flight at most, and in the mean.
func spread(set *pools.Set) (most, mean float64) {
	members := decoders(set)
	for _, m := range members {
		held := float64(m.InFlight())
		most, mean = max(most, held), mean+held/float64(len(members))
	}
	return most, mean
}

// keyed is a request with a routing key.
func keyed(key string) *pd.Request {
	return &pd.Request{Header: http.Header{headerRoutingKey: {key}}}
}

// keys makes n requests with keys of their own.
func keys(n int) []*pd.Request {
	reqs := make([]*pd.Request, n)
	for i := range reqs {
		reqs[i] = keyed(fmt.Sprintf("session-%d", i))
	}
	return reqs
}

func request(t testing.TB, ep pd.Endpoint, body string) *pd.Request {
	t.Helper()
	req, err := pd.NewRequest(ep, []byte(body))
	require.NoError(t, err)
	return req
}

// prompt is a request to generate from a text.
func prompt(t testing.TB, text string) *pd.Request {
	t.Helper()
	body, err := json.Marshal(map[string]string{"text": text})
	require.NoError(t, err)
	return request(t, pd.Generate, string(body))
}

// prompts makes n requests whose prompts begin each in its own way.
func prompts(t testing.TB, n int) []*pd.Request {
	t.Helper()
	reqs := make([]*pd.Request, n)
	for i := range reqs {
		reqs[i] = prompt(t, fmt.Sprintf("conversation %d", i))
	}
	return reqs
}

// tokens is a prompt of so many tokens, at four bytes each.
func tokens(t testing.TB, n int) *pd.Request {
	t.Helper()
	return prompt(t, strings.Repeat("word", n))
}

// hashers runs f for the policies that keep to a ring, with n requests that each
// have a key of their own.
func hashers(t *testing.T, n int, f func(t *testing.T, build func() pools.Policy, reqs []*pd.Request)) {
	t.Helper()
	t.Run("consistent_hashing", func(t *testing.T) {
		f(t, func() pools.Policy { return new(Consistent) }, keys(n))
	})
	t.Run("prefix_hash", func(t *testing.T) {
		f(t, func() pools.Policy { return NewPrefixHash(PrefixHashOptions{}) }, prompts(t, n))
	})
}
