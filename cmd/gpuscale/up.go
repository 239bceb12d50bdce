package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/munhq/gpuscale/internal/localstack"
	"github.com/munhq/gpuscale/pkg/provider"
)

// defaultUpPort is where `gpuscale up` serves: commands that a person keeps go on working after a restart.
const defaultUpPort = 8080

var errInterrupted = errors.New("interrupted")

func newUp(c *console) *cobra.Command {
	var o localstack.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run all of gpuscale on this machine, with a simulated cloud, until Ctrl-C",
		Long: "Runs Kubernetes, the controllers, the gateway, Redis and the ledger on this machine, and simulated clouds whose\n" +
			"instances are processes. Apply pools and pods to it, and ask the gateway. Nothing costs money.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runUp(cmd.Context(), c, o) },
	}
	stackFlags(cmd, &o, defaultUpPort)
	cmd.Flags().StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of a cluster to use in place of a local one")
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkPort(o.Port) }
	return cmd
}

func runUp(ctx context.Context, c *console, o localstack.Options) error {
	o.Begun = func() { c.say("Starting Kubernetes, the simulated clouds, the controllers and the gateway.\n") }
	s, err := startStack(ctx, o)
	if err != nil {
		return err
	}
	welcome(c, s)
	select {
	case <-ctx.Done():
		err = nil
	case <-s.Done():
		err = s.Err()
		s.KeepLog()
	}
	spent, live := s.Spent()
	c.say("\nStopping: %d simulated %s now. Altogether $%.6f was spent by the markets' books.\n", live, endWord(live), spent)
	if !s.KubernetesIsOurs {
		c.say("Pools, pods and claims stay in the cluster of %s, and go on when gpuscale up is run on it again.\n", s.Kubeconfig)
	}
	return errors.Join(err, s.Stop())
}

func endWord(n int) string {
	if n == 1 {
		return "instance ends"
	}
	return "instances end"
}

// welcome says how to use the stack, in lines that can be copied.
func welcome(c *console, s *localstack.Stack) {
	vast := s.Cloud(string(provider.VastAI))
	var markets strings.Builder
	for _, m := range s.Clouds {
		_, _ = fmt.Fprintf(&markets, "  %-12s %s (%d offers; its API is at %s)\n", m.Provider, m.Books, m.Offers, m.API)
	}
	c.say(`
gpuscale is up. The clouds and their GPUs are simulated, all else is real.

  export KUBECONFIG=%s
  export PATH=%s:$PATH

  gateway      %s
  log          %s

Books of the simulated clouds:

%s
Try, in another terminal:

  kubectl apply -f examples/gpunodepool-vast.yaml -f examples/sample-workload.yaml
  kubectl get gpunodepools,gpunodeclaims
  kubectl wait --for=condition=gpuscale.io/Served pod/sample-workload --timeout=2m
  curl %s/v1/models
  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "Qwen/Qwen2.5-1.5B-Instruct", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
  curl '%s?series=0'
  kubectl delete -f examples/sample-workload.yaml

examples/gpunodepool-multi.yaml is one pool over all of these clouds. A pool of your own finds the keys of the
simulated accounts in the Secret %s in %s.
Ctrl-C ends everything.
`, s.Kubeconfig, filepath.Dir(s.Kubectl), s.Gateway, s.LogFile, markets.String(), s.Gateway, s.Gateway,
		vast.Books, localstack.ProviderSecret, localstack.Namespace)
}
