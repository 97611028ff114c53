package policy

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Targeted lets the header X-SMG-Target-Worker come before the policies of both
// roles. It is a worker's id; the other role is then left to its policy. Or it is
// two ids, one of each role, with a comma between. Or it is an index that counts
// the workers of a role, whatever their state, from 0 in the order of their URLs,
// and stands for one worker of each.
//
// Who names a worker wants that one. Where it cannot be used, is out of range or
// not known, nobody is picked, and the request fails with 503.
func Targeted(prefill, decode pools.Policy) (p, d pools.Follower) {
	one, other := newDirectory(), newDirectory()
	return &targeted{prefill, one, other, true}, &targeted{decode, other, one, true}
}

// TargetedRegular is [Targeted] for a pool of whole engines, where the header
// names one worker, by its id or its index.
func TargetedRegular(p pools.Policy) pools.Follower {
	return &targeted{p, newDirectory(), newDirectory(), false}
}

// targeted is the policy of one role behind the header.
type targeted struct {
	pools.Policy
	own, other *directory
	paired     bool // there is another role
}

// directory is where the workers of a role are looked up.
type directory = atomic.Pointer[lineup]

func newDirectory() *directory {
	d := new(directory)
	d.Store(newLineup(nil))
	return d
}

// Pick implements [pools.Policy].
func (t *targeted) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	names := header(req, headerTargetWorker)
	if names == "" {
		return t.Policy.Pick(req, members)
	}
	place, m, ok := t.resolve(names)
	switch {
	case !ok:
		return nil
	case m == nil:
		return t.Policy.Pick(req, members)
	}
	return find(members, m.Worker.ID, place)
}

// Chosen implements [pools.Follower].
func (t *targeted) Chosen(req *pd.Request, m *pools.Member) {
	if f, ok := t.Policy.(pools.Follower); ok {
		f.Chosen(req, m)
	}
}

// Learned implements [pools.Learner].
func (t *targeted) Learned(req *pd.Request, w pd.WorkerID, prompt, cached int) {
	if l, ok := t.Policy.(pools.Learner); ok {
		l.Learned(req, w, prompt, cached)
	}
}

// Follow implements [pools.Follower].
func (t *targeted) Follow(members []*pools.Member) {
	t.own.Store(newLineup(members))
	if f, ok := t.Policy.(pools.Follower); ok {
		f.Follow(members)
	}
}

// resolve is the worker of this role that names stand for, nil if they leave it
// open, and its place in the pool. False if one of them stands for nobody, or for
// somebody who does not serve, or two for workers of one role. That is so for both
// roles: it is found out before anything is taken, and at the first try.
func (t *targeted) resolve(names string) (place int, m *pools.Member, ok bool) {
	own, other := t.own.Load(), t.other.Load()
	var theirs *pools.Member
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		at, mine := own.places[pd.WorkerID(name)]
		there, yours := other.places[pd.WorkerID(name)]
		if !mine && !yours {
			n, err := strconv.ParseUint(name, 10, 31)
			i := int(n)
			mine, yours = err == nil && i < len(own.byURL), err == nil && i < len(other.byURL)
			if !mine || !yours && t.paired {
				return 0, nil, false
			}
			at = own.byURL[i]
			if yours {
				there = other.byURL[i]
			}
		}
		if mine && m != nil || yours && theirs != nil {
			return 0, nil, false
		}
		if mine {
			place, m = at, own.members[at]
		}
		if yours {
			theirs = other.members[there]
		}
	}
	return place, m, (m == nil || m.Serves()) && (theirs == nil || theirs.Serves())
}
