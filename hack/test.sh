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
go build -tags=grpcnotrace -o bin/ ./cmd/...

if [ $# -eq 0 ]; then
	echo "== the chart"
	(cd deploy/helm/test && go test .)
fi

echo "== go test -race"
# -p 1: the two largest packages have several Kubernetes each, and their time limits are for a machine that has room.
race=(go test -race -p "${GPUSCALE_TEST_PARALLEL:-1}" -timeout 40m)
if [ $# -gt 0 ]; then exec "${race[@]}" "$@"; fi

# The kill table starts the controllers some hundred times, which with the detector is as long as all else together. Its
# code runs with the detector in internal/operator.
table=/internal/operator/killtable
mapfile -t packages < <(go list ./... | grep -v "$table\$")
failed=0
"${race[@]}" "${packages[@]}" || failed=1
echo "== go test .$table"
go test -timeout 40m ".$table" || failed=1
# With the detector a caller's own side of TLS takes longer than what is measured, and it is left out above.
echo "== what the agent adds to a request"
go test -count=1 ./internal/agent -run TestAgentFigures/latency || failed=1
# With the detector each costs three times as much, and only some are run above.
echo "== deletions in every order, in every phase"
go test -count=1 ./internal/operator -run 'TestDeletionInEveryOrder|TestTheCRDsAreDeleted' || failed=1
exit "$failed"
