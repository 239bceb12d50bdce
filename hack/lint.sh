#!/usr/bin/env bash
# Runs golangci-lint, building the pinned version once. Arguments are its own: packages (default all) and flags.
#
#   hack/lint.sh
#   hack/lint.sh ./pkg/money/... --fix
#
# GPUSCALE_CACHE   where the build is kept (default ~/.cache/gpuscale)
#
# It is installed by version, outside this module, so that its hundreds of dependencies stay out of our go.mod.
set -euo pipefail

version=v2.15.0
cache=${GPUSCALE_CACHE:-$HOME/.cache/gpuscale}
linter=$cache/golangci-lint-$version
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! -x $linter ]]; then
	echo "lint: building golangci-lint $version, once, into $cache" >&2
	mkdir -p "$cache"
	# Into a folder of its own and moved when whole: another run may be doing the same, or this one may be stopped.
	build=$(mktemp -d "$cache/lint.XXXXXX")
	trap 'rm -rf "$build"' EXIT
	GOWORK=off GOBIN=$build go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
	mv -f "$build/golangci-lint" "$linter"
	rm -rf "$build"
	trap - EXIT
fi

if [[ $# -eq 0 ]]; then
	set -- ./...
fi
exec "$linter" run --allow-parallel-runners "$@"
