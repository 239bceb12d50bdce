#!/usr/bin/env bash
# Prints the folder that holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, building them
# first when that has not been done for this source, platform and Go version. Only the folder goes to stdout.
#
#   hack/controlplane.sh            build when needed
#   hack/controlplane.sh --cached   never build: fail when there is no finished build
#
# KUBEBUILDER_ASSETS   a folder to use instead, never written to
# GPUSCALE_CACHE       where builds are kept (default ~/.cache/gpuscale)
set -euo pipefail

programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl)
module=$(cd "$(dirname "${BASH_SOURCE[0]}")/../controlplane" && pwd)

die() {
	echo "controlplane: $*" >&2
	exit 1
}

sha256() {
	if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi
}

# The first version is at least the second. Written out because macOS has no version sort.
at_least() {
	awk -v have="$1" -v want="$2" 'BEGIN {
		split(have, h, /[^0-9]+/); split(want, w, /[^0-9]+/)
		for (i = 1; i <= 3; i++) { if (h[i]+0 != w[i]+0) exit (h[i]+0 < w[i]+0) }
	}'
}

given_assets() {
	local program
	for program in "${programs[@]}"; do
		[[ -x $KUBEBUILDER_ASSETS/$program ]] ||
			die "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which has no $program (needed: ${programs[*]})"
	done
	printf '%s\n' "$KUBEBUILDER_ASSETS"
}

go_env() {
	cd "$module" && GOWORK=off go env GOVERSION GOOS GOARCH
}

# Sets goversion, and GOOS and GOARCH as Go sees them.
check_go() {
	local want env
	want=$(awk '$1 == "go" {print $2}' "$module/go.mod")
	command -v go >/dev/null || die "go is not in PATH; Go $want or newer is needed (https://go.dev/dl)"
	# In the module's folder, so that a Go that can fetch a newer one for this go.mod has done so.
	env=$(go_env 2>/dev/null) || die "Go $want or newer is needed: $(go_env 2>&1 >/dev/null | tail -n 1)"
	{ read -r goversion && read -r GOOS && read -r GOARCH; } <<<"$env"
	at_least "${goversion#go}" "$want" || die "Go $want or newer is needed, this is ${goversion#go}"
}

key() {
	(
		cd "$module"
		printf '%s %s %s\n' "$goversion" "$GOOS" "$GOARCH"
		cat go.mod go.sum ./*.go
		# The flags of the build are in this script.
		cat ../hack/controlplane.sh
	) | sha256 | cut -c1-16
}

# Builds into a folder of its own and renames it, so that a folder by the key's name is always a finished build.
build() {
	local target=$1 version program pkg=k8s.io/component-base/version
	version=$(awk '$1 == "k8s.io/kubernetes" {print $2; exit}' "$module/go.mod")
	work=$(mktemp -d "${target%/*}/.build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo "controlplane: building Kubernetes $version once, some minutes on a small machine" >&2
	# Without cgo it runs on any machine of this platform; GOFLAGS could carry -race, which makes it many times slower.
	(cd "$module" && GOFLAGS= GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/controlplane" -ldflags "-s -w
		-X $pkg.gitVersion=$version
		-X $pkg.gitMajor=$(cut -d. -f1 <<<"${version#v}")
		-X $pkg.gitMinor=$(cut -d. -f2 <<<"$version")
		-X $pkg.gitTreeState=clean" .)
	for program in "${programs[@]}"; do ln -s controlplane "$work/$program"; done
	chmod 755 "$work"
	# Loses to a build that finished meanwhile, where there is no flock to keep it out.
	mv "$work" "$target" 2>/dev/null || [[ -x $target/kubectl ]] || die "cannot move the build to $target"
	rm -rf "${target:?}/${work##*/}"
}

main() {
	local mode=${1:-} cache target
	[[ -z $mode || $mode == --cached ]] || die "usage: hack/controlplane.sh [--cached]"
	if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
		given_assets
		return
	fi
	check_go
	cache=${GPUSCALE_CACHE:-$HOME/.cache/gpuscale}/controlplane
	target=$cache/$(key)
	if [[ ! -x $target/kubectl ]]; then
		[[ $mode != --cached ]] || die "the local Kubernetes is not built; run make controlplane"
		mkdir -p "$cache"
		if command -v flock >/dev/null; then
			exec 9>"$cache/lock"
			flock -n 9 || { echo "controlplane: waiting for another build" >&2; flock 9; }
			# Nobody else is building, so these were interrupted.
			rm -rf "$cache"/.build.*
		fi
		[[ -x $target/kubectl ]] || build "$target" >&2
	fi
	printf '%s\n' "$target"
}

main "$@"
