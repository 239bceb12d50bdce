// Command gpuscale buys GPU capacity for Kubernetes where it is cheapest and gives it back when demand stops.
//
// What it exits with is on one page: docs/operating/exit-codes.md.
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
	"golang.org/x/term"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/pkg/provider"
)

// version is set by the build.
var version = "dev"

// The exit codes, each with its line in docs/operating/exit-codes.md.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitPartial     = 3
	exitUnmet       = 4
	exitInterrupted = 130
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
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	// terminal: a person watches errOut, so that progress can be shown there.
	terminal bool
	getenv   func(string) string
	// simHook changes simulated markets: tests make them slow or fail.
	simHook func(*market.Market)
	// clouds are where the controllers find simulated providers; nil outside tests.
	clouds map[provider.Name]string
}

// say writes to the user. Nobody is left to tell when that fails.
func (c *console) say(format string, args ...any) { _, _ = fmt.Fprintf(c.out, format, args...) }

// note writes beside the output, where it does not disturb who reads that.
func (c *console) note(format string, args ...any) {
	_, _ = fmt.Fprintf(c.errOut, format+"\n", args...)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

// errShown is a failure that the command has already told of.
var errShown = errors.New("told already")

// exitError is an outcome with a code of its own, which the command has already told of.
type exitError int

// Error is for nobody: the command has said it.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(ctx context.Context, args []string, getenv func(string) string, out, errOut io.Writer) int {
	return execute(ctx, &console{in: os.Stdin, out: out, errOut: errOut, terminal: isTerminal(errOut), getenv: getenv}, args)
}

func execute(ctx context.Context, c *console, args []string) int {
	//nolint:contextcheck // Commands get ctx from ExecuteContext.
	root := newRoot(c)
	complain := (&console{out: c.errOut}).say
	root.SetArgs(args)
	root.SetOut(c.out)
	root.SetErr(c.errOut)
	err := root.ExecuteContext(ctx)
	var (
		usage usageError
		coded exitError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return int(coded)
	case errors.Is(err, errShown):
		return exitFailure
	case errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command"):
		complain("gpuscale: %v\nRun 'gpuscale --help' for what there is.\n", err)
		return exitUsage
	}
	complain("gpuscale: %v\n", err)
	return exitFailure
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
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
	root.AddCommand(newOffers(c), newPlan(c), newCheck(c), newDemo(c), newUp(c), newController(c), newGateway(c), newCosts(c), newVersion(c))
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
