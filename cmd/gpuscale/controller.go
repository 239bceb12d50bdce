package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/munhq/gpuscale/internal/controller/workermetrics"
	"github.com/munhq/gpuscale/internal/librarylog"
	"github.com/munhq/gpuscale/internal/operator"
)

// defaultNamespace is used where POD_NAMESPACE does not say in which namespace this process runs.
const defaultNamespace = "gpuscale-system"

type controllerOptions struct {
	kubeconfig string
	// workerMetrics is "core" or "all".
	workerMetrics string
	config        operator.Config
}

func newController(c *console) *cobra.Command {
	var o controllerOptions
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers against a cluster",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runController(cmd.Context(), c, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the pod's own, then $KUBECONFIG)")
	f.StringVar(&o.config.LedgerURL, "ledger", "", "URL of the ledger (default: $POSTGRES_URL, then gpuscale/ledger.db in the user's data folder)")
	f.StringVar(&o.config.RedisURL, "redis", "", "URL of the Redis where gateways write what they are asked for (default: $REDIS_URL; without it requests wake and scale nothing)")
	f.StringVar(&o.config.MetricsAddr, "metrics-addr", ":8081", "address of the metrics; 0 for none")
	f.StringVar(&o.config.WorkerMetrics.Addr, "worker-metrics-addr", ":9091", "address where the workers' metrics are re-exposed; 0 for none")
	f.StringVar(&o.workerMetrics, "worker-metrics", "core", "which of the workers' metrics are re-exposed: core or all")
	f.DurationVar(&o.config.WorkerMetrics.Interval, "worker-metrics-interval", workermetrics.DefaultInterval, "how often each worker is scraped")
	f.StringVar(&o.config.HealthAddr, "health-addr", ":8082", "address of /healthz and /readyz; 0 for none")
	f.BoolVar(&o.config.LeaderElection, "leader-elect", false, "elect a leader, for more than one replica")
	f.StringVar(&o.config.Agent.URL, "agent-url", "", "where instances fetch gpuscale-agent whose pool does not say; {arch} in it stands for amd64 or arm64")
	f.StringVar(&o.config.Agent.SHA256, "agent-sha256", "", "SHA-256 of what --agent-url leads to, of the one for amd64 where that has {arch}")
	f.StringVar(&o.config.Agent.SHA256ARM64, "agent-sha256-arm64", "", "SHA-256 of the one for arm64")
	f.DurationVar(&o.config.WorkerLease, "worker-lease", operator.DefaultWorkerLease, "how long a worker goes on without a call from controller or gateway before it ends its own rental, where its provider lets it; 10m or more")
	f.BoolVar(&o.config.AllGPUPods, "all-gpu-pods", false, "let pods spend money that ask for nvidia.com/gpu and have no gpuscale.io/ annotation")
	return cmd
}

func runController(ctx context.Context, c *console, o controllerOptions) error {
	operator.SpareMemory(c.getenv)
	o.config.Log = useLog()
	o.config.Getenv = c.getenv
	o.config.Namespace = namespaceOf(c)
	o.config.BaseURLs = c.clouds
	if agent := o.config.Agent; (agent.URL == "") != (agent.SHA256 == "") {
		return errors.New("--agent-url and --agent-sha256 belong together: a binary is only run when its hash is known")
	} else if agent.URL != "" {
		if err := agent.Check(); err != nil {
			return fmt.Errorf("--agent-url: %w", err)
		}
	}
	if o.config.WorkerLease < operator.MinWorkerLease {
		return fmt.Errorf("--worker-lease %s is too short: with less than %s an outage that nobody notices would end workers that serve",
			o.config.WorkerLease, operator.MinWorkerLease)
	}
	switch o.workerMetrics {
	case "core", "all":
		o.config.WorkerMetrics.All = o.workerMetrics == "all"
	default:
		return fmt.Errorf("--worker-metrics is core or all, not %q", o.workerMetrics)
	}
	if o.config.WorkerMetrics.Interval < time.Second {
		return fmt.Errorf("--worker-metrics-interval %s: at least a second", o.config.WorkerMetrics.Interval)
	}
	o.config.RedisURL = cmp.Or(o.config.RedisURL, c.getenv("REDIS_URL"))
	var err error
	if o.config.LedgerURL, err = ledgerURL(c, o.config.LedgerURL); err != nil {
		return err
	}
	if o.config.Rest, err = restConfig(o.kubeconfig); err != nil {
		return err
	}
	return operator.Run(ctx, o.config)
}

// useLog sends everything that is logged to the standard error.
func useLog() logr.Logger { return librarylog.To(os.Stderr, librarylog.JSON) }

func namespaceOf(c *console) string {
	if ns := c.getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	return defaultNamespace
}

// ledgerURL is what was asked for, else a file where this user's programs keep data.
func ledgerURL(c *console, asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	if url := c.getenv("POSTGRES_URL"); url != "" {
		return url, nil
	}
	dir := c.getenv("XDG_DATA_HOME")
	if dir == "" {
		home := c.getenv("HOME")
		if home == "" {
			return "", errors.New("there is nowhere to keep the ledger: set --ledger, POSTGRES_URL or HOME")
		}
		dir = filepath.Join(home, ".local", "share")
	}
	dir = filepath.Join(dir, "gpuscale")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return "sqlite://" + filepath.Join(dir, "ledger.db"), nil
}

// restConfig is for the cluster that a kubeconfig names, or that this process runs in.
func restConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster: set --kubeconfig or KUBECONFIG, or run this in a pod")
	}
	return config, err
}
