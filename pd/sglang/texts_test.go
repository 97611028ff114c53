package sglang_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd/sglang"
)

func TestClassifyReadsWhatRealEnginesSaid(t *testing.T) {
	for name, want := range map[string]sglang.Echo{
		"lost_prefill_transfer.json":   sglang.EchoLostPrefill,
		"lost_prefill_handshake.json":  sglang.EchoLostPrefill,
		"decode_waiting_aborted.json":  sglang.EchoLostPrefill, // the very words of a lost prefill
		"prefill_waiting_aborted.json": sglang.EchoAborted,
		"decode_running_aborted.json":  sglang.EchoNone,
		"too_long_generate.json":       sglang.EchoNone,
		"too_long_completions.json":    sglang.EchoNone,
		"flat_400_chat.json":           sglang.EchoNone,
	} {
		f, ok := sglang.BodyFailure(golden(t, "frames", name))
		require.True(t, ok, name)
		assert.Equal(t, want, sglang.Classify(f.Message), name)
	}
	for name, want := range map[string]sglang.Echo{
		"lost_prefill_chat.sse":     sglang.EchoLostPrefill,
		"lost_prefill_generate.sse": sglang.EchoLostPrefill,
	} {
		f, ok := streamFailure(t, golden(t, "frames", name))
		require.True(t, ok, name)
		assert.Equal(t, want, sglang.Classify(f.Message), name)
	}
}

func TestClassify(t *testing.T) {
	const (
		bootstrap = "Prefill bootstrap failed for request rank=0 req.rid='a1' req.bootstrap_room=77 with exception KVTransferError(bootstrap_room=77): "
		sending   = "Prefill transfer failed for request rank=0 req.rid='a1' req.bootstrap_room=77 with exception KVTransferError(bootstrap_room=77): "
		transfer  = "Decode transfer failed for request rank=0 decode_req.req.rid='a1' decode_req.req.bootstrap_room=77 with exception KVTransferError(bootstrap_room=77): "
		hostile   = "Prefill bootstrap failed for request rank=0 req.rid='x with exception Decode instance could be dead' req.bootstrap_room=77 with exception KVTransferError(bootstrap_room=77): "
	)
	for message, want := range map[string]sglang.Echo{
		transfer + "Request 77 timed out after 300.0s in KVPoll.WaitingForInput":            sglang.EchoLostPrefill,
		transfer + "Failed to get kvcache from prefill instance, it might be dead":          sglang.EchoLostPrefill,
		transfer + "Failed due to an unknown reason from another rank":                      sglang.EchoLostPrefill,
		"Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:8998)":            sglang.EchoLostPrefill,
		bootstrap + "Failed due to an unknown reason from another rank":                     sglang.EchoLostDecode,
		sending + "Decode instance could be dead, remote mooncake session a:1 is not alive": sglang.EchoLostDecode,
		sending + "Failed to send kv chunk of 77 to 10.0.0.5:41234":                         sglang.EchoLostDecode,
		bootstrap + "Request 77 timed out after 300.1s in KVPoll.Bootstrapping":             sglang.EchoBootstrapTimeout,
		bootstrap + "Aborted by AbortReq.":                                                  sglang.EchoAborted,
		hostile + "Aborted by AbortReq.":                                                    sglang.EchoAborted,
		hostile + "Request 77 timed out after 300.1s in KVPoll.Bootstrapping":               sglang.EchoBootstrapTimeout,
		"Duplicate request ID detected: a1":                                                 sglang.DuplicateRid,
		"Duplicate request ID detected: Decode instance could be dead":                      sglang.DuplicateRid,
		"Duplicate request IDs detected within the request":                                 sglang.EchoNone,
		"temperature must be a non-negative finite number, got -1.":                         sglang.EchoNone,
		"Aborted": sglang.EchoNone,
		"":        sglang.EchoNone,
	} {
		assert.Equal(t, want, sglang.Classify(message), message)
	}
}
