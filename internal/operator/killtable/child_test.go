// Package killtable_test ends the controllers' process at every write and on both sides of every call to a provider, an
// agent and the ledger, starts it again, and asks the market's books what became of the money.
//
// The controllers run in a process of their own: this test binary, started again with a setting in its environment. The
// simulated market, its API and Kubernetes live in the test's process and never notice more than a broken connection.
package killtable_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/controller/claim"
	"github.com/munhq/gpuscale/internal/controller/sweep"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
	"github.com/munhq/gpuscale/pkg/provider"
)

const (
	childEnv   = "GPUSCALE_KILLTABLE_CHILD"
	killed     = 137
	simKey     = "sim-key-0123456789"
	system     = "gpuscale-system"
	secretName = "gpuscale-provider-credentials"
)

// sweeps are the sweep's intervals in every run.
var sweeps = sweep.Timing{Period: 200 * time.Millisecond, MinAge: time.Second, MaxOrphans: 5, ListTimeout: 5 * time.Second}

func TestMain(m *testing.M) {
	if settings := os.Getenv(childEnv); settings != "" {
		if err := child(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	localkubetest.Main(m)
}

// orders are what a child process is told.
type orders struct {
	Kubeconfig, Market, Ledger string
	// KillAt is the point to end at, "" for none. Trace is the file that every point is written to.
	KillAt, Trace string
	// Panics: the end at KillAt is a panic. Env is what the child's controllers are shown as the environment.
	Panics bool
	Env    map[string]string
	Habits habits
}

// habits are what a provider declares and whether it has an idempotency key. Lag is how long its instances really stay
// invisible.
type habits struct {
	Name                     string
	Lag, ListLag, CreateTime time.Duration
	Key                      bool
}

// declared shortens what takes minutes by contract.
type declared struct {
	provider.Provider
	habits habits
}

func (d declared) Capabilities() provider.Capabilities {
	c := d.Provider.Capabilities()
	c.ListLag, c.CreateTimeout, c.IdempotentCreate = d.habits.ListLag, d.habits.CreateTime, d.habits.Key
	c.MinPollInterval, c.SearchInterval = 20*time.Millisecond, 20*time.Millisecond
	return c
}

// child runs the controllers until the trap ends the process, or until the parent lets go of its standard input.
func child(settings string) error {
	var o orders
	if err := json.Unmarshal([]byte(settings), &o); err != nil {
		return err
	}
	trap, err := newTrap(o)
	if err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 1000, 1000
	cfg.Wrap(trap.kubernetes)
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return operator.Run(ctx, operator.Config{
		Rest: cfg, Namespace: system, LedgerURL: "sqlite://" + o.Ledger, Getenv: func(name string) string { return o.Env[name] },
		BaseURLs: map[provider.Name]string{provider.VastAI: o.Market}, PaceFactor: -1, Transport: trap.provider(),
		Wrap:        func(p provider.Provider) provider.Provider { return declared{p, o.Habits} },
		WrapLedger:  func(l claim.Ledger) claim.Ledger { return tracedLedger{l, trap} },
		WrapWorkers: func(w claim.Workers) claim.Workers { return tracedWorkers{w, trap} },
		Agent:       bootstrap.Agent{URL: "http://127.0.0.1:1/gpuscale-agent", SHA256: strings.Repeat("0", 64)},
		Sweep:       sweeps,
		MetricsAddr: "0", HealthAddr: "0", OrphanAge: 2 * time.Second,
		Timing: claim.Timing{BootPoll: 40 * time.Millisecond, ReadyPoll: 100 * time.Millisecond, AgentTimeout: 2 * time.Second,
			Skew: 100 * time.Millisecond, LicenceWait: 3 * time.Second, DestroyRetry: 100 * time.Millisecond},
		Log: logr.Discard(),
	})
}
