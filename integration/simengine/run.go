package simengine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// flags are the command line of one engine.
type flags struct {
	cfg           Config
	role          string
	host          string
	port          int
	bootstrapPort int
	disconnect    string
	debug         bool
	verbose       bool
}

func (f *flags) register(fs *flag.FlagSet) {
	fs.StringVar(&f.role, "role", "", "prefill, decode or regular")
	fs.StringVar(&f.cfg.ID, "id", "", "name of the engine in logs (default role and port)")
	fs.StringVar(&f.host, "host", "127.0.0.1", "address to listen on")
	fs.IntVar(&f.port, "port", 0, "port of the API (default any free one)")
	fs.IntVar(&f.bootstrapPort, "bootstrap-port", 0, "prefill: port of the bootstrap server (default any free one); decode: what a null bootstrap_port means (default 8998)")
	fs.StringVar(&f.cfg.Model, "model", "tiny", "served model name")
	fs.StringVar(&f.cfg.APIKey, "api-key", "", "key that callers must send")
	fs.StringVar(&f.cfg.AdminKey, "admin-api-key", "", "key of the administrative routes")
	fs.IntVar(&f.cfg.DPSize, "dp-size", 1, "number of data parallel ranks")
	fs.StringVar(&f.cfg.LoadBalance, "load-balance-method", "", FollowBootstrapRoom+" or "+RoundRobin)
	fs.IntVar(&f.cfg.ContextLength, "context-length", defaultContextLength, "in tokens; text has one token for each byte")
	fs.IntVar(&f.cfg.MaxTotalTokens, "max-total-tokens", 4096, "KV budget in tokens")
	fs.IntVar(&f.cfg.PageSize, "page-size", 1, "page of the KV pool that /server_info shows, in tokens")
	fs.BoolVar(&f.cfg.RoleSwitch, "enable-pd-role-switch", false, "allow /pd_role_switch")
	fs.DurationVar(&f.cfg.SwitchDelay, "switch-delay", 0, "time that a change of role takes")
	fs.BoolVar(&f.cfg.Incremental, "incremental-streaming-output", false, "/generate streams carry deltas")
	fs.StringVar(&f.disconnect, "disconnect", "measured", "what a client that leaves does: measured, after2s or never")
	fs.DurationVar(&f.cfg.Speed.PrefillDelay, "prefill-delay", 0, "time to compute a prompt")
	fs.DurationVar(&f.cfg.Speed.PrefillPerToken, "prefill-per-token", 0, "time to compute each token of a prompt that is not cached, one prompt at a time")
	fs.DurationVar(&f.cfg.Speed.TransferDelay, "transfer-delay", 0, "time to move the KV")
	fs.DurationVar(&f.cfg.Speed.TokenInterval, "token-interval", 0, "time between two tokens")
	fs.Float64Var(&f.cfg.TimeScale, "time-scale", 1, "factor on the engine's own timers; 0.01 runs 300 s in 3 s")
	fs.DurationVar(&f.cfg.StartDelay, "start-delay", 0, "time until the API listens")
	fs.DurationVar(&f.cfg.WarmUp, "warm-up", 0, "time for which /health and /ping answer 503")
	fs.DurationVar(&f.cfg.HealthDelay, "health-delay", 0, "time that /health takes (default 1s; negative for none)")
	fs.BoolVar(&f.debug, "debug-fields", false, "put room and prefill into meta_info")
	fs.BoolVar(&f.verbose, "verbose", false, "log failures and crashes")
}

func (f *flags) config(stderr io.Writer) (Config, error) {
	cfg := f.cfg
	cfg.Role = Role(f.role)
	cfg.Addr = net.JoinHostPort(f.host, strconv.Itoa(f.port))
	if cfg.Role == Prefill || cfg.RoleSwitch {
		cfg.BootstrapAddr = net.JoinHostPort(f.host, strconv.Itoa(f.bootstrapPort))
	}
	if cfg.Role == Decode {
		cfg.DefaultBootstrapPort = f.bootstrapPort
	}
	switch f.disconnect {
	case "measured":
	case string(DisconnectAfter2s), string(DisconnectNever):
		cfg.Disconnect = DisconnectMode(f.disconnect)
	default:
		return cfg, fmt.Errorf("disconnect: want measured, after2s or never, got %q", f.disconnect)
	}
	cfg.HideDebug = !f.debug
	cfg.KeepRecords = -1
	if f.verbose {
		cfg.Log = stderr
	}
	return cfg, cfg.Timers.FromEnv(os.LookupEnv)
}

// Run is the command: it starts the engine that args describe, writes one line
// "role url [bootstrap host:port]" to stdout, and stops the engine when ctx
// ends. A crash of the engine ends it with an error, as the real process would.
// The engine's timers are read from the environment by the engine's own names.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f flags
	fs := flag.NewFlagSet("sim-engine", flag.ContinueOnError)
	fs.SetOutput(stderr)
	f.register(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	cfg, err := f.config(stderr)
	if err != nil {
		return err
	}
	e, err := Start(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	line := fmt.Sprintf("%s %s", cfg.Role, e.URL())
	if cfg.Role == Prefill {
		line += " bootstrap " + net.JoinHostPort(f.host, strconv.Itoa(e.BootstrapPort()))
	}
	if _, err := fmt.Fprintln(stdout, line); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-e.current().ctx.Done():
		return fmt.Errorf("engine crashed: %w", e.Fatal())
	}
}
