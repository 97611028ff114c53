package router

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// probeTimeout bounds /health_generate: an engine gives up after 20 s itself.
const probeTimeout = 30 * time.Second

// alive says that the process answers.
func alive(v *visit) error {
	v.status = http.StatusOK
	r := v.c.Response()
	r.SetStatusCode(http.StatusOK)
	r.Header.SetContentType("text/plain; charset=utf-8")
	r.SetBodyString("OK")
	return nil
}

// readiness says whether a request could be served: a worker in each role is in
// use, and no shutdown has begun.
func (a *App) readiness(v *visit) error {
	workers := a.cfg.Workers()
	healthy, roles := 0, make(map[pd.Role]bool)
	for _, w := range workers {
		if a.cfg.Healthy(w.ID) {
			healthy++
			roles[w.Role] = true
		}
	}
	reason := ""
	switch {
	case a.phase.Load() != running:
		reason = "draining"
	case !roles[pd.Prefill] || !roles[pd.Decode]:
		reason = "insufficient healthy workers"
	}
	if reason != "" {
		return v.document(http.StatusServiceUnavailable, struct {
			Status string `json:"status"`
			Reason string `json:"reason"`
		}{"not ready", reason})
	}
	return v.document(http.StatusOK, struct {
		Status  string `json:"status"`
		Healthy int    `json:"healthy_workers"`
		Total   int    `json:"total_workers"`
	}{"ready", healthy, len(workers)})
}

// probed is one worker in the answer of /health_generate.
type probed struct {
	Worker pd.WorkerID `json:"worker"`
	Role   string      `json:"role"`
	Status int         `json:"status,omitempty"`
	Error  string      `json:"error,omitempty"`
}

// healthGenerate has every worker prove that it generates, and says of each how
// that went. The answer is 200 when all of them have proved it, in both roles.
// One broken worker makes it 503: whoever asks wants to hear of it, and whether
// a pair is left to serve is what /readiness says.
func (a *App) healthGenerate(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	replies := a.askAll(v, a.cfg.Workers(), call{method: http.MethodGet, path: "/health_generate", timeout: probeTimeout})
	out := struct {
		Status  string   `json:"status"`
		Workers []probed `json:"workers"`
	}{Status: "healthy", Workers: make([]probed, 0, len(replies))}
	failed, roles := false, make(map[pd.Role]bool)
	for _, r := range replies {
		out.Workers = append(out.Workers, probed{r.worker.ID, r.worker.Role.String(), r.status, r.failure()})
		failed = failed || !r.ok()
		roles[r.worker.Role] = true
	}
	if failed || !roles[pd.Prefill] || !roles[pd.Decode] {
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
