#!/usr/bin/env bash
# A cluster of several nodes on this machine, to see what happens when one is lost:
#   cluster/local.sh [NODES] [CPUS]
# Prints how to use it, and stays until Ctrl-C.
set -euo pipefail

nodes=${1:-3}
cpus=${2:-1}
port=${PORT:-6380}
dashboard=${DASHBOARD_PORT:-8265}
umask 077
home=$(mktemp -d /tmp/dpaudit-local.XXXXXX)
token=$home/token
openssl rand -hex 32 >"$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0    # a node that is killed goes at once, not in half a minute
export RAY_gcs_rpc_server_connect_timeout_s=60    # a head on a busy machine takes longer than Ray's 5 s
processes=()

finish() {
  trap - EXIT INT TERM
  if ((${#processes[@]})); then kill "${processes[@]}" 2>/dev/null || true; fi
  wait || true
  rm -rf "$home"
}
trap finish EXIT INT TERM

start() {    # NAME ARGUMENTS...: one Ray node, in the background
  local name=$1
  shift
  : >"$home/$name.log"
  ray start --block --disable-usage-stats --node-ip-address=127.0.0.1 \
    --min-worker-port=0 --max-worker-port=0 "$@" \
    >"$home/$name.log" 2>&1 &
  processes+=($!)
}

joined() {    # NAME: waits for the node that was started last
  until grep -q "Ray runtime started" "$home/$1.log"; do
    kill -0 "${processes[-1]}" || { cat "$home/$1.log" >&2; exit 1; }
    sleep 0.5
  done
}

start head --head --port="$port" --num-cpus=0 --temp-dir="$home/ray" \
  --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" \
  --ray-client-server-port=$((port + 1)) --dashboard-agent-listen-port=$((port + 2))
joined head
for ((node = 1; node <= nodes; node++)); do
  start "node-$node" --address="127.0.0.1:$port" --num-cpus="$cpus" \
    --dashboard-agent-listen-port=$((port + 2 + node))
  joined "node-$node"
  echo "node $node: kill ${processes[-1]} takes it away"
done

cat <<END
In another shell:
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token
  dpaudit run jobs/quickstart.yaml --address 127.0.0.1:$port
  dpaudit submit jobs/quickstart.yaml --address http://127.0.0.1:$dashboard --storage-path $PWD/runs
END
wait
