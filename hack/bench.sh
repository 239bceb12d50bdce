#!/usr/bin/env bash
# Measures gpuscale, prints a table and writes bench.json. Arguments are the groups of docs/benchmarks.md to measure
# (default all).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/need.sh

need go git awk nginx
need_go
hack/controlplane.sh >/dev/null
exec go run ./internal/bench/cmd "$@"
