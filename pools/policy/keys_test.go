package policy

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestTheRoutingKey(t *testing.T) {
	f := func(name, want string, pairs ...string) {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for i := 0; i < len(pairs); i += 2 {
				h.Add(pairs[i], pairs[i+1])
			}
			assert.Equal(t, want, routingKey(&pd.Request{Header: h}))
		})
	}
	f("nothing", "")
	f("the key first", "k", "X-SMG-Routing-Key", "k", "X-Forwarded-For", "1.2.3.4", "Cookie", "a=1")
	f("then the client's address", "1.2.3.4", "X-Forwarded-For", "1.2.3.4", "Cookie", "a=1")
	f("without the proxies", "1.2.3.4", "X-Forwarded-For", " 1.2.3.4 , 10.0.0.1, 10.0.0.2")
	f("then the cookies", "a=1; b=2", "Cookie", "a=1; b=2")
	f("never who pays", "", "Authorization", "Bearer shared")
	f("an empty key is none", "1.2.3.4", "X-SMG-Routing-Key", " ", "X-Forwarded-For", "1.2.3.4")
	f("an empty address is none", "a=1", "X-Forwarded-For", ", 10.0.0.1", "Cookie", "a=1")
	f("the first of several", "k", "X-SMG-Routing-Key", "k", "X-SMG-Routing-Key", "l")
	assert.Empty(t, routingKey(nil))
	assert.Empty(t, routingKey(&pd.Request{}))
}

func FuzzRoutingKey(f *testing.F) {
	f.Add("k", "1.2.3.4, 10.0.0.1", "a=1", "Bearer shared", "decode-1")
	f.Add("", "1.2.3.4", "", "", "0")
	f.Add(" \t", ",", "\x00\xff", "x", "decode-1,decode-2")
	f.Add("", "", "", "", "-1,")
	consistent := new(Consistent)
	_, p := Targeted(Random{}, consistent)
	set := fleet(f, 8, p)
	members := decoders(set)
	f.Fuzz(func(t *testing.T, key, address, cookie, authorization, target string) {
		req := &pd.Request{Header: http.Header{
			headerRoutingKey: {key}, headerForwardedFor: {address}, headerCookie: {cookie}, "Authorization": {authorization},
		}}
		without := &pd.Request{Header: req.Header.Clone()}
		without.Header.Del("Authorization")
		require.Equal(t, routingKey(without), routingKey(req))
		m := consistent.Pick(req, members)
		require.True(t, slices.Contains(members, m))
		if routingKey(req) != "" {
			require.Same(t, m, consistent.Pick(without, members))
		}
		req.Header.Set(headerTargetWorker, target)
		if m := p.Pick(req, members); m != nil {
			require.True(t, slices.Contains(members, m))
		}
	})
}
