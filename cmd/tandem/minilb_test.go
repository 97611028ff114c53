package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const millisecond = time.Millisecond

func legOf(w pd.WorkerID, role pd.Role, attempt int, rooms ...uint64) pd.LegReport {
	return pd.LegReport{
		Worker: w, Role: role, Attempt: attempt, Rooms: rooms, Status: 200, Outcome: pd.Success,
		Sent: 200 * time.Microsecond, Headers: 3 * millisecond, First: 3*millisecond + 40*time.Microsecond, End: 12 * millisecond,
	}
}

func TestRequestLine(t *testing.T) {
	ok := pd.Report{
		TTFT: 12900 * time.Microsecond, Total: 80500 * time.Microsecond, Attempts: 1,
		PromptTokens: 5, CompletionTokens: 16, CachedTokens: 4, Events: 17,
		Legs: []pd.LegReport{legOf("prefill-0", pd.Prefill, 1, 42), legOf("decode-1", pd.Decode, 1, 42)},
	}

	open := ok
	open.Legs = []pd.LegReport{legOf("prefill-0", pd.Prefill, 1, 42), legOf("decode-1", pd.Decode, 1, 42)}
	open.Legs[0].End, open.Legs[0].Outcome = 0, pd.Unused

	batch := ok
	many := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	batch.Legs = []pd.LegReport{legOf("prefill-0", pd.Prefill, 1, many...), legOf("decode-1", pd.Decode, 1, many...)}

	samples := ok
	samples.Legs = nil
	for room := range uint64(6) {
		samples.Legs = append(samples.Legs,
			legOf("prefill-0", pd.Prefill, 1, room+1), legOf("decode-0", pd.Decode, 1, room+1))
	}

	refused := pd.Report{
		Attempts: 1, Total: 2 * millisecond,
		Err: &pd.Error{Stage: pd.StagePrefill, Kind: pd.Unavailable, Status: 503, Code: "prefill_unavailable"},
		Legs: []pd.LegReport{
			{Worker: "prefill-0", Role: pd.Prefill, Attempt: 1, Rooms: []uint64{42}, Sent: millisecond, End: 2 * millisecond, Outcome: pd.Fault},
			{Worker: "decode-0", Role: pd.Decode, Attempt: 1, Rooms: []uint64{42}, Sent: millisecond, End: 2 * millisecond, Outcome: pd.Echo},
		},
	}

	again := ok
	again.Attempts = 2
	again.Legs = append(append([]pd.LegReport(nil), refused.Legs...),
		legOf("prefill-1", pd.Prefill, 2, 43), legOf("decode-1", pd.Decode, 2, 43))

	left := pd.Report{
		TTFT: 12900 * time.Microsecond, Total: 50 * millisecond, Attempts: 1,
		Err:  &pd.Error{Stage: pd.StageClient, Kind: pd.Cancelled, Status: 499, Code: "client_closed_request"},
		Legs: []pd.LegReport{legOf("prefill-0", pd.Prefill, 1, 42), legOf("decode-1", pd.Decode, 1, 42)},
	}
	left.Legs[1].End, left.Legs[1].Outcome = 0, pd.Unused

	unsent := refused
	unsent.Legs = []pd.LegReport{refused.Legs[0], {Worker: "decode-0", Role: pd.Decode, Attempt: 1, Rooms: []uint64{42}}}

	unplanned := pd.Report{Err: &pd.Error{Stage: pd.StageRequest, Kind: pd.Invalid, Status: 400, Code: "invalid_request"}}

	var lines []string
	add := func(id string, ep pd.Endpoint, r pd.Report) {
		line := requestLine(&pd.Request{ID: id, Endpoint: ep}, r)
		assert.NotContains(t, line, "\n")
		lines = append(lines, line)
	}
	add("r-1", pd.Chat, ok)
	add("r-open", pd.Completions, open)
	add("r-batch", pd.Generate, batch)
	add("r-samples", pd.Chat, samples)
	add("r-refused", pd.Generate, refused)
	add("r-again", pd.Chat, again)
	add("r-left", pd.Chat, left)
	add("r-unsent", pd.Generate, unsent)
	add("r-unplanned", pd.Chat, unplanned)
	add("two words\x1b[2J", pd.Chat, unplanned)
	add("", pd.Chat, unplanned)

	golden := filepath.Join("testdata", "minilb.golden")
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}
