#!/usr/bin/env bash
# The published form against the corrected defaults: DTQN, DGFQN and DBGFQN in Memory 5x5 and Car Flag, three seeds, the
# same budget for all: 24,000 environment steps with two updates of 64 windows (K = 24, D = 64, 8 heads, 2 layers) every
# 16 steps, so 2,750 updates a run. Equal for both forms: optimiser, loss, initialisation, target copies, exploration,
# averaging; the forms differ in what configs/paper.toml holds of the learner (targets, padding, sampling). DBGFQN trains
# on all positions in the published form and on acting contexts in the corrected one.
# Cost: 36 runs of 2 to 6 minutes on one thread, about 2 hours in all, half of it with two at a time.
# Finished runs are skipped, also those that are kept already, and stopped ones are resumed, so it may be run in several
# sittings: SEEDS=1 for one seed.
#
#   [SEEDS='1 2 3'] results/learning/comparison.sh [RUNS_AT_A_TIME]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
budget="--num-envs 16 --updates-per-iteration 2 --batch-size 64 --context 24 --width 64 --heads 8 --learning-rate 5e-4 --loss huber
  --initialisation torch --ema-decay 0.99 --target-update-every 300 --prepopulate 2000 --learning-starts 2000 --capacity 500000
  --epsilon-schedule linear --epsilon-steps 12000 --epsilon-end 0.05 --episodes 100 --total-steps 24000
  --evaluate-every 3000 --checkpoint-every 6000 --threads 1"

seeds=${SEEDS:-1 2 3}
kept=results/learning/comparison

finished() {  # environment, architecture, form, seed: whether the run is done, here or among those that are kept
  grep -qs final/ "runs/comparison/$1/$2-$3/seed_$4/metrics.jsonl" ||
    grep -qs "$1__$2-$3__seed-$4,.*,finished," "$kept/runs.csv"
}

commands() {
  for seed in $seeds; do
    for env in Gridverse/Memory-5x5-v0 POMDP/CarFlag-v0; do
      explore=""
      [ "$env" = POMDP/CarFlag-v0 ] && explore="--sticky-exponent 2 --sticky-max-steps 30"
      for architecture in dtqn4 dgfqn dbgfqn; do
        for form in published corrected; do
          run="runs/comparison/$(basename "$env")/$architecture-$form/seed_$seed"
          preset=""
          [ "$form" = published ] && preset="--config paper"
          if finished "$(basename "$env")" "$architecture" "$form" "$seed"; then continue; fi
          if [ -e "$run/config.toml" ]; then
            echo "--resume $run"
          else
            echo $preset --env "$env" --architecture "$architecture" --seed "$seed" $explore $budget --run "$run"
          fi
        done
      done
    done
  done
}

commands | OMP_NUM_THREADS=1 xargs -P "${1:-1}" -I{} sh -c "$python -m dqn_memory.train {}"
mapfile -t made < <(grep -ls final/ runs/comparison/*/*/seed_*/metrics.jsonl | xargs -rn1 dirname)
if [ ${#made[@]} -gt 0 ]; then
  $python -m dqn_memory.study.report "$kept" "${made[@]}" --archive "$kept"
fi
