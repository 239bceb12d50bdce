#!/bin/bash
# Run once as root when this machine first boots, and harmless when run again: fetches the gpuscale agent, and nothing
# but the bytes with its SHA-256, and has systemd run it.
set -u
umask 077
root=${GPUSCALE_ROOT-}
home=$root/var/lib/gpuscale
units=$root/etc/systemd/system

fail() {
  echo "gpuscale: no agent was started: $1" >&2
  exit "$2"
}

# fetch URL SHA256 SHA256_ARM64
fetch() (
set -u
say() { echo "gpuscale: $1" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
url=$1
want=$2
case $url in
*"{arch}"*)
  case $(uname -m) in
  x86_64 | amd64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 want=$3 ;;
  *) arch=$(uname -m) want=none ;;
  esac
  [ "$want" != none ] || { say "there is no agent for a machine of type $arch"; exit 85; }
  url=${url%%"{arch}"*}$arch${url#*"{arch}"}
  ;;
esac
dir=$(mktemp -d 2>/dev/null) || dir=${TMPDIR:-/tmp}/gpuscale.$$
[ -d "$dir" ] || mkdir -m 700 "$dir" 2>/dev/null || { say "cannot write to $dir"; exit 84; }
bin=$dir/gpuscale-agent
if has curl; then
  get() { curl -fsSL --connect-timeout 20 --speed-limit 1024 --speed-time 60 -o "$bin" -- "$url"; }
elif has wget; then
  get() { wget -q -T 60 -O "$bin" "$url"; }
elif has python3; then
  get() { python3 -c "import socket,sys,urllib.request as u;socket.setdefaulttimeout(60);u.urlretrieve(sys.argv[1],sys.argv[2])" "$url" "$bin" 2>/dev/null; }
else
  say "image has none of curl, wget and python3 to fetch the agent with"
  exit 81
fi
if has sha256sum; then
  sum() { sha256sum <"$bin"; }
elif has python3; then
  sum() { python3 -c "import hashlib,sys;print(hashlib.sha256(open(sys.argv[1],\"rb\").read()).hexdigest())" "$bin"; }
else
  say "image has neither sha256sum nor python3 to check the agent with"
  exit 81
fi
try=1
until get; do
  [ $try -ge "${GPUSCALE_FETCH_TRIES:-6}" ] && { say "agent could not be fetched from $url in $try attempts"; exit 82; }
  sleep $((try * 3))
  try=$((try + 1))
done
got=$(sum)
got=${got%% *}
if [ "$got" != "$want" ]; then
  rm -f "$bin"
  say "agent from $url has SHA-256 $got, not $want"
  exit 83
fi
chmod 755 "$bin" && mv -f "$bin" "$home/gpuscale-agent" && rmdir "$dir"
)

command -v systemctl >/dev/null || fail "this image has no systemd" 86
mkdir -p "$home/huggingface" "$units" || fail "cannot write to $home" 84
cat >"$home/boot.new" <<'BOOT' || fail "cannot write to $home" 84
eyJ2IjoxLCJpbnN0YWxsYXRpb24iOiI1ZjJjOTFhYiIsImNsYWltVUlEIjoiMGI4ZjNlNTItNmYwZC00YjU0LTljNjItMWYwYTZjMWRlM2FhIiwiY2xhaW0iOiJpbmZlcmVuY2UtcXdlbi0wIiwiY2VydCI6ImNlcnQiLCJrZXkiOiJrZXkiLCJjYSI6ImNhIiwicG9ydCI6OTQ0MywiZ3B1cyI6eyJuYW1lIjoiUlRYLTQwOTAiLCJjb3VudCI6MiwidnJhbUdCIjoyNH0sImltYWdlIjoidmxsbS92bGxtLW9wZW5haTp2MC4zMy4wIn0=
BOOT
mv -f "$home/boot.new" "$home/boot" || fail "cannot write to $home" 84
TMPDIR=$home fetch 'https://downloads.example/gpuscale-agent-linux-{arch}' '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a' '0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b' || fail "it could not be fetched" $?

cat >"$units/gpuscale-agent.service" <<UNIT || fail "cannot write to $units" 84
[Unit]
Description=gpuscale agent
Wants=network-online.target docker.service
After=network-online.target docker.service
StartLimitIntervalSec=0

[Service]
ExecStart=$home/gpuscale-agent --boot-file $home/boot
Environment=HF_HOME=$home/huggingface
Environment=HOME=/root
Restart=always
RestartSec=2
RestartPreventExitStatus=2
# The agent drains, then stops its engines itself.
KillMode=mixed
TimeoutStopSec=90
OOMScoreAdjust=-900
LimitNOFILE=1048576
LimitCORE=0

[Install]
WantedBy=multi-user.target
UNIT
chmod 644 "$units/gpuscale-agent.service"
systemctl daemon-reload
systemctl enable gpuscale-agent.service
# Not waited for: this may be part of the boot that the unit comes after.
systemctl --no-block restart gpuscale-agent.service || fail "systemd did not take it" 86
