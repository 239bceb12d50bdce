// Command vllm-sim stands in for `vllm serve` where there is no GPU. Package
// vllmsim documents its environment and the model names that make it fail.
package main

import (
	"os"

	"github.com/munhq/gpuscale/internal/cloudsim/vllmsim"
)

func main() {
	os.Exit(vllmsim.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
