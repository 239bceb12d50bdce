package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/munhq/gpuscale/internal/localstack"
)

// stackFlags are those of every command that starts the local stack.
func stackFlags(cmd *cobra.Command, o *localstack.Options, port int) {
	f := cmd.Flags()
	f.IntVar(&o.Port, "port", port, "port of the gateway on 127.0.0.1; 0 takes any free one")
	f.StringVar(&o.DataDir, "data-dir", "", "folder that keeps the cluster and the ledger between starts (default: nothing is kept)")
	f.StringVar(&o.BinDir, "bin-dir", "", "folder with gpuscale-agent and vllm-sim (default: where gpuscale is, then the PATH)")
	f.StringVar(&o.AssetsDir, "assets-dir", "", "folder with the programs of a local Kubernetes (default: $KUBEBUILDER_ASSETS, then what make controlplane built)")
	f.Int64Var(&o.Seed, "seed", 1, "seed of the simulated market: the same seed has the same offers")
}

func checkPort(port int) error {
	if port < 0 || port > 65535 {
		return usageError{fmt.Errorf("--port %d is no port; use 1 to 65535, or 0 for any free one", port)}
	}
	return nil
}

// startStack starts a stack in a way that an interrupt can end.
func startStack(ctx context.Context, o localstack.Options) (*localstack.Stack, error) {
	s, err := localstack.Start(ctx, o)
	if err != nil && ctx.Err() != nil {
		return nil, errInterrupted
	}
	return s, err
}
