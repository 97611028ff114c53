package simengine

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Role says which half of a pair an engine is, or that it is a whole one.
type Role string

// The roles. The first two are spelled as in --disaggregation-mode.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	// Regular does prefill and decode itself, and ignores the pairing fields.
	Regular Role = "regular"
)

// mode is the role as disaggregation_mode shows it.
func (r Role) mode() string {
	if r == Regular {
		return "null"
	}
	return string(r)
}

// valid refuses a role that there is not.
func (r Role) valid() error {
	if r != Prefill && r != Decode && r != Regular {
		return fmt.Errorf("role: want %q, %q or %q, got %q", Prefill, Decode, Regular, r)
	}
	return nil
}

// DisconnectMode says what a closed client connection does to its requests.
type DisconnectMode string

const (
	// DisconnectMeasured is release 0.5.23: a closed stream frees a waiting and
	// a running request at once; a closed plain call frees a waiting one at the
	// next poll and lets a running one finish.
	DisconnectMeasured DisconnectMode = ""
	// DisconnectAfter2s frees the requests of a closed stream two seconds later.
	DisconnectAfter2s DisconnectMode = "after2s"
	// DisconnectNever is the regression of 0.5.18: a closed stream runs to its
	// token limit, and an abort by its rid does nothing any more.
	DisconnectNever DisconnectMode = "never"
)

// Load balance methods of data parallel ranks.
const (
	// FollowBootstrapRoom puts a request on rank room % dp_size; decode computes
	// the same. It is what a prefill resolves "auto" to.
	FollowBootstrapRoom = "follow_bootstrap_room"
	// RoundRobin takes turns; prefill registers each room's rank with its
	// bootstrap server, decode asks there.
	RoundRobin = "round_robin"
)

// Config describes one engine. The zero value of every field but Role works.
type Config struct {
	Role Role
	// ID names the engine in logs and in the debug field; role and port if empty.
	ID string
	// Addr is the API's listen address, 127.0.0.1:0 if empty.
	Addr string
	// BootstrapAddr is where a prefill's bootstrap server listens, any free port
	// of the API's host if empty. Decode has none until it becomes a prefill.
	BootstrapAddr string
	// DefaultBootstrapPort is what a decode takes for a null bootstrap_port, 8998 if 0.
	DefaultBootstrapPort int
	// Model is the served name, as in model_info and server_info, "tiny" if empty.
	Model string
	// APIKey is asked for on everything but health and metrics.
	APIKey string
	// AdminKey, if set, is the only key for the administrative routes.
	AdminKey string
	// DPSize is the number of data parallel ranks, 1 if 0.
	DPSize int
	// LoadBalance is FollowBootstrapRoom (prefill's default) or RoundRobin (decode's).
	LoadBalance string
	// ContextLength is in tokens, 1024 if 0.
	ContextLength int
	// MaxTotalTokens is the KV budget, 4096 if 0.
	MaxTotalTokens int
	// PageSize is the page of the KV pool that the engine claims, in tokens, 1 if 0.
	// The prefix cache counts in blocks of 16 whatever it is.
	PageSize int
	// Incremental makes /generate streams carry deltas instead of the whole text.
	Incremental bool
	// HeaderOverrides lets x-override-* headers replace fields of the body.
	HeaderOverrides bool
	// RoleSwitch allows /pd_role_switch.
	RoleSwitch bool
	// CrossTalk lets two requests share a live room and take each other's KV,
	// where an engine usually crashes.
	CrossTalk bool
	// Disconnect says what a client that leaves does to its requests.
	Disconnect DisconnectMode
	// Speed is how long the engine takes to compute; zero is as fast as it can.
	Speed Speed
	// Timers are the engine's own time limits.
	Timers Timers
	// TimeScale multiplies Timers (but not KeepAlive), HealthDelay, StartDelay,
	// SwitchDelay and WarmUp: 0.01 runs the 300 s ones in 3 s. 1 if 0.
	TimeScale float64
	// HealthDelay is what a healthy /health takes, 1 s if 0, none if negative.
	HealthDelay time.Duration
	// StartDelay is what Start and Restart take to open the API. A prefill's
	// bootstrap server is there after a quarter of it, and knows nothing of its
	// ranks until the end.
	StartDelay time.Duration
	// SwitchDelay is what a change of role takes.
	SwitchDelay time.Duration
	// WarmUp is for how long after the start /health and /ping answer 503.
	WarmUp time.Duration
	// HideDebug leaves the "sim" field (room and prefill) out of meta_info.
	HideDebug bool
	// KeepRecords is how many requests Records remembers, 4096 if 0, none if negative.
	KeepRecords int
	// Observe, if set, is shown each generation request twice: once it has been
	// read, and once nothing of it is in service any more, when Freed is set. It
	// is called on the request's own goroutine and must be quick.
	Observe func(Record)
	// Log takes one line per failure and crash; nothing is logged if nil.
	Log io.Writer
}

