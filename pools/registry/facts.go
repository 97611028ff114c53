package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/tandem-pd/tandem/pd"
)

// What is taken of an engine's description, in bytes: at most so much of it, and a
// name no longer than that.
const (
	maxInfo = 8 << 20
	maxName = 1 << 10
)

// Facts are what an engine says of itself. What it does not say is zero.
type Facts struct {
	Model string // its served name, else the path of the model
	// Mode is the role that it has now, as --disaggregation-mode spells it: prefill,
	// decode, or null for a whole engine.
	Mode string
	// live says that the engine says so of the present, and not of its launch.
	live          bool
	DPSize        int
	KVTokens      int
	PageSize      int
	BootstrapPort int
	Version       string
}

// serverInfo is the part of an engine's /server_info that is read.
type serverInfo struct {
	ServedName    *string `json:"served_model_name"`
	ModelPath     string  `json:"model_path"`
	Mode          *string `json:"disaggregation_mode"`
	DPSize        int     `json:"dp_size"`
	KVTokens      int     `json:"max_total_num_tokens"`
	PageSize      int     `json:"page_size"`
	BootstrapPort int     `json:"disaggregation_bootstrap_port"`
	Version       string  `json:"version"`
	States        []struct {
		Mode *string `json:"disaggregation_mode"`
	} `json:"internal_states"`
}

// modelInfo is the part of an engine's /model_info that is read.
type modelInfo struct {
	ServedName *string `json:"served_model_name"`
	ModelPath  string  `json:"model_path"`
}

// ask has an engine describe itself. An engine that has no such endpoint, or does
// not open it to us, has no facts. The error, of one that cannot answer now, holds
// no address.
func ask(ctx context.Context, rt http.RoundTripper, w *pd.Worker) (Facts, error) {
	var server serverInfo
	if err := get(ctx, rt, w, &server, "/server_info", "/get_server_info"); err != nil {
		return Facts{}, err
	}
	mode, live := server.mode()
	f := Facts{
		Model: name(server.ServedName, server.ModelPath), Mode: mode, live: live, DPSize: max(server.DPSize, 0),
		KVTokens: max(server.KVTokens, 0), PageSize: max(server.PageSize, 0), Version: short(server.Version),
	}
	if port := server.BootstrapPort; port > 0 && port <= math.MaxUint16 {
		f.BootstrapPort = port
	}
	if f.Model == "" {
		var model modelInfo
		if err := get(ctx, rt, w, &model, "/model_info", "/get_model_info"); err != nil {
			return Facts{}, err
		}
		f.Model = name(model.ServedName, model.ModelPath)
	}
	return f, nil
}

// mode is the role that the engine has now, which its states tell; where they do
// not, what it was launched as.
func (s *serverInfo) mode() (mode string, live bool) {
	for _, state := range s.States {
		if state.Mode != nil {
			return short(*state.Mode), true
		}
	}
	if s.Mode != nil {
		return short(*s.Mode), false
	}
	return "", false
}

func name(served *string, path string) string {
	if served != nil && *served != "" {
		path = *served
	}
	return short(path)
}

// short is a name, or nothing where it is too long to be one.
func short(name string) string {
	if len(name) > maxName {
		return ""
	}
	return name
}

// get reads the first of paths that an engine knows into doc, which stays as it
// is where it knows none.
func get(ctx context.Context, rt http.RoundTripper, w *pd.Worker, doc any, paths ...string) error {
	for _, path := range paths {
		known, err := getOne(ctx, rt, w, doc, path)
		if err != nil || known {
			return err
		}
	}
	return nil
}

// getOne reads one path; known is false where the engine has no such endpoint.
func getOne(ctx context.Context, rt http.RoundTripper, w *pd.Worker, doc any, path string) (known bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+path, http.NoBody)
	if err != nil {
		return false, fmt.Errorf("%s cannot be asked for", path)
	}
	w.Authorize(req.Header)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return false, fmt.Errorf("%s cannot be had", path)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests:
		return false, fmt.Errorf("%s is answered with status %d", path, resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return false, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxInfo))
	if err != nil {
		return false, fmt.Errorf("%s breaks off", path)
	}
	err = json.Unmarshal(body, doc)
	_, odd := errors.AsType[*json.UnmarshalTypeError](err) // one field, and the others are there
	return err == nil || odd, nil
}
