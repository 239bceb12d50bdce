// Command gpuscale buys GPU capacity for Kubernetes where it is cheapest and gives it back when demand stops.
//
// It exits 0 when it did what it was asked, 1 with one line when it could not, and 2 when it did not understand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "dev"

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second interrupt, while the first is being obeyed, ends the program at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// console is where a command reads and writes.
type console struct {
	out    io.Writer
	getenv func(string) string
}

// say writes to the user. Nobody is left to tell when that fails.
func (c *console) say(format string, args ...any) { _, _ = fmt.Fprintf(c.out, format, args...) }

// usageError is a mistake in the command line.
type usageError struct{ error }

// errShown is a failure that the command has already told of.
var errShown = errors.New("told already")

func run(ctx context.Context, args []string, getenv func(string) string, out, errOut io.Writer) int {
	//nolint:contextcheck // Commands get ctx from ExecuteContext.
	root := newRoot(&console{out: out, getenv: getenv})
	complain := (&console{out: errOut}).say
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errShown):
		return exitFailure
	case errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command"):
		complain("gpuscale: %v\nRun 'gpuscale --help' for what there is.\n", err)
		return exitUsage
	}
	complain("gpuscale: %v\n", err)
	return exitFailure
}

func newRoot(c *console) *cobra.Command {
	root := &cobra.Command{
		Use:           "gpuscale",
		Short:         "Buys GPU capacity for Kubernetes where it is cheapest and gives it back when demand stops",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newDemo(c), newUp(c), newController(c), newGateway(c), newCosts(c), newVersion(c))
	return root
}

func newVersion(c *console) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			c.say("%s\n", version)
			return nil
		},
	}
}

// noArgs refuses arguments as a mistake in the command line.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}
