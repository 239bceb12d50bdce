package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/munhq/gpuscale/internal/gatewayrun"
)

type gatewayOptions struct {
	kubeconfig, listen, keysFile, defaultModel string
	grace                                      time.Duration
}

func newGateway(c *console) *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer the OpenAI API for all models that a cluster's claims serve",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGateway(cmd.Context(), c, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the pod's own, then $KUBECONFIG)")
	f.StringVar(&o.listen, "listen", ":8080", "address to answer on")
	f.StringVar(&o.keysFile, "keys-file", "", "file with API keys, a line each of the form name=key (default: everybody may ask)")
	f.StringVar(&o.defaultModel, "default-model", "", "model of requests that name none (default: the only one, where there is one)")
	f.DurationVar(&o.grace, "grace", 30*time.Second, "how long answers under way may take when the gateway ends")
	return cmd
}

func runGateway(ctx context.Context, c *console, o gatewayOptions) error {
	log := useLog()
	keys, err := readKeys(o.keysFile)
	if err != nil {
		return err
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	return gatewayrun.Run(ctx, gatewayrun.Config{
		Rest: config, Namespace: namespaceOf(c), Listener: l, Keys: keys, DefaultModel: o.defaultModel, Grace: o.grace, Log: log,
		Clock: clock.RealClock{}, //gpuscale:clock the gateway's process makes its clock here
	})
}

// readKeys reads lines of name=key; empty lines and those that begin with # are left out. No error repeats a key.
func readKeys(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys := map[string]string{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, key, ok := strings.Cut(line, "=")
		name, key = strings.TrimSpace(name), strings.TrimSpace(key)
		if _, twice := keys[name]; !ok || name == "" || key == "" || twice {
			return nil, fmt.Errorf("%s: line %d is not name=key, with a name that no other line has", path, n)
		}
		keys[name] = key
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no keys in it; leave --keys-file out to let everybody ask", path)
	}
	return keys, nil
}
