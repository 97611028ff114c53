package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // it could not start, or could not go on
	exitUsage   = 2 // the command line is wrong
)

const about = `Tandem routes requests to pairs of SGLang prefill and decode engines, or to
whole engines.

It takes the flags of sglang_router.launch_router, --mini-lb included:

  tandem --pd-disaggregation \
    --prefill http://prefill-a:30000 8998 \
    --decode http://decode-a:30000 --decode http://decode-b:30000

A prefill worker's URL is followed by the port of its bootstrap server, by
HOST:PORT where decode reaches that under another name, or by none, which is
the default: decode then takes the port of its own flags.

Whole engines need no partner and get what the client sent, on any path under /v1:

  tandem --worker-urls http://engine-a:30000 http://engine-b:30000 --policy cache_aware

What the gateway's flags not listed here ask for is not in this version. Most of
them are accepted, with a warning; those that tell users apart are refused, since
a router without them would not be what was asked for.`

// usageError is a mistake in the command line.
type usageError struct{ error }

// run is the whole program: it returns the exit code. The end of ctx ends it as
// SIGINT does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	line := newCommandLine()
	root := newRoot(line, stdout, stderr)
	args = plainArgv(args, func(name string) bool { return takesWords(root.Flags().Lookup(name)) })
	if cmd, _, err := root.Find(args); err == nil && cmd == root {
		args = line.withoutUnknown(args)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "tandem: %v\nSee tandem --help.\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "tandem: %v\n", err)
		return exitFailure
	}
}

// newRoot is the command line: serving is the root command, which has all the
// flags, so that a gateway's command line fits as it is.
func newRoot(line *commandLine, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "tandem [flags]",
		Short:         "Route requests to SGLang engines, pairs of prefill and decode or whole ones",
		Long:          about,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs, // they are mistakes among others
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := line.config(args)
			if err != nil {
				return usageError{err}
			}
			return serve(cmd.Context(), cfg, stdout, stderr)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate("tandem {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	line.register(root.Flags())
	root.InitDefaultHelpFlag()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		if cmd != root {
			_, err := fmt.Fprintf(out, "Usage:\n  %s\n\nFlags:\n%s", cmd.UseLine(), cmd.LocalFlags().FlagUsagesWrapped(120))
			return err
		}
		fmt.Fprintf(out, "Usage:\n  tandem [flags]\n  tandem COMMAND [flags]\n\nCommands:\n")
		for _, c := range cmd.Root().Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-12s %s\n", c.Name(), c.Short)
			}
		}
		_, err := io.WriteString(out, line.usages())
		return err
	})
	root.AddCommand(newDemo(stdout, stderr), newSimEngine(stdout, stderr), newWorkers(stdout, stderr))
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{errors.New(unexpected(args[0]))}
	}
	return nil
}

func unexpected(arg string) string {
	text := fmt.Sprintf("unexpected argument %q", redact(arg))
	if strings.Contains(arg, "://") {
		text += ": each worker has a --prefill or --decode of its own"
	}
	return text
}

// flagError makes pflag's errors ours.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		err = errors.New(unknownFlag(unknown.GetSpecifiedName(), cmd.Flags()))
	}
	return usageError{err}
}

// version is the module's version, which the build takes from the repository.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
