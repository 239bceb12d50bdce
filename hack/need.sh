# Sourced by scripts: finds the programs that they need, or gets them, or says in one line what is missing.

# have PROGRAM: it is in the PATH, or where Debian keeps the programs of a Postgres server, which is not in the PATH.
have() {
	command -v "$1" >/dev/null && return
	case $1 in
	initdb) compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
	*) return 1 ;;
	esac
}

# need PROGRAM...: each must be there; as root on Debian or Ubuntu the missing ones are installed.
need() {
	local missing=() p
	for p in "$@"; do have "$p" || missing+=("$p"); done
	if [ ${#missing[@]} -eq 0 ]; then return; fi
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		local packages=()
		for p in "${missing[@]}"; do
			case $p in
			# Not from the distribution: go.mod asks for a newer one than most have.
			go) echo "missing: go; install Go from https://go.dev/dl" >&2; exit 1 ;;
			initdb) packages+=(postgresql) && no_cluster ;;
			systemd-analyze) packages+=(systemd) ;;
			nginx) packages+=(nginx) && no_start ;;
			*) packages+=("$p") ;;
			esac
		done
		echo "== installing ${packages[*]}"
		{ DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "${packages[@]}" ||
			{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "${packages[@]}"; }; } >/dev/null 2>&1 || true
		may_start
		for p in "${missing[@]}"; do
			have "$p" || { echo "missing: $p, and its package could not be installed" >&2; exit 1; }
		done
		return
	fi
	echo "missing: ${missing[*]}; install them and run this again" >&2
	exit 1
}

# no_cluster keeps the package of Postgres, when it is installed, from making and starting a server of its own. One that
# is there is left alone.
no_cluster() {
	local dir=/etc/postgresql-common/createcluster.d
	mkdir -p "$dir"
	echo "create_main_cluster = false" >"$dir/gpuscale.conf"
}

# Kept by Debian's packages: where it says 101, installing one starts no server.
policy=/usr/sbin/policy-rc.d

# no_start keeps nginx, when its package is installed, from being started. A policy that is there is left alone.
no_start() {
	[ -e "$policy" ] || install -m 755 <(printf '#!/bin/sh\nexit 101 # gpuscale, for one package\n') "$policy"
}

# may_start takes the policy of no_start away again.
may_start() { if grep -qs 'gpuscale, for one package' "$policy"; then rm "$policy"; fi; }

# need_go: the Go in the PATH must be able to build this module, by itself or by fetching the toolchain in go.mod.
need_go() {
	local out
	if ! out=$(go list -m 2>&1); then
		echo "this Go cannot build gpuscale: $(echo "$out" | tail -n 1)" >&2
		exit 1
	fi
}
