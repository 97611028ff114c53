package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// DNSName is a name whose answers are workers of one role.
type DNSName struct {
	// Host is the name of a host, or _service._proto.name for SRV records.
	Host   string
	Port   uint16 // of the workers; 0 with an SRV name
	Scheme string // http or https
	Role   pd.Role
	// Bootstrap is the port of every one's bootstrap server, or none; empty if it
	// is not known.
	Bootstrap string
}

// ParseDNS reads a name as it is given to a flag: http://HOST:PORT, or
// http://_SERVICE._PROTO.NAME, or either with https. For prefills the port of
// their bootstrap servers, or none, may follow after a space. A host without a
// port has its scheme's.
func ParseDNS(text string, role pd.Role) (DNSName, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 || len(fields) > 2 {
		return DNSName{}, errors.New("want a URL, and for prefills the bootstrap port after it")
	}
	base, err := registry.ParseURL(fields[0])
	if err != nil {
		return DNSName{}, err
	}
	u, err := url.Parse(base)
	if err != nil {
		return DNSName{}, err
	}
	n := DNSName{Host: u.Hostname(), Scheme: u.Scheme, Role: role}
	switch {
	case n.srv() && u.Port() != "":
		return DNSName{}, errors.New("an SRV name brings the ports: want it without one")
	case n.srv():
	case u.Port() != "":
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return DNSName{}, errors.New("want a port from 1 to 65535")
		}
		n.Port = uint16(port)
	case u.Scheme == "https":
		n.Port = 443
	default:
		n.Port = 80
	}
	if len(fields) == 1 {
		return n, nil
	}
	if role != pd.Prefill {
		return DNSName{}, errors.New("only prefills have a bootstrap port")
	}
	if _, err := bootstrap.ParsePort(fields[1]); err != nil {
		return DNSName{}, err
	}
	n.Bootstrap = fields[1]
	return n, nil
}

// srv reports whether the name is one of SRV records.
func (n DNSName) srv() bool {
	_, rest, _ := strings.Cut(n.Host, ".")
	return strings.HasPrefix(n.Host, "_") && strings.HasPrefix(rest, "_")
}

// String is the name as ParseDNS reads it, without the bootstrap port.
func (n DNSName) String() string {
	if n.srv() {
		return n.Scheme + "://" + n.Host
	}
	return fmt.Sprintf("%s://%s", n.Scheme, net.JoinHostPort(n.Host, strconv.Itoa(int(n.Port))))
}
