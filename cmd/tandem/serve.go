package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/router"
)

// serve runs a router until a signal or the end of ctx ends it.
func serve(ctx context.Context, cfg *config, stdout, stderr io.Writer) error {
	log, closeLog, err := newLog(cfg, stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	cfg.logTo(log)
	for _, w := range cfg.warnings {
		log.Warn().Msg(w)
	}
	if cfg.externalDP {
		if err := learnRanks(ctx, cfg, cfg.transport(false)); err != nil {
			return err
		}
	}
	var done func(*pd.Request, pd.Report)
	if cfg.miniLB {
		done = (&lineWriter{w: stdout}).done
	}
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	s, err := build(cfg, log, done)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(trimBrackets(cfg.host), strconv.Itoa(cfg.port)))
	if err != nil {
		s.close()
		return fmt.Errorf("cannot listen on --host %s --port %d: %w", cfg.host, cfg.port, err)
	}
	defer ln.Close()
	for _, w := range cfg.workers() {
		e := log.Info().Str("worker", string(w.ID)).Str("url", w.URL)
		if w.Role == pd.Prefill {
			e = e.Str("bootstrap_host", w.BootstrapHost).Int("bootstrap_port", w.BootstrapPort)
		}
		e.Msg("worker") // answers and other lines name it by this id alone
	}
	scheme := "http"
	if front := cfg.clientTLS(); front != nil {
		ln, scheme = router.WatchTLS(ln, front), "https"
	}
	fmt.Fprintf(stdout, "tandem listens on %s://%s\n", scheme, shownAddress(cfg.host, ln.Addr()))
	log.Info().Stringer("addr", ln.Addr()).Int("prefill", len(cfg.prefill)).Int("decode", len(cfg.decode)).
		Int("regular", len(cfg.whole)).Msg("listening")
	return s.run(ctx, log, ln)
}

// heapFloor is memory that is allocated and never touched, so that it takes no
// room. A router's live heap is a few MB, and the collector runs whenever as
// much again has been allocated, dozens of times a second under load; the floor
// has it wait for 32 MB more.
const heapFloor = 32 << 20

// run serves on ln until a signal or the end of ctx, and ends the service.
func (s *service) run(ctx context.Context, log zerolog.Logger, ln net.Listener) error {
	defer s.close()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	served := make(chan error, 1)
	go func() { served <- s.app.Serve(ln) }()
	select {
	case err := <-served:
		s.app.Shutdown(ctx, true)
		return fmt.Errorf("cannot go on listening: %w", err)
	case sig := <-signals:
		log.Info().Stringer("signal", sig).Msg("shutting down")
		shutdown(ctx, s.app, sig == os.Interrupt, signals, log)
	case <-ctx.Done():
		log.Info().Msg("shutting down")
		shutdown(context.WithoutCancel(ctx), s.app, true, signals, log)
	}
	return <-served
}

// shutdown ends the app in order; now skips the settling time, and another
// signal skips the waiting for what is under way.
func shutdown(ctx context.Context, app *router.App, now bool, signals chan os.Signal, log zerolog.Logger) {
	ended := make(chan router.Report, 1)
	go func() { ended <- app.Shutdown(ctx, now) }()
	var report router.Report
	select {
	case report = <-ended:
	case <-signals:
		signal.Stop(signals) // a third one ends the process
		log.Warn().Msg("second signal: ending at once")
		app.Shutdown(ctx, true)
		report = <-ended
	}
	e := log.Info()
	if report.Requests > 0 {
		e = log.Warn()
	}
	e.Int("cut_requests", report.Requests).Int("cut_connections", report.Connections).
		Int64("ms", report.Elapsed.Milliseconds()).Msg("shut down")
}

// newLog logs to stderr, and to a file in the directory that is asked for.
func newLog(cfg *config, stderr io.Writer) (zerolog.Logger, func(), error) {
	level, err := zerolog.ParseLevel(cfg.logLevel)
	if err != nil {
		return zerolog.Nop(), nil, err
	}
	out, end := stderr, func() {}
	if cfg.logDir != "" {
		if err := os.MkdirAll(cfg.logDir, 0o755); err != nil {
			return zerolog.Nop(), nil, fmt.Errorf("cannot use --log-dir: %w", err)
		}
		file, err := os.OpenFile(filepath.Join(cfg.logDir, "tandem.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return zerolog.Nop(), nil, fmt.Errorf("cannot use --log-dir: %w", err)
		}
		out, end = zerolog.MultiLevelWriter(stderr, file), func() { _ = file.Close() }
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger(), end, nil
}

// shownAddress is the host that was asked for, where the system may show
// 0.0.0.0 as [::], and the port that was taken.
func shownAddress(host string, addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return net.JoinHostPort(trimBrackets(host), strconv.Itoa(tcp.Port))
	}
	return addr.String()
}

func trimBrackets(host string) string {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}
