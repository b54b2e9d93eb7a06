#!/usr/bin/env bash
# What trained agents do with their memory and without it: memory_ablation.jsonl, a line an evaluation. The runs are those of
# the archives beside this script, made again by the commands there; a run that is not there is named and left out.
# Half a minute a run on one thread: 400 episodes each way, but for the demo, of which every start is tried.
#
#   results/learning/memory_ablation.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
target=results/learning/memory_ablation.jsonl

judge() {  # script, its flags, runs
  local script=$1 flags=$2
  for run in "${@:3}"; do
    if [ ! -e "$run/config.toml" ]; then
      echo "left out: $run is not there" >&2
      continue
    fi
    for ablation in "" --reset-memory; do
      # shellcheck disable=SC2086
      "$python" -m "$script" "$run" $flags $ablation --format json | tr -d '\n'
      echo
    done
  done
}

machine=$("$python" -c 'import json, envs.machine as m; print(json.dumps({"revision": m.revision(), "cpu": m.cpu()}))')
{
  echo "$machine"
  judge dqn_memory.evaluate "" runs/demo-1
  judge dqn_memory.evaluate "--num-eval-envs 50 --episodes-per-env 8" \
    runs/studies/unizero_memory/runs/Gridverse-Memory-5x5-v0__causal__seed-{1,2,3,4,5}
  judge dqn_memory.evaluate "--num-eval-envs 50 --episodes-per-env 8" runs/glam-catch/glam/seed_{1,2,3}
} > "$target.partial"
mv "$target.partial" "$target"
