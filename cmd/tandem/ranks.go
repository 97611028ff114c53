package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Bounds of asking a worker for its data-parallel ranks.
const (
	ranksTimeout = 10 * time.Second
	ranksBody    = 8 << 20 // bytes of a server_info
)

// learnRanks asks the first worker of each role, over rt, how many data-parallel
// ranks it has, and takes the others of the role to be like it.
func learnRanks(ctx context.Context, cfg *config, rt http.RoundTripper) error {
	for _, pool := range [][]*pd.Worker{cfg.prefill, cfg.decode} {
		n, err := ranksOf(ctx, rt, pool[0])
		if err != nil {
			return fmt.Errorf("--test-external-dp-routing: cannot learn the ranks of worker %s: %w", pool[0].ID, err)
		}
		for _, w := range pool {
			w.DPSize = n
		}
	}
	return nil
}

// ranksOf counts a worker's internal states: one for each rank.
func ranksOf(ctx context.Context, rt http.RoundTripper, w *pd.Worker) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, ranksTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+"/server_info", http.NoBody)
	if err != nil {
		return 0, err
	}
	w.Authorize(req.Header)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("/server_info answers %d", resp.StatusCode)
	}
	var info struct {
		States []struct{} `json:"internal_states"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, ranksBody)).Decode(&info); err != nil {
		return 0, errors.New("/server_info is not JSON as expected") // the text holds the worker's keys
	}
	if len(info.States) == 0 {
		return 0, errors.New("/server_info shows no internal_states")
	}
	return len(info.States), nil
}
