package policy

import (
	"strings"

	"github.com/tandem-pd/tandem/pd"
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
