package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// The headers that say where a request should go, as net/http spells them.
const (
	headerRoutingKey   = "X-Smg-Routing-Key"
	headerTargetWorker = "X-Smg-Target-Worker"
	headerForwardedFor = "X-Forwarded-For"
	headerCookie       = "Cookie"
)

// routingKey is what keeps requests together, see [Consistent]; empty for none.
// It may be a secret.
func routingKey(req *pd.Request) string {
	if key := header(req, headerRoutingKey); key != "" {
		return key
	}
	client, _, _ := strings.Cut(header(req, headerForwardedFor), ",") // then the proxies
	if client = strings.TrimSpace(client); client != "" {
		return client
	}
	return header(req, headerCookie)
}

// header is the first value of a header, without the space around it.
func header(req *pd.Request, name string) string {
	if req == nil {
		return ""
	}
	return strings.TrimSpace(req.Header.Get(name))
}

// Targeted lets the header X-SMG-Target-Worker come before the policies of both
// roles. It is a worker's id; the other role is then left to its policy. Or it is
// two ids, one of each role, with a comma between. Or it is an index that counts
// the workers of a role, whatever their state, from 0 in the order of their URLs,
// and stands for one worker of each.
//
// Who names a worker wants that one. Where it cannot be used, is out of range or
// not known, nobody is picked, and the request fails with 503.
func Targeted(prefill, decode pools.Policy) (p, d pools.Follower) {
	t := new(targets)
	return &targeted{prefill, pd.Prefill, t}, &targeted{decode, pd.Decode, t}
}

// targeted is the policy of one role behind the header.
type targeted struct {
	pools.Policy
	role pd.Role
	*targets
}

// targets are the workers of each role, in the order of their URLs.
type targets [2]atomic.Pointer[[]slot]

// Pick implements [pools.Policy].
func (t *targeted) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	names := header(req, headerTargetWorker)
	if names == "" {
		return t.Policy.Pick(req, members)
	}
	id, ok := t.resolve(names, t.role)
	switch {
	case !ok:
		return nil
	case id == "":
		return t.Policy.Pick(req, members)
	}
	return find(members, id, 0)
}

// Chosen implements [pools.Follower].
func (t *targeted) Chosen(req *pd.Request, m *pools.Member) {
	if f, ok := t.Policy.(pools.Follower); ok {
		f.Chosen(req, m)
	}
}

// Follow implements [pools.Follower].
func (t *targeted) Follow(members []*pools.Member) {
	slots := make([]slot, len(members))
	for i, m := range members {
		slots[i] = slotOf(m)
	}
	slices.SortFunc(slots, func(a, b slot) int { return cmp.Or(cmp.Compare(a.url, b.url), cmp.Compare(a.id, b.id)) })
	t.targets[t.role].Store(&slots)
	if f, ok := t.Policy.(pools.Follower); ok {
		f.Follow(members)
	}
}

// of lists the workers of a role.
func (t *targets) of(role pd.Role) []slot {
	if slots := t[role].Load(); slots != nil {
		return *slots
	}
	return nil
}

// resolve is the worker of the role that names stand for, empty if they leave it
// open. False if one of them stands for nobody, or two for a worker of this role.
// What names nobody is so for both roles: it is found out before anything is
// taken.
func (t *targets) resolve(names string, role pd.Role) (id pd.WorkerID, ok bool) {
	own, other := t.of(role), t.of(pd.Decode-role)
	for name := range strings.SplitSeq(names, ",") {
		name := strings.TrimSpace(name)
		named := func(s slot) bool { return string(s.id) == name }
		at := slices.IndexFunc(own, named)
		if at < 0 {
			if slices.ContainsFunc(other, named) {
				continue
			}
			n, err := strconv.ParseUint(name, 10, 31)
			if err != nil || int(n) >= min(len(own), len(other)) {
				return "", false
			}
			at = int(n)
		}
		if id != "" {
			return "", false
		}
		id = own[at].id
	}
	return id, true
}
