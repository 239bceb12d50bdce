#!/usr/bin/env bash
# Builds gpuscale-agent for the processors that machines are rented with, and prints what pools say of it. VERSION names
# the build.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/need.sh

need go
need_go
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
mkdir -p dist
for arch in amd64 arm64; do
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w -X main.version=$version" \
		-o "dist/gpuscale-agent-linux-$arch" ./cmd/gpuscale-agent
done
sum() { sha256sum "dist/gpuscale-agent-linux-$1" | cut -d" " -f1; }
cat <<EOF
Serve dist/gpuscale-agent-linux-* where rented machines reach them, and say so in the pool:

  bootstrap:
    agentURL: https://YOUR-SERVER/gpuscale-agent-linux-{arch}
    agentSHA256: $(sum amd64)
    agentSHA256ARM64: $(sum arm64)
EOF
