#!/usr/bin/env bash
# One sweep as a Slurm job: sbatch cluster/slurm.sh jobs/quickstart.yaml /shared/runs
# Near the time limit it stops cleanly and queues itself again. What to change: README.md.
#SBATCH --job-name=dpaudit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

sweep=${1:?usage: sbatch slurm.sh SWEEP STORAGE_PATH}
storage=${2:?usage: sbatch slurm.sh SWEEP STORAGE_PATH}
activate=${DPAUDIT_ACTIVATE:-.venv/bin/activate}    # an environment that all nodes see
# shellcheck source=/dev/null
source "$activate"

# A token for this job alone, in a file that only its owner can read and all nodes see.
umask 077
token=$(mktemp "${DPAUDIT_TOKEN_FOLDER:-$HOME}/.dpaudit-token.XXXXXX")
openssl rand -hex 32 >"$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 4000 * 3))    # three of this job's own, as jobs of others may share a node
agent=$((port + 2))
scratch=/tmp/dpaudit-$SLURM_JOB_ID
steps=()

# shellcheck disable=SC2329    # the trap calls it
finish() {
  if ((${#steps[@]})); then kill "${steps[@]}" 2>/dev/null || true; fi
  wait || true
  rm -rf "$token" "$scratch"
}
trap finish EXIT

srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --block --port="$port" \
  --dashboard-host=127.0.0.1 --ray-client-server-port=$((port + 1)) \
  --dashboard-agent-listen-port="$agent" --num-cpus="$SLURM_CPUS_PER_TASK" \
  --temp-dir="$scratch" --disable-usage-stats &
steps+=($!)
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$node" ray start --block --address="$head:$port" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats &
  steps+=($!)
done

for ((tries = 0; tries < 60; tries++)); do
  if ray health-check --address "$head:$port" >/dev/null 2>&1; then break; fi
  sleep 2
done

stopped=no
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  dpaudit run "$sweep" --storage-path "$storage" --address "$head:$port" &
driver=$!
trap 'stopped=yes; kill -TERM "$driver"' TERM

# A signal ends `wait` before the driver has ended, so it is waited for again.
code=0
wait "$driver" || code=$?
while kill -0 "$driver" 2>/dev/null; do
  code=0
  wait "$driver" || code=$?
done
trap - TERM
if [[ $stopped == yes && $code == 4 ]]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
