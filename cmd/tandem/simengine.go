package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// newSimEngine is the command that runs one simulated engine.
func newSimEngine(stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:                "sim-engine --role prefill|decode|regular [flags]",
		Short:              "Run one simulated engine",
		DisableFlagParsing: true, // the engine has flags of its own
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := stopContext(cmd.Context())
			defer stop()
			return simengine.Run(ctx, args, stdout, stderr)
		},
	}
}

// stopContext ends with ctx or at a signal.
func stopContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
