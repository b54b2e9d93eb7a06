#!/usr/bin/env bash
# The published form against the corrected defaults: DTQN, DGFQN and DBGFQN in Memory 5x5 and Car Flag, three seeds, the same
# budget for all: 40,000 random steps, then 80,000 steps with two updates of 32 windows (K = 50, D = 64) every 16 steps, so
# 10,000 updates a run. DBGFQN runs in both training modes in either form's world: all positions (published) and acting
# contexts (default). Cost: 36 runs of 10 to 40 minutes on one thread, about 14 hours in all, 7 with two at a time.
# Finished runs are skipped and stopped ones are resumed, so it may be run in several sittings.
#
#   results/learning/comparison.sh [RUNS_AT_A_TIME]
set -euo pipefail
cd "$(dirname "$0")/../.."
budget="--worlds 16 --updates 2 --batch 32 --context 50 --width 64 --prepopulate 40000 --learning-starts 40000
  --epsilon-steps 40000 --total-steps 120000 --target-every 500 --evaluate-every 10000 --checkpoint-every 20000 --threads 1"

commands() {
  for seed in 1 2 3; do
    for env in Gridverse/Memory-5x5-v0 POMDP/CarFlag-v0; do
      for architecture in dtqn4 dgfqn dbgfqn; do
        for form in published corrected; do
          run="runs/comparison/$(basename "$env")/$architecture-$form/seed_$seed"
          preset=""
          [ "$form" = published ] && preset="--config paper"
          if grep -qs final/ "$run/metrics.jsonl"; then continue; fi
          if [ -e "$run/config.toml" ]; then
            echo "--resume $run"
          else
            echo $preset --env "$env" --architecture "$architecture" --seed "$seed" $budget --run "$run"
          fi
        done
      done
    done
  done
}

commands | OMP_NUM_THREADS=1 xargs -P "${1:-1}" -I{} sh -c '.venv/bin/python -m dqn_memory.train {}'
for world in Memory-5x5-v0 CarFlag-v0; do
  .venv/bin/python -m dqn_memory.record runs/comparison/$world/*/seed_* --folder "results/learning/comparison/$world" \
    --title "Published and corrected form in $world"
done
