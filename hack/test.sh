#!/usr/bin/env bash
# Runs every test, and first gets what they need: from the PATH, else from the distribution's packages when this is root
# on Debian or Ubuntu, else it says what is missing. Arguments go to "go test" in place of ./... .
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/need.sh

need go git gcc curl wget python3 shellcheck cloud-init systemd-analyze initdb redis-server
need_go

echo "== the local Kubernetes (built once)"
hack/controlplane.sh

echo "== commands"
go build -o bin/ ./cmd/...

if [ $# -eq 0 ]; then
	echo "== the chart"
	(cd deploy/helm/test && go test .)
fi

echo "== go test -race"
if [ $# -eq 0 ]; then set -- ./...; fi
# -p 1: the two largest packages have several Kubernetes each, and their time limits are for a machine that has room.
exec go test -race -p "${GPUSCALE_TEST_PARALLEL:-1}" -timeout 40m "$@"
