SHELL := /bin/bash
.DEFAULT_GOAL := help

CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### Build

.PHONY: build
build: ## Build the commands into bin/.
	go build -tags=grpcnotrace -o bin/ ./cmd/...

.PHONY: agents
agents: ## Build the agent for rented machines into dist/, and print what a pool says of it.
	@hack/agents.sh

.PHONY: generate
generate: ## Write deep copies and CRDs from the API types, and the chart's copy of them.
	$(CONTROLLER_GEN) object paths=./api/...
	$(CONTROLLER_GEN) crd:allowDangerousTypes=false paths=./api/... output:crd:artifacts:config=config/crd
	cp config/crd/*.yaml deploy/helm/gpuscale/crds/

.PHONY: controlplane
controlplane: ## Build the local Kubernetes once (some minutes) and print its folder.
	@hack/controlplane.sh

##### Check

.PHONY: test
test: ## Run every test, nearly all with the race detector; gets what it needs itself.
	@hack/test.sh

.PHONY: lint
lint: ## Run the linters (built once).
	@hack/lint.sh

.PHONY: bench
bench: ## Measure plan, purchases, memory and API calls (10 minutes), and write bench.json.
	@hack/bench.sh

##### Run

# ARGS are options of the command: make demo ARGS=--as-written, make up ARGS="--port 9000".

.PHONY: demo
demo: ## Show a pod that buys a GPU, is served on it, and gives it back (nothing costs money).
	@hack/gpuscale.sh demo $(ARGS)

.PHONY: up
up: ## Run all of gpuscale on this machine, with a simulated cloud, until Ctrl-C.
	@hack/gpuscale.sh up $(ARGS)
