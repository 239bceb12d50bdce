package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/demo"
	"github.com/munhq/gpuscale/internal/localstack"
	"github.com/munhq/gpuscale/pkg/provider"
)

// How long the demo may take, the start of everything included.
const (
	demoDeadline      = 90 * time.Second
	asWrittenDeadline = 5 * time.Minute
)

type demoOptions struct {
	stack     localstack.Options
	examples  string
	asWritten bool
}

func newDemo(c *console) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show how a pending pod buys a GPU, is served on it, and gives it back",
		Long: "Starts what 'gpuscale up' starts, applies two files of examples/, and shows what happens, as it happens. Exits 0 when\n" +
			"everything was seen that should have been, through the APIs of Kubernetes, the provider and the gateway.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), c, o) },
	}
	// Any free port, so that the demo never fails for one that is taken.
	stackFlags(cmd, &o.stack, 0)
	cmd.Flags().BoolVar(&o.asWritten, "as-written", false, "leave the pool's batch window and cooldown as the file has them; takes some minutes")
	cmd.Flags().StringVar(&o.examples, "examples", "", "folder with the example files (default: examples, here or beside gpuscale's folder)")
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkPort(o.stack.Port) }
	return cmd
}

func runDemo(ctx context.Context, c *console, o demoOptions) error {
	examples, err := findExamples(o.examples)
	if err != nil {
		return err
	}
	var now clock.Clock = clock.RealClock{} //gpuscale:clock the demo shows real times
	p := printer(c.out)
	p.Start = now.Now()
	limit := demoDeadline
	if o.asWritten {
		limit = asWrittenDeadline
	}
	o.stack.Begun = func() {
		p.Heading("Starting Kubernetes, a simulated Vast.ai market, the controllers and the gateway")
	}
	s, err := startStack(ctx, o.stack)
	if err != nil {
		return err
	}
	cloud := s.Cloud(string(provider.VastAI)) // what the example pool buys from
	p.Pair("kubectl", "KUBECONFIG="+s.Kubeconfig+" "+s.Kubectl)
	p.Pair("gateway", s.Gateway)
	p.Pair("market", fmt.Sprintf("%s, %d offers", cloud.Books, cloud.Offers))
	p.Pair("log", s.LogFile)
	err = tell(ctx, s, demo.Options{
		Kube: s.Rest, Kubectl: s.Kubectl, Kubeconfig: s.Kubeconfig, Examples: examples, Gateway: s.Gateway,
		Provider: cloud.API, Books: cloud.Books, Key: s.CustomerKey, AsWritten: o.asWritten, Clock: now, Print: p,
		LedgerCost: func(ctx context.Context) (string, error) {
			cost, err := s.LedgerCost(ctx)
			return cost.String(), err
		},
		Deadline: limit - now.Since(p.Start),
	})
	if err != nil && ctx.Err() == nil {
		s.KeepLog()
	}
	return ended(ctx, c, errors.Join(err, s.Stop()), now.Since(p.Start), s.LogFile)
}

// ended says how the demo ended, once everything is stopped.
func ended(ctx context.Context, c *console, err error, took time.Duration, log string) error {
	switch {
	case ctx.Err() != nil:
		c.say("\nInterrupted after %.1fs.\n", took.Seconds())
	case err != nil:
		c.say("\nFAILED after %.1fs: %s\nThe log is kept: %s\n", took.Seconds(), inShort(err), log)
	default:
		c.say("\nAll of it was seen, in %.1fs. Every process and every simulated instance is gone.\n", took.Seconds())
		return nil
	}
	return errShown
}

// inShort leaves out what the timeline has said already.
func inShort(err error) string {
	var u *demo.Unmet
	if errors.As(err, &u) {
		return fmt.Sprintf("not seen: %s (%s)", u.Expectation.Name, u.Expectation.Source)
	}
	return err.Error()
}

// tell runs the story until it ends or a part of the stack does.
func tell(ctx context.Context, s *localstack.Stack, o demo.Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.Done():
			cancel(s.Err())
		case <-ctx.Done():
		}
	}()
	return demo.Run(ctx, o)
}

// printer fits the output: colours and the terminal's width where it is one.
func printer(out io.Writer) *demo.Printer {
	const width = 120
	p := &demo.Printer{Out: out, Width: width}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return p
	}
	p.Colour = true
	if w, _, err := term.GetSize(int(f.Fd())); err == nil {
		p.Width = w
	}
	return p
}

// findExamples is the folder with the two files that the demo applies.
func findExamples(dir string) (string, error) {
	candidates := []string{dir}
	if dir == "" {
		candidates = []string{"examples"}
		if own, err := os.Executable(); err == nil {
			candidates = append(candidates, filepath.Join(filepath.Dir(own), "..", "examples"))
		}
	}
	for _, d := range candidates {
		if demo.HasExamples(d) {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("no example files in %s; run this in a checkout of gpuscale or say --examples", candidates[0])
}
