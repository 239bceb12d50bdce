// Package localkube runs a real Kubernetes on this machine's loopback: etcd, kube-apiserver, kube-controller-manager
// and kube-scheduler as child processes, without root, containers or network. Deployments make pods and the scheduler
// judges them; no node ever exists, so a pod stays Pending and is marked Unschedulable.
//
// RBAC is on, every port is behind TLS with client certificates, and nothing of it outlives this process on Linux,
// however this process ends.
package localkube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// startTimeout bounds a start on a loaded machine; an idle one takes seconds.
	startTimeout = 3 * time.Minute
	// startAttempts is how often a port may be lost to another process between finding it free and using it.
	startAttempts = 4
	// etcdGrace is how long etcd may take to close data that are kept.
	etcdGrace = 10 * time.Second
)

// Options say what to start. The zero value is a throw-away cluster from AssetsDir().
type Options struct {
	// AssetsDir holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl. Empty: AssetsDir().
	AssetsDir string
	// DataDir keeps the cluster between starts: the same objects, CA and tokens, at another port unless Port is set.
	// One process at a time may use it. The data survive a killed process, not a crash of the machine. Empty: a
	// temporary folder that Stop removes.
	DataDir string
	// Port is the API server's. Zero: a free one.
	Port int
	// APIOnly leaves the controller manager and the scheduler out, which is faster and takes half the memory:
	// Deployments make no pods, namespaces are not emptied, nothing is scheduled, pods need no service account.
	APIOnly bool
	// Log is told what is started and stopped. The zero value is silent.
	Log logr.Logger
}

// Cluster is a running Kubernetes. Its methods may be called from any goroutine.
type Cluster struct {
	opts   Options
	data   *dataDir
	layout layout
	config *rest.Config

	mu       sync.Mutex
	running  []*process // in the order they were started
	stopping bool
	err      error
	done     chan struct{}
}

// Start returns a cluster that is ready: the API server answers, the controllers and the scheduler have their caches,
// and the default namespace has its service account. On failure nothing is left running, and the error names the
// component and shows the end of its log. ctx bounds the start only; the cluster lasts until Stop, or on Linux until
// this process ends.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.AssetsDir == "" {
		dir, err := AssetsDir()
		if err != nil {
			return nil, err
		}
		opts.AssetsDir = dir
	}
	assets, err := filepath.Abs(opts.AssetsDir)
	if err != nil {
		return nil, err
	}
	opts.AssetsDir = assets
	if err := checkAssets(opts.AssetsDir, opts.programs()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		c, err := startOnce(ctx, opts)
		if err == nil {
			return c, nil
		}
		if attempt == startAttempts || !strings.Contains(err.Error(), "address already in use") {
			return nil, fmt.Errorf("start a local Kubernetes: %w", err)
		}
		opts.Log.Info("a port was taken meanwhile, starting again", "attempt", attempt)
	}
}

func (o Options) programs() []string {
	if o.APIOnly {
		return []string{etcd, apiserver}
	}
	return []string{etcd, apiserver, controllerManager, scheduler}
}

func startOnce(ctx context.Context, opts Options) (*Cluster, error) {
	data, err := openDataDir(opts.DataDir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, data: data, done: make(chan struct{})}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	// The API server waits for etcd by itself. The two others give up on an API server that is slow to come.
	if err := c.launch(etcd, c.layout.etcdArgs()); err != nil {
		return err
	}
	if err := c.launch(apiserver, c.layout.apiserverArgs(!c.opts.APIOnly)); err != nil {
		return err
	}
	if err := c.await(ctx, apiserver, c.layout.ports.apiserver, "/readyz"); err != nil || c.opts.APIOnly {
		return err
	}
	if err := c.launch(controllerManager, c.layout.controllerManagerArgs()); err != nil {
		return err
	}
	if err := c.launch(scheduler, c.layout.schedulerArgs()); err != nil {
		return err
	}
	for _, wait := range []struct {
		component string
		port      int
		path      string
	}{
		{controllerManager, c.layout.ports.controllerManager, "/healthz"},
		{scheduler, c.layout.ports.scheduler, "/readyz"},
		// The controller manager is healthy before its controllers have done anything, and until this one has, pods
		// are refused.
		{controllerManager, c.layout.ports.apiserver, "/api/v1/namespaces/default/serviceaccounts/default"},
	} {
		if err := c.await(ctx, wait.component, wait.port, wait.path); err != nil {
			return err
		}
	}
	return nil
}

// prepare writes the certificates and kubeconfigs.
func (c *Cluster) prepare() error {
	c.layout.dir = c.data.path
	var err error
	if c.layout.pki, err = ensurePKI(filepath.Join(c.data.path, "pki"), clock.RealClock{}.Now()); err != nil {
		return err
	}
	if c.layout.ports, err = freePorts(c.opts.Port); err != nil {
		return fmt.Errorf("find free ports: %w", err)
	}
	if c.config, err = c.layout.restConfig(pairAdmin); err != nil {
		return err
	}
	for _, pair := range []string{pairAdmin, pairControllerManager, pairScheduler} {
		if err := c.layout.writeKubeconfig(pair); err != nil {
			return fmt.Errorf("write a kubeconfig: %w", err)
		}
	}
	return nil
}

func (c *Cluster) launch(name string, args []string) error {
	p, err := startProcess(name, filepath.Join(c.opts.AssetsDir, name), args, c.layout.dir, c.exited)
	if err != nil {
		return err
	}
	c.opts.Log.V(1).Info("started a component", "component", name, "pid", p.cmd.Process.Pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = append(c.running, p)
	return nil
}

// exited records the first component that ended when it should not have.
func (c *Cluster) exited(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.err != nil || p.expected {
		return
	}
	c.err = p.failure()
	close(c.done)
}

// Config is for a client that may do everything. Each call returns a copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig is the path of a file for kubectl and others with the same rights, readable by this user only. It is
// valid while the cluster runs.
func (c *Cluster) Kubeconfig() string { return c.layout.kubeconfig(pairAdmin) }

// Kubectl is the path of a kubectl of the cluster's version.
func (c *Cluster) Kubectl() string { return filepath.Join(c.opts.AssetsDir, kubectl) }

// Done is closed when a component has ended by itself, after which Err says why, or when Stop has ended all.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err is nil while the cluster runs and after a Stop; else it names the component that ended and shows its last log.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stop returns when every process is gone and temporary data are removed. Further calls do nothing.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	if c.stopping {
		c.mu.Unlock()
		return nil
	}
	c.stopping = true
	running, failed := c.running, c.err != nil
	c.mu.Unlock()

	var errs []error
	for i := len(running) - 1; i >= 0; i-- {
		// Only etcd has anything to lose, and only where it is kept.
		var grace time.Duration
		if running[i].name == etcd && !c.data.temporary {
			grace = etcdGrace
		}
		errs = append(errs, running[i].stop(grace))
	}
	errs = append(errs, c.data.close())
	if !failed {
		close(c.done)
	}
	c.opts.Log.V(1).Info("stopped the local Kubernetes")
	return errors.Join(errs...)
}
