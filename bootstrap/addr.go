package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Host is the host of a prefill worker's URL as decode workers are told it:
// without port and credentials, an IPv6 address in brackets.
func Host(prefillURL string) (string, error) {
	u, err := url.Parse(prefillURL)
	if err != nil {
		return "", errors.New("the URL cannot be parsed") // err holds the whole URL, credentials included
	}
	if u.Hostname() == "" {
		return "", errors.New("the URL has no host")
	}
	return bracket(u.Hostname())
}

// ParsePort reads a bootstrap port: 1 to 65535, or "none" in any case, which is
// 0 and travels as null.
func ParsePort(s string) (int, error) {
	if strings.EqualFold(s, "none") {
		return 0, nil
	}
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("bootstrap port %q: want 1 to 65535, or none", s)
	}
	return int(port), nil
}

// Resolve is the bootstrap address of the prefill worker at prefillURL. at says
// where it differs from the worker's own host without a port: "", "none",
// "PORT", or "HOST:PORT" where decode reaches prefill by another name than the
// router does. Port 0 travels as null.
func Resolve(prefillURL, at string) (host string, port int, err error) {
	if host, err = Host(prefillURL); err != nil || at == "" {
		return host, 0, err
	}
	if strings.Contains(at, ":") {
		name, number, err := net.SplitHostPort(at)
		if err != nil || name == "" {
			return "", 0, fmt.Errorf("bootstrap address %q: want PORT, HOST:PORT or none", at)
		}
		if host, err = bracket(name); err != nil {
			return "", 0, err
		}
		at = number
	}
	port, err = ParsePort(at)
	return host, port, err
}

// bracket checks a host and puts an IPv6 address in brackets: prefill joins host
// and port without looking.
func bracket(host string) (string, error) {
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return "", fmt.Errorf("host %q is not an IPv6 address", host)
		}
		return "[" + ip.String() + "]", nil
	}
	if strings.ContainsAny(host, " \t\r\n/?#@[]\\\"") {
		return "", fmt.Errorf("host %q is not a name or an address", host)
	}
	return host, nil
}
