#!/usr/bin/env bash
# Builds what the local stack needs, each part once, and runs "gpuscale" with the arguments given: demo, up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/need.sh

need go git awk
need_go
assets=$(hack/controlplane.sh)
mkdir -p bin
go build -tags=grpcnotrace -o bin/ ./cmd/...
command=$1
shift
exec bin/gpuscale "$command" --assets-dir "$assets" "$@"
