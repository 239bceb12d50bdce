// Command vllm-sim stands in for `vllm serve` where there is no GPU. Package
// vllmsim documents its environment and the model names that make it fail.
//
// Called by the name docker it is a stand-in for Docker's command line, which
// runs it: see package dockersim.
package main

import (
	"os"
	"path/filepath"

	"github.com/munhq/gpuscale/internal/cloudsim/dockersim"
	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
)

func main() {
	if filepath.Base(os.Args[0]) == "docker" {
		os.Exit(dockersim.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
	}
	os.Exit(vllmsim.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
