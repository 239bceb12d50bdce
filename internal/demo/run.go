package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Files of the demo, in the folder of examples.
const (
	poolFile = "gpunodepool-vast.yaml"
	podFile  = "sample-workload.yaml"
)

// Names in them.
const (
	poolName  = "inference"
	podName   = "sample-workload"
	namespace = "default"
)

// shorter is the patch that makes the demo short.
const shorter = `{"spec":{"scaling":{"batchWindow":"1s","cooldownPeriod":"5s"}}}`

// Options say where everything is.
type Options struct {
	Kube *rest.Config
	// Kubectl and Kubeconfig are for the commands that a user would type.
	Kubectl, Kubeconfig string
	// Examples is the folder with the two files.
	Examples string
	// Gateway and Provider are base URLs; Books is the whole URL of the market's books.
	Gateway, Provider, Books string
	// Key opens the account at the provider. It is one of the demo's own: the provider limits calls by key.
	Key string
	// LedgerCost is what the ledger has for everything bought so far, in dollars.
	LedgerCost func(ctx context.Context) (string, error)
	// AsWritten leaves the pool's batch window and cooldown as the file has them.
	AsWritten bool
	// Deadline is how long everything from now on may take.
	Deadline time.Duration
	Clock    clock.Clock
	Print    *Printer
}

// run is one telling of the story.
type run struct {
	Options
	world   *World
	story   *Story
	updates chan update
}

// Run tells the story and returns nil when every expectation was met. An *Unmet names the first that was not.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Deadline, errTooLong)
	defer cancel()
	chapters := []struct {
		heading string
		do      func(context.Context) error
		expect  []Expectation
	}{
		{heading: "A pod asks for a GPU that the cluster does not have"},
		{"gpuscale buys one", nil, Buying()},
		{"The instance boots", nil, Booting()},
		{"It answers, through the gateway", nil, Answering()},
		{"The pod goes, and so does the instance", nil, GivingBack()},
	}
	r := &run{Options: o, world: NewWorld(), updates: make(chan update, 1024)}
	chapters[0].do, chapters[3].do, chapters[4].do = r.apply, r.ask, r.deletePod
	var all []Expectation
	for _, c := range chapters {
		all = append(all, c.expect...)
	}
	r.story = NewStory(all)
	if err := r.observe(ctx); err != nil {
		return err
	}
	for _, c := range chapters {
		o.Print.Heading(c.heading)
		if c.do != nil {
			if err := c.do(ctx); err != nil {
				return r.failed(ctx, err)
			}
		}
		if err := r.tell(ctx, len(c.expect)); err != nil {
			return r.failed(ctx, err)
		}
	}
	return nil
}

var errTooLong = errors.New("the time is up")

func (r *run) observe(ctx context.Context) error {
	o := &observer{clock: r.Clock, updates: r.updates}
	if err := o.watchKubernetes(ctx, r.Kube, namespace, podName); err != nil {
		return err
	}
	go o.poll(ctx, providerPause, o.rented(r.Provider, r.Key))
	go o.poll(ctx, booksPause, o.books(r.Books))
	go o.poll(ctx, gatewayPause, o.models(r.Gateway))
	go o.poll(ctx, ledgerPause, o.ledger(r.LedgerCost))
	return nil
}

// tell waits for the next so many expectations and writes each as it is met.
func (r *run) tell(ctx context.Context, count int) error {
	for count > 0 {
		line, ok, err := r.story.Told(r.world)
		if err != nil {
			return err
		}
		if ok {
			r.Print.Line(r.Clock.Now(), line)
			count--
			continue
		}
		select {
		case u := <-r.updates:
			u(r.world)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// An instance that failed never serves; waiting for it to would only hide why.
		if c := r.world.Claim; c != nil && c.Status.Failure != nil {
			return errors.New("the purchase failed")
		}
	}
	return nil
}

// failed names the first expectation that was not met, whatever the reason for giving up.
func (r *run) failed(ctx context.Context, err error) error {
	var u *Unmet
	if !errors.As(err, &u) {
		e, _ := r.story.Waiting()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, errTooLong) {
			err = cause
		}
		u = &Unmet{Expectation: e, Why: fmt.Sprintf("%v; %s", err, r.world.Trouble())}
	}
	r.Print.Failed(r.Clock.Now(), u)
	return u
}

func (r *run) apply(ctx context.Context) error {
	for _, file := range []string{poolFile, podFile} {
		if err := r.kubectl(ctx, "apply", "-f", r.shown(file)); err != nil {
			return err
		}
	}
	if r.AsWritten {
		return nil
	}
	return r.kubectl(ctx, "patch", "gpunodepool", poolName, "--type", "merge", "-p", shorter)
}

// shown is the path of an example as a user in the folder above would write it.
func (r *run) shown(file string) string {
	path := filepath.Join(r.Examples, file)
	if cwd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(cwd, path); err == nil && !strings.HasPrefix(rel, "..") {
			return rel
		}
	}
	return path
}

func (r *run) deletePod(ctx context.Context) error {
	return r.kubectl(ctx, "delete", "pod", podName)
}

// kubectl shows a command and runs it.
func (r *run) kubectl(ctx context.Context, args ...string) error {
	typed := make([]string, len(args))
	for i, a := range args {
		typed[i] = quoted(a)
	}
	r.Print.Command(r.Clock.Now(), "kubectl "+strings.Join(typed, " "))
	cmd := exec.CommandContext(ctx, r.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.Kubeconfig)
	out, err := cmd.CombinedOutput()
	r.Print.Output(string(out))
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, lastLine(string(out)))
	}
	return nil
}

func quoted(arg string) string {
	if strings.ContainsAny(arg, ` "{}'$`) {
		return "'" + arg + "'"
	}
	return arg
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func (r *run) ask(ctx context.Context) error {
	r.Print.Command(r.Clock.Now(), askCommand(r.Gateway))
	r.world.Asking(r.Clock.Now())
	a := ask(ctx, r.Gateway, r.Clock, r.Print.Stream)
	r.Print.EndStream()
	if a.Err != "" {
		return errors.New("the gateway: " + a.Err)
	}
	r.world.Answer = a
	return nil
}

// HasExamples reports that a folder has the files that the demo applies.
func HasExamples(dir string) bool {
	for _, f := range []string{poolFile, podFile} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return false
		}
	}
	return true
}
