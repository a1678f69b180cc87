#!/usr/bin/env bash
# One sweep as a Slurm job: sbatch cluster/slurm.sh jobs/quickstart.yaml /shared/runs
# Near the time limit it stops cleanly and queues itself again. What to change: README.md.
#SBATCH --job-name=dpaudit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

sweep=${1:?usage: sbatch slurm.sh SWEEP STORAGE_PATH}
storage=${2:?usage: sbatch slurm.sh SWEEP STORAGE_PATH}
activate=${DPAUDIT_ACTIVATE:-.venv/bin/activate}    # an environment that all nodes see
steps=()
driver=
token=
asked=      # to stop
again=no    # whether to queue once more

stop() {
  asked=yes
  if [[ $driver ]]; then kill -TERM "$driver" 2>/dev/null || true; fi
}
trap 'again=yes; stop' USR1    # the time limit is near

# Cancelled, preempted, out of time, a node lost: what comes next is Slurm's to say. It has signalled
# Ray as well, so there are no packs to wait for, and this job may start again elsewhere in a moment.
# shellcheck disable=SC2317,SC2329    # the trap calls it
ended() {
  trap - EXIT
  rm -f "$token"
  stop
  sleep 3
  if [[ $driver ]]; then kill -KILL "$driver" 2>/dev/null || true; fi
  exit 143
}
trap ended TERM

finish() {    # Ray's nodes leave by themselves: srun, when it is killed, kills at once
  trap - EXIT
  scancel --quiet --signal=TERM "$SLURM_JOB_ID" || true    # the steps, not this script
  for ((tries = 0; tries < 40; tries++)); do
    kill -0 "${steps[@]}" 2>/dev/null || break
    sleep 0.5
  done
  kill "${steps[@]}" 2>/dev/null || true
  rm -f "$token"
}

# shellcheck source=/dev/null
source "$activate"

# A token for this job alone, in a file that only its owner can read and all nodes see.
umask 077
tokens=${DPAUDIT_TOKEN_FOLDER:-$HOME}/.dpaudit-token.$SLURM_JOB_ID
rm -f "$tokens".*    # of a start of this job that was killed
token=$(mktemp "$tokens.XXXXXX")
trap finish EXIT
openssl rand -hex 32 >"$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0    # Ray is told to leave when the sweep has ended
export RAY_worker_niceness=0    # Ray's 15 leaves trainers a thirtieth of a core that another job computes on, too

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(scontrol show node "${nodes[0]}" | grep -oP 'NodeAddr=\K\S+')
port=$((20000 + SLURM_JOB_ID % 6000 * 2))    # two of this job's own, as jobs of others may share a node

# On a node: Ray, until it is told to leave. The head may be too busy to answer a node that joins.
# shellcheck disable=SC2016    # expanded on the node
on_node='asked=; trap "asked=yes" TERM
  for tries in 1 2 3 4 5; do
    place=$(mktemp -d /tmp/dpaudit.XXXXXX) code=0
    ray start --block --temp-dir="$place/ray" "$@" || code=$?
    rm -rf "$place"
    if [[ $code == 0 || $* == *--head* ]]; then break; fi
    if [[ ! $asked ]]; then sleep 5; fi
    if [[ $asked ]]; then break; fi
    echo "slurm.sh: Ray has ended on $SLURMD_NODENAME (start $tries of 5)" >&2
  done
  exit "$code"'

join() {    # NODE ARGUMENTS...: one Ray node, in a step of its own
  srun --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c "$on_node" join "${@:2}" --num-cpus="$SLURM_CPUS_PER_TASK" \
    --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0 \
    --disable-usage-stats &    # free ports: every Ray takes 10002 to 19999
  steps+=($!)
}

join "${nodes[0]}" --head --port="$port" --ray-client-server-port=$((port + 1)) \
  --dashboard-host=127.0.0.1
for node in "${nodes[@]:1}"; do join "$node" --address="$head:$port"; done

for ((tries = 0; tries < 60; tries++)); do
  if ray health-check --address "$head:$port" >/dev/null 2>&1; then break; fi
  if [[ $asked ]] || ! kill -0 "${steps[0]}" 2>/dev/null; then break; fi
  sleep 2
done
if [[ $asked ]]; then
  echo "slurm.sh: told to stop before Ray was up; give the job more --time" >&2
  exit 4
fi

# This script runs on the first node, so the driver needs no step, and signals reach it as they are.
dpaudit run "$sweep" --storage-path "$storage" --address "$head:$port" &
driver=$!
if [[ $asked ]]; then stop; fi

# A signal ends `wait` before the driver has ended.
while kill -0 "$driver" 2>/dev/null; do wait "$driver" || true; done
code=0
wait "$driver" || code=$?
finish
if [[ $again == yes && $code == 4 ]]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
