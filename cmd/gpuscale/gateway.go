package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gateway/backends"
	"github.com/munhq/gpuscale/internal/gatewayrun"
	"github.com/munhq/gpuscale/internal/librarylog"
)

type gatewayOptions struct {
	kubeconfig, listen, metricsAddr string
	otlpEndpoint                    string
	claims, claimsSet               bool
	backends                        []string
	config                          gatewayrun.Config
}

func newGateway(c *console) *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer the OpenAI API for all models that a cluster's claims serve",
		Long: "Answers the OpenAI API for all models that a cluster's claims serve and its pools list. A request for one that no\n" +
			"worker serves waits until one does. $REDIS_URL names the Redis through which such requests wake models; without it\n" +
			"they wake none.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.claimsSet = cmd.Flags().Changed("claims")
			return runGateway(cmd.Context(), c, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the pod's own, then $KUBECONFIG)")
	f.BoolVar(&o.claims, "claims", true, "serve the cluster's claims (default: yes, unless there are backends and no cluster)")
	f.StringArrayVar(&o.backends, "backend", nil, "also serve model=http://host:port[,http://host:port], or all models of a URL "+
		"alone; repeatable; $VLLM_API_KEY is sent as the key (default: $VLLM_URL, for $MODEL_ID)")
	f.StringVar(&o.listen, "listen", ":8080", "address to answer on")
	f.StringVar(&o.otlpEndpoint, "otlp-endpoint", "", "send traces of requests to this OTLP collector by HTTP, such as "+
		"http://otel-collector:4318 (default: $OTEL_EXPORTER_OTLP_ENDPOINT; without either there are none)")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9092", "address of the metrics; 0 for none")
	f.StringVar(&o.config.KeysFile, "keys-file", "", "file with API keys, a line each of the form name=key, or name=key "+
		"concurrency=8; read again when it changes (default: everybody may ask)")
	f.StringVar(&o.config.DefaultModel, "default-model", "", "model of requests that name none (default: the only one, where there is one)")
	f.IntVar(&o.config.WorkerLimit, "worker-concurrency", 0, "requests that a worker may have at once from this gateway; 0 leaves it to the worker")
	f.DurationVar(&o.config.Grace, "grace", 30*time.Second, "how long answers under way may take when the gateway ends")
	f.DurationVar(&o.config.HoldLimit, "hold-limit", gateway.DefaultHoldLimit,
		"how long a request for a model without a ready worker waits for one; 0 lets none wait")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if o.config.HoldLimit < 0 {
			return usageError{fmt.Errorf("--hold-limit %s is negative; use 0 to let no request wait", o.config.HoldLimit)}
		}
		return nil
	}
	return cmd
}

func runGateway(ctx context.Context, c *console, o gatewayOptions) error {
	cfg := o.config
	said := librarylog.Gather(os.Stderr)
	defer said.Close()
	cfg.Log, cfg.Namespace, cfg.BackendKey = librarylog.To(said, librarylog.JSON), namespaceOf(c), c.getenv("VLLM_API_KEY")
	cfg.Clock = clock.RealClock{} //gpuscale:clock the gateway's process makes its clock here
	cfg.RedisURL = c.getenv("REDIS_URL")
	var err error
	if cfg.ID, err = gatewayID(); err != nil {
		return err
	}
	if cfg.Backends, err = backendsOf(c, o.backends); err != nil {
		return usageError{err}
	}
	if o.claims {
		cfg.Rest, err = restConfig(o.kubeconfig)
		switch {
		case err != nil && len(cfg.Backends) > 0 && !o.claimsSet:
			cfg.Log.Info("no cluster: only the plain backends are served", "reason", err.Error())
		case err != nil:
			return err
		}
	}
	if o.otlpEndpoint != "" || c.getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+c.getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		if cfg.Traces, err = gatewayrun.NewTraces(ctx, o.otlpEndpoint, cfg.Log); err != nil {
			return err
		}
	}
	if cfg.Listener, err = listen(ctx, o.listen, "--listen"); err != nil {
		return err
	}
	if o.metricsAddr != "0" {
		if cfg.Metrics, err = listen(ctx, o.metricsAddr, "--metrics-addr"); err != nil {
			_ = cfg.Listener.Close() // The error is the other one's.
			return err
		}
	}
	// A gateway has little alive and makes as much garbage as it has requests, so that the collector would run all the time.
	// What is never written to takes no memory, but counts.
	spare := make([]byte, spareHeap)
	defer runtime.KeepAlive(spare)
	return gatewayrun.Run(ctx, cfg)
}

// spareHeap counts as alive: the heap may grow by twice as much before garbage is collected.
const spareHeap = 16 << 20

// gatewayID is the host's name, which is the pod's, for people, and a number for what ran there before.
func gatewayID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	return host + "-" + strings.ToLower(rand.Text()[:8]), nil
}

func listen(ctx context.Context, address, flag string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w; choose another address with %s", err, flag)
	}
	return l, nil
}

// backendsOf reads the flags, or VLLM_URL and MODEL_ID where there are none.
func backendsOf(c *console, flags []string) ([]backends.Backend, error) {
	if u := c.getenv("VLLM_URL"); len(flags) == 0 && u != "" {
		if model := c.getenv("MODEL_ID"); model != "" {
			u = model + "=" + u
		}
		flags = []string{u}
	}
	list := make([]backends.Backend, 0, len(flags))
	for _, text := range flags {
		b, err := backends.Parse(text)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}
