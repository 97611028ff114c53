package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// Bounds of a DNS source.
const (
	maxAddresses  = 4096             // that one name may have
	lookupTimeout = 5 * time.Second  // of one question
	resolveEvery  = 30 * time.Second // and a tenth more or less
	// resolveSoon is the wait while some name has never answered: at start the
	// engines or the name server may be a moment late.
	resolveSoon = 2 * time.Second
)

var errNoAddress = errors.New("has no address")

// Resolver asks the name servers; a [net.Resolver] is one. It must return when
// ctx ends.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// DNS is a source of workers that are found under names. Its fields must not
// change once it runs.
type DNS struct {
	Names    []DNSName
	Resolver Resolver      // net.DefaultResolver when nil
	Every    time.Duration // the wait between two lookups of a name; 30 s when 0
	// Report, if not nil, is called on Run's goroutine when a name fails that did
	// not, or in another way, and when one no longer does: with all that is wrong
	// then, nil for nothing.
	Report func(err error)
}

// answer is what a name answered last.
type answer struct {
	at  []netip.AddrPort // sorted, each once; of the last lookup that did well
	err error            // of the latest
}

// Name is "dns".
func (*DNS) Name() string { return "dns" }

// Run applies the workers of all names when those of one have changed. A name
// that fails, or has no address, keeps the workers that it had; one that has not
// answered yet has none, and does not hold up the others. Run returns nil when ctx
// has ended.
func (d *DNS) Run(ctx context.Context, apply func([]registry.Spec)) error {
	known := make([]answer, len(d.Names))
	var wrong trouble
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		latest := d.ask(ctx)
		if ctx.Err() != nil {
			return nil // and what failed did so because of that
		}
		changed := false
		for i, a := range latest {
			known[i].err = a.err
			if a.err == nil && !slices.Equal(known[i].at, a.at) {
				known[i].at, changed = a.at, true
			}
		}
		specs, kind, err := d.list(known)
		wrong.now(err, kind, d.Report)
		if changed {
			apply(specs)
		}
		timer.Reset(d.pause(known))
	}
}

// pause is the wait until the next lookups, with some chance so that routers that
// were started together do not stay together.
func (d *DNS) pause(known []answer) time.Duration {
	every := cmp.Or(d.Every, resolveEvery)
	if slices.ContainsFunc(known, func(a answer) bool { return a.at == nil }) {
		every = min(every, resolveSoon)
	}
	return every*9/10 + rand.N(every/5+1)
}

// ask looks all names up, at the same time: they are few, and one whose server is
// away must not make the others late.
func (d *DNS) ask(ctx context.Context) []answer {
	answers := make([]answer, len(d.Names))
	var wg sync.WaitGroup
	for i, name := range d.Names {
		wg.Go(func() {
			defer func() {
				if value := recover(); value != nil {
					answers[i] = answer{err: fmt.Errorf("%s: panic: %v", name, value)}
				}
			}()
			at, err := d.resolve(ctx, name)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			answers[i] = answer{at, err}
		})
	}
	wg.Wait()
	return answers
}

// resolve is where the workers of a name are: everywhere that it says, or an
// error. A host that its SRV records name and that does not exist is one that has
// gone, and makes no error while others are there.
func (d *DNS) resolve(ctx context.Context, name DNSName) ([]netip.AddrPort, error) {
	var at []netip.AddrPort
	if !name.srv() {
		addrs, err := d.addresses(ctx, name.Host)
		if err != nil {
			return nil, err
		}
		at = join(at, addrs, name.Port)
	} else {
		targets, err := d.targets(ctx, name.Host)
		if err != nil {
			return nil, err
		}
		byHost := map[string][]netip.Addr{}
		for _, t := range targets {
			addrs, asked := byHost[t.Target]
			if !asked {
				addrs, err = d.addresses(ctx, t.Target)
				if err != nil && !isNotFound(err) {
					return nil, err
				}
				byHost[t.Target] = addrs
			}
			if at = join(at, addrs, t.Port); len(at) > maxAddresses {
				break
			}
		}
	}
	if len(at) > maxAddresses {
		return nil, fmt.Errorf("has more than %d addresses", maxAddresses)
	}
	if len(at) == 0 {
		return nil, errNoAddress
	}
	slices.SortFunc(at, netip.AddrPort.Compare)
	return slices.Compact(at), nil
}

// join adds the addresses that a worker can be at, with the port.
func join(at []netip.AddrPort, addrs []netip.Addr, port uint16) []netip.AddrPort {
	for _, a := range addrs {
		// A zone is meant for this machine alone; the unspecified address is how
		// some servers say that they do not want to answer.
		if a = a.Unmap(); a.IsValid() && a.Zone() == "" && !a.IsUnspecified() {
			at = append(at, netip.AddrPortFrom(a, port))
		}
	}
	return at
}

func (d *DNS) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return d.resolver().LookupNetIP(ctx, "ip", host)
}

// targets are the records of an SRV name, less those that say that there is
// nothing.
func (d *DNS) targets(ctx context.Context, name string) ([]*net.SRV, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	_, records, err := d.resolver().LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, err
	}
	if len(records) > maxAddresses {
		return nil, fmt.Errorf("has more than %d records", maxAddresses)
	}
	return slices.DeleteFunc(records, func(r *net.SRV) bool { return r.Target == "." || r.Port == 0 }), nil
}

func (d *DNS) resolver() Resolver {
	if d.Resolver == nil {
		return net.DefaultResolver
	}
	return d.Resolver
}

// list is every worker that is known, in the order of the names, and what is
// wrong with them: of which kind, and in full. An address that two names have is
// a worker of the first.
func (d *DNS) list(known []answer) (specs []registry.Spec, kind string, err error) {
	var errs []error
	wrong := func(name DNSName, what string, err error) {
		errs = append(errs, err)
		kind += fmt.Sprintf("%s %s %s\n", name.Role, name, what)
	}
	roles := map[string]pd.Role{} // by URL
	for i, name := range d.Names {
		if known[i].err != nil {
			wrong(name, kindOf(known[i].err), known[i].err)
		}
		contested := false
		for _, at := range known[i].at {
			s := name.worker(at)
			role, twice := roles[s.URL]
			if twice && role != s.Role && !contested {
				wrong(name, s.URL, fmt.Errorf("%s: %s is a %s worker by another name", name, s.URL, role))
				contested = true
			}
			if !twice {
				roles[s.URL] = s.Role
				specs = append(specs, s)
			}
		}
	}
	return specs, kind, errors.Join(errs...)
}

// worker is the one at that address.
func (n DNSName) worker(at netip.AddrPort) registry.Spec {
	return registry.Spec{
		URL:       n.Scheme + "://" + at.String(),
		Role:      n.Role,
		Bootstrap: n.Bootstrap,
		Priority:  registry.DefaultPriority,
		Cost:      registry.DefaultCost,
	}
}

// kindOf says how a lookup failed in words that stay the same from one to the
// next: an error may hold the port that the question was sent from.
func kindOf(err error) string {
	asked, isAsked := errors.AsType[*net.DNSError](err)
	switch {
	case isNotFound(err):
		return "no such name"
	case errors.Is(err, context.DeadlineExceeded) || isAsked && asked.IsTimeout:
		return "no answer"
	case isAsked:
		return "failed"
	default:
		return err.Error()
	}
}

func isNotFound(err error) bool {
	asked, ok := errors.AsType[*net.DNSError](err)
	return ok && asked.IsNotFound
}
