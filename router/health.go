package router

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// probeTimeout bounds /health_generate: an engine gives up after 20 s itself.
const probeTimeout = 30 * time.Second

// reachTimeout bounds what /readiness waits for the workers, all together.
const reachTimeout = time.Second

// alive says that the process answers.
func alive(v *visit) error {
	v.status = http.StatusOK
	r := v.c.Response()
	r.SetStatusCode(http.StatusOK)
	r.Header.SetContentType("text/plain; charset=utf-8")
	r.SetBodyString("OK")
	return nil
}

// readiness says whether a request could be served: of some model a worker in each
// role that it takes can be used, and no shutdown has begun. Other models may be
// without one: their requests get a 503 each, and those of this one are served.
func (a *App) readiness(v *visit) error {
	if a.phase.Load() != running {
		return v.notReady("draining")
	}
	if err := v.begin(); err != nil {
		return err
	}
	workers := a.cfg.Workers()
	var healthy []*pd.Worker
	for i, ok := range a.healthy(v, workers) {
		if ok {
			healthy = append(healthy, workers[i])
		}
	}
	if !a.complete(healthy) {
		return v.notReady("insufficient healthy workers")
	}
	return v.document(http.StatusOK, struct {
		Status  string `json:"status"`
		Healthy int    `json:"healthy_workers"`
		Total   int    `json:"total_workers"`
	}{"ready", len(healthy), len(workers)})
}

// complete reports whether workers have all roles that a request takes, for some
// model. One whose model is not known serves any.
func (a *App) complete(workers []*pd.Worker) bool {
	roles := []pd.Role{pd.Prefill, pd.Decode}
	if a.cfg.Regular {
		roles = []pd.Role{pd.Regular}
	}
	type place struct {
		model string
		role  pd.Role
	}
	filled := make(map[place]bool)
	for _, w := range workers {
		filled[place{w.Model, w.Role}] = true
	}
	return slices.ContainsFunc(workers, func(w *pd.Worker) bool {
		return !slices.ContainsFunc(roles, func(role pd.Role) bool {
			return !filled[place{w.Model, role}] && !filled[place{"", role}]
		})
	})
}

func (v *visit) notReady(reason string) error {
	return v.document(http.StatusServiceUnavailable, struct {
		Status string `json:"status"`
		Reason string `json:"reason"`
	}{"not ready", reason})
}

// healthy asks of every worker whether it can be used, a bounded number at a
// time.
func (a *App) healthy(v *visit, workers []*pd.Worker) []bool {
	ctx, cancel := context.WithTimeout(v.ctx, reachTimeout)
	defer cancel()
	out := make([]bool, len(workers))
	a.each(v, len(workers), func(i int) { out[i] = a.cfg.Healthy(ctx, workers[i]) })
	return out
}

// reachable reports whether a worker takes a connection.
func reachable(ctx context.Context, w *pd.Worker) bool {
	addr := w.Addr()
	if _, _, err := net.SplitHostPort(addr); err != nil { // the scheme's own port
		port := ":80"
		if strings.HasPrefix(w.URL, "https:") {
			port = ":443"
		}
		addr += port
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// probed is one worker in the answer of /health_generate.
type probed struct {
	Worker pd.WorkerID `json:"worker"`
	Role   string      `json:"role"`
	Status int         `json:"status,omitempty"`
	Error  string      `json:"error,omitempty"`
}

// healthGenerate has every worker prove that it generates, and says of each how
// that went. The answer is 200 when all of them have proved it, in every role.
// One broken worker makes it 503: whoever asks wants to hear of it, and whether
// enough are left to serve is what /readiness says.
func (a *App) healthGenerate(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	replies := a.askAll(v, enginesOf(a.cfg.Workers()), call{method: http.MethodGet, path: "/health_generate", timeout: probeTimeout})
	out := struct {
		Status  string   `json:"status"`
		Workers []probed `json:"workers"`
	}{Status: "healthy", Workers: make([]probed, 0, len(replies))}
	failed := false
	var asked []*pd.Worker
	for _, r := range replies {
		out.Workers = append(out.Workers, probed{r.worker.ID, r.worker.Role.String(), r.status, r.failure()})
		failed = failed || !r.ok()
		asked = append(asked, r.worker)
	}
	if failed || !a.complete(asked) {
		out.Status = "unhealthy"
		return v.document(http.StatusServiceUnavailable, out)
	}
	return v.document(http.StatusOK, out)
}

// document answers with a value in JSON.
func (v *visit) document(status int, value any) error {
	doc, err := json.Marshal(value)
	if err != nil {
		return err
	}
	v.json(status, doc)
	return nil
}
