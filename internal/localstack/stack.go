// Package localstack runs all of gpuscale on this machine, without an account anywhere: a real Kubernetes, the
// controllers, the gateway, Redis and the ledger, and in place of clouds simulated ones (internal/cloudsim/clouds) whose
// instances are real agent processes with a simulated engine. Only the clouds and the GPUs are not real.
//
// Every port is on loopback. Stop, and on Linux any other end of this process, ends every process and with it every
// simulated instance.
package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/localkube"
)

// Namespace is where the controllers' Secrets are.
const Namespace = "gpuscale-system"

// ProviderSecret is the Secret in Namespace with the simulated account's key, which the example pools name.
const ProviderSecret = "gpuscale-provider-credentials"

// Options say what to start. The zero value is a stack that leaves nothing behind.
type Options struct {
	// Kubeconfig of a cluster to use in place of a local one. It must not have a gpuscale of its own.
	Kubeconfig string
	// AssetsDir has the programs of a local cluster; empty: localkube.AssetsDir().
	AssetsDir string
	// DataDir keeps cluster and ledger between starts. Empty: a temporary folder that Stop removes.
	DataDir string
	// Port is the gateway's; 0: a free one.
	Port int
	// BinDir has gpuscale-agent and vllm-sim. Empty: this program's folder, then the PATH.
	BinDir string
	// RedisURL is a Redis to use in place of one in this process.
	RedisURL string
	// Bare leaves controllers and gateway to the caller, and has nothing that makes or schedules pods.
	Bare bool
	// Seed decides the market.
	Seed int64
	// Begun is called once what can be refused at once has not been, and the start begins to take time. It may be nil.
	Begun func()
	// Clock is the system's where nil.
	Clock clock.WithTickerAndDelayedExecution
}

// Stack is a running stack. Its fields do not change.
type Stack struct {
	// Rest is for a client that may do everything; Kubeconfig is a file with the same, Kubectl a program to use it.
	Rest                *rest.Config
	Kubeconfig, Kubectl string
	// KubernetesIsOurs: the cluster ends with the stack.
	KubernetesIsOurs bool
	// Gateway is a base URL.
	Gateway string
	// Clouds are the simulated providers.
	Clouds []Cloud
	// CustomerKey opens the simulated accounts besides the key that the controllers have: providers limit calls by key.
	CustomerKey string
	// LogFile has what the controllers and the gateway log.
	LogFile string
	// Agent is what instances are told to fetch.
	Agent bootstrap.Agent

	opts      Options
	dir       string
	temporary bool
	log       logr.Logger
	kube      *localkube.Cluster
	secretKey string
	redis     string
	ledgerURL string

	mu       sync.Mutex
	stops    []func() error // in the order in which things were started
	stopping bool
	keepLog  bool
	failed   error
	done     chan struct{}
}

// Cloud is one simulated provider of a stack.
type Cloud struct {
	// Provider is its name as a pool spells it.
	Provider string
	// API is the base URL of the provider's API; Books is the whole URL of the market's books.
	API, Books string
	// Offers is how many offers the market began with.
	Offers int

	market *market.Market
}

// Start returns a stack that serves. On failure nothing is left running, and the error is one line; what more there is
// to say is in the log file that it names.
func Start(ctx context.Context, o Options) (*Stack, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{} //gpuscale:clock the local stack is a program of its own
	}
	s := &Stack{opts: o, done: make(chan struct{})}
	err := s.start(ctx)
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	line, more, _ := strings.Cut(err.Error(), "\n")
	if more == "" {
		return nil, errors.Join(err, s.Stop())
	}
	s.log.Error(err, "the local stack did not start")
	s.KeepLog()
	return nil, errors.Join(fmt.Errorf("%s (more in %s)", strings.TrimRight(line, ":"), s.LogFile), s.Stop())
}

func (s *Stack) start(ctx context.Context) error {
	// What can be refused at once comes before what takes time.
	programs, err := findPrograms(s.opts.BinDir)
	if err != nil {
		return err
	}
	listener, err := listenGateway(ctx, s.opts.Port)
	if err != nil {
		return err
	}
	s.onStop(func() error { return ignoreClosed(listener.Close()) })
	s.Gateway = "http://" + listener.Addr().String()
	if err := s.openDir(); err != nil {
		return err
	}
	if s.opts.Begun != nil {
		s.opts.Begun()
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.startCloud(gctx, programs) })
	g.Go(func() error { return s.startRedis(ctx) })
	g.Go(func() error { return s.startKubernetes(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := s.furnish(ctx); err != nil || s.opts.Bare {
		return err
	}
	s.startControllers(ctx)
	s.startGateway(ctx, listener)
	return s.awaitGateway(ctx)
}

// Cluster is the stack's own; nil where somebody's is used.
func (s *Stack) Cluster() *localkube.Cluster { return s.kube }

// openDir makes the folder of this stack and its log.
func (s *Stack) openDir() error {
	var err error
	if s.dir = s.opts.DataDir; s.dir == "" {
		s.temporary = true
		if s.dir, err = os.MkdirTemp("", "gpuscale-"); err != nil {
			return err
		}
	} else if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	s.ledgerURL = "sqlite://" + filepath.Join(s.dir, "ledger.db")
	return s.openLog()
}

// onStop adds what undoes a start.
func (s *Stack) onStop(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = append(s.stops, f)
}

// stopTimeout is how long a part that was told to end may take.
const stopTimeout = 10 * time.Second

// background runs a part that lasts as long as the stack, and so beyond the end of ctx. One that ends by itself ends the
// stack.
func (s *Stack) background(ctx context.Context, name string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := run(ctx)
		if ctx.Err() == nil {
			s.fail(name, err)
		}
	}()
	s.onStop(func() error {
		cancel()
		t := s.opts.Clock.NewTimer(stopTimeout)
		defer t.Stop()
		select {
		case <-ended:
			return nil
		case <-t.C():
			return fmt.Errorf("the %s did not end within %s", name, stopTimeout)
		}
	})
}

// fail records the first part that ended when it should not have.
func (s *Stack) fail(name string, err error) {
	if err == nil {
		err = errors.New("it ended by itself")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.failed != nil {
		return
	}
	s.failed = fmt.Errorf("the %s: %w", name, err)
	close(s.done)
}

// Done is closed when a part of the stack has ended by itself; Err says which and why.
func (s *Stack) Done() <-chan struct{} { return s.done }

// Err is nil as long as Done is open.
func (s *Stack) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Stop ends everything that was started, the last first, and returns when it is gone. Further calls do nothing.
func (s *Stack) Stop() error {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return nil
	}
	s.stopping = true
	stops := s.stops
	s.mu.Unlock()
	var errs []error
	for i := len(stops) - 1; i >= 0; i-- {
		errs = append(errs, stops[i]())
	}
	if s.temporary && s.dir != "" {
		errs = append(errs, s.removeDir())
	}
	return errors.Join(errs...)
}

// KeepLog leaves the log file behind when the stack is stopped.
func (s *Stack) KeepLog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepLog = true
}
