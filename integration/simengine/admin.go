package simengine

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"
)

// flushPoll is how often a flush with a timeout looks for an idle engine.
const flushPoll = 10 * time.Millisecond

// serveHealth is /health and /health_generate: 503 while the engine warms up,
// else a probe that takes its time, which a change of role holds up.
func (l *life) serveHealth(w http.ResponseWriter, r *http.Request) {
	if l.warmingUp() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if !sleep(r.Context(), l.cfg.scaled(l.cfg.HealthDelay)) || !l.roles.swap.pass(r.Context()) || !l.pass() {
		return
	}
	if l.roles.broken.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// servePing is /ping: 200 without a look at anything, once warmed up.
func (l *life) servePing(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusOK
	if l.warmingUp() {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
}

func (l *life) warmingUp() bool { return time.Since(l.started) < l.cfg.scaled(l.cfg.WarmUp) }

// serveFlush empties the prefix cache of an idle engine; with a timeout in
// seconds it waits for the engine to be idle first.
func (l *life) serveFlush(w http.ResponseWriter, r *http.Request) {
	limit, _ := strconv.ParseFloat(r.URL.Query().Get("timeout"), 64)
	if !l.flushing.CompareAndSwap(false, true) {
		writeText(w, http.StatusBadRequest, "Flush cache failed.\n")
		return
	}
	defer l.flushing.Store(false)
	until := time.Now().Add(time.Duration(limit * float64(time.Second)))
	for !l.idle() {
		if time.Now().After(until) || !sleep(r.Context(), flushPoll) {
			writeText(w, http.StatusBadRequest, "Flush cache failed.\n")
			return
		}
	}
	l.cache.flush()
	// The real answer has no content type.
	body := "Cache flushed.\nPlease check backend logs for more details. " +
		"(When there are running or waiting requests, the operation will not be performed.)\n"
	w.Header()["Content-Type"] = nil
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	io.WriteString(w, body)
}

// idle reports that nothing is in any queue or holds KV.
func (l *life) idle() bool {
	for i := range l.states {
		if l.states[i].Load() != 0 {
			return false
		}
	}
	return l.used.Load() == 0 // no KV is held back
}

// Loads counts what an engine is doing, as /v1/loads does.
type Loads struct {
	Running  int // decode, regular: generating
	Waiting  int // all queues of /v1/loads' num_waiting_reqs: prefill's bootstrap queue; decode's prealloc and transfer queues; what is held
	Inflight int // prefill: moving KV, not in Waiting
	// The queues of PD, by their names there.
	Bootstrap, Prealloc, Transfer int
	// UsedTokens is of the KV budget: a prompt that has its room, and on decode
	// all that a running request may generate.
	UsedTokens int
	Held       int // waiting until generation goes on or the role has changed
	Served     int // since the start
}

func (l *life) loads() Loads {
	at := func(s state) int { return int(l.states[s].Load()) }
	return Loads{
		Running:    at(stateRunning),
		Waiting:    at(stateHeld) + at(stateBootstrap) + at(stateForward) + at(statePrealloc) + at(stateTransfer),
		Inflight:   at(stateInflight),
		Bootstrap:  at(stateBootstrap),
		Prealloc:   at(statePrealloc),
		Transfer:   at(stateTransfer),
		UsedTokens: int(l.used.Load()),
		Held:       at(stateHeld),
		Served:     int(l.generated.Load()),
	}
}

func (l *life) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Prompt json.RawMessage `json:"prompt"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, schemaError("/v1/tokenize", err))
		return
	}
	var text string
	if json.Unmarshal(body.Prompt, &text) == nil {
		ids := Tokenize(text)
		writeJSON(w, http.StatusOK, mustJSON(map[string]any{"tokens": ids, "count": len(ids), "max_model_len": l.cfg.ContextLength}))
		return
	}
	var texts []string
	if err := json.Unmarshal(body.Prompt, &texts); err != nil {
		writeJSON(w, http.StatusBadRequest, schemaError("/v1/tokenize", err))
		return
	}
	tokens, counts := make([][]int, len(texts)), make([]int, len(texts))
	for i, t := range texts {
		tokens[i] = Tokenize(t)
		counts[i] = len(tokens[i])
	}
	writeJSON(w, http.StatusOK, mustJSON(map[string]any{"tokens": tokens, "count": counts, "max_model_len": l.cfg.ContextLength}))
}

func (l *life) serveDetokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		writeJSON(w, http.StatusBadRequest, schemaError("/v1/detokenize", err))
		return
	}
	var ids []int
	if json.Unmarshal(body.Tokens, &ids) == nil {
		writeJSON(w, http.StatusOK, mustJSON(map[string]any{"text": Detokenize(ids)}))
		return
	}
	var lists [][]int
	if err := json.Unmarshal(body.Tokens, &lists); err != nil {
		writeJSON(w, http.StatusBadRequest, schemaError("/v1/detokenize", err))
		return
	}
	texts := make([]string, len(lists))
	for i, ids := range lists {
		texts[i] = Detokenize(ids)
	}
	writeJSON(w, http.StatusOK, mustJSON(map[string]any{"text": texts}))
}
