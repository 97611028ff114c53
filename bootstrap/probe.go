package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// maxHealthBody bounds what is read of a health answer, in bytes.
const maxHealthBody = 4 << 10

// Probe asks a bootstrap server for its health, as decode workers do; nil means
// that it answered 200. host may be an IPv6 address in brackets. It shows that
// the prefill worker's HTTP process lives, not that its scheduler does. ctx
// bounds the wait.
func Probe(ctx context.Context, rt http.RoundTripper, host string, port int) error {
	if port == 0 {
		return errors.New("bootstrap server: its port is not known")
	}
	addr := net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", http.NoBody)
	if err != nil {
		return fmt.Errorf("bootstrap server %s: %w", addr, err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("bootstrap server %s: %w", addr, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxHealthBody)); err != nil {
		return fmt.Errorf("bootstrap server %s: %w", addr, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("bootstrap server %s: health is %d", addr, resp.StatusCode)
	}
	return nil
}