// Speed is how long the simulated model takes. It is never scaled.
type Speed struct {
	// PrefillDelay passes between the handshake and the first token.
	PrefillDelay time.Duration
	// PrefillPerToken comes on top for each token of the prompt that is not in the
	// prefix cache. If it is not zero the engine computes one prompt at a time.
	PrefillPerToken time.Duration
	// TransferDelay passes between the first token and its arrival at decode.
	TransferDelay time.Duration
	// TokenInterval passes between two tokens of an output.
	TokenInterval time.Duration
}

// Timers are the engine's time limits, named as its environment variables are.
// Zero is the engine's default.
type Timers struct {
	BootstrapTimeout    time.Duration // SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, 300 s
	WaitingTimeout      time.Duration // SGLANG_DISAGGREGATION_WAITING_TIMEOUT, 300 s
	HeartbeatInterval   time.Duration // SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL, 5 s
	HeartbeatMaxFailure int           // SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE, 2
	DeferredRelease     time.Duration // SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT, 30 s
	EntryCleanup        time.Duration // SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL, 120 s
	StateWait           time.Duration // SGLANG_REQUEST_STATE_WAIT_TIMEOUT, 4 s
	KeepAlive           time.Duration // SGLANG_TIMEOUT_KEEP_ALIVE, 5 s
}

// FromEnv sets every timer whose environment variable lookup finds, in seconds.
func (t *Timers) FromEnv(lookup func(string) (string, bool)) error {
	durations := map[string]*time.Duration{
		"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT":                  &t.BootstrapTimeout,
		"SGLANG_DISAGGREGATION_WAITING_TIMEOUT":                    &t.WaitingTimeout,
		"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL":                 &t.HeartbeatInterval,
		"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": &t.DeferredRelease,
		"SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL":   &t.EntryCleanup,
		"SGLANG_REQUEST_STATE_WAIT_TIMEOUT":                        &t.StateWait,
		"SGLANG_TIMEOUT_KEEP_ALIVE":                                &t.KeepAlive,
	}
	for name, d := range durations {
		text, ok := lookup(name)
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds <= 0 {
			return fmt.Errorf("%s: want a positive number of seconds, got %q", name, text)
		}
		*d = time.Duration(seconds * float64(time.Second))
	}
	const failures = "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE"
	if text, ok := lookup(failures); ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%s: want a positive number, got %q", failures, text)
		}
		t.HeartbeatMaxFailure = n
	}
	return nil
}

func (c Config) withDefaults() (Config, error) {
	if err := c.Role.valid(); err != nil {
		return c, err
	}
	orString(&c.Addr, "127.0.0.1:0")
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return c, fmt.Errorf("address: %w", err)
	}
	orString(&c.BootstrapAddr, net.JoinHostPort(host, "0"))
	orString(&c.Model, "tiny")
	balance := RoundRobin
	if c.Role == Prefill {
		balance = FollowBootstrapRoom
	}
	orString(&c.LoadBalance, balance)
	orNumber(&c.DefaultBootstrapPort, 8998)
	orNumber(&c.DPSize, 1)
	orNumber(&c.ContextLength, defaultContextLength)
	orNumber(&c.MaxTotalTokens, 4096)
	orNumber(&c.PageSize, 1)
	orNumber(&c.KeepRecords, 4096)
	orNumber(&c.TimeScale, 1)
	orNumber(&c.HealthDelay, time.Second)
	t := &c.Timers
	orNumber(&t.BootstrapTimeout, 300*time.Second)
	orNumber(&t.WaitingTimeout, 300*time.Second)
	orNumber(&t.HeartbeatInterval, 5*time.Second)
	orNumber(&t.HeartbeatMaxFailure, 2)
	orNumber(&t.DeferredRelease, 30*time.Second)
	orNumber(&t.EntryCleanup, 120*time.Second)
	orNumber(&t.StateWait, 4*time.Second)
	orNumber(&t.KeepAlive, 5*time.Second)
	if c.LoadBalance != FollowBootstrapRoom && c.LoadBalance != RoundRobin {
		return c, fmt.Errorf("load balance method: %q is unknown", c.LoadBalance)
	}
	if strings.Contains(c.Model, ":") {
		return c, fmt.Errorf("model: a served name may not contain a colon")
	}
	if c.DPSize < 1 || c.PageSize < 1 || c.TimeScale < 0 {
		return c, fmt.Errorf("dp size, page size and time scale must be positive")
	}
	return c, nil
}

// scaled is d on this engine's clock.
func (c *Config) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * c.TimeScale)
}

func orString(s *string, otherwise string) {
	if *s == "" {
		*s = otherwise
	}
}

func orNumber[T int | float64 | time.Duration](n *T, otherwise T) {
	if *n == 0 {
		*n = otherwise
	}
}
