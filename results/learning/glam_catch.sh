#!/usr/bin/env bash
# GLAM in Blinking Catch (configs/glam/catch.toml): three seeds of the preset itself; the six sequence modules of the
# paper's Table 2; its ablation of the largest horizon (16, 24 and 32, growing by 8 from 16 in a run's quarters); and that
# of the layers (G1-L1 is the preset itself, then G1-L2, G2-L1, G2-L2). All else is the preset's.
# Cost: 36 runs of 40,000 environment steps on one thread: 6 to 12 processor minutes each for the rows of Table 2 (up to 26
# on a slow machine), there 16 to 23 for the layers and 20 to 30 for the horizons, all measured; about 10 hours in all,
# half of it with two at a time.
# Finished runs are skipped, also those that are kept already, and stopped ones are resumed, so it may be run in several
# sittings: SEEDS=1 for one seed, FORMS=storm for one form.
#
#   [SEEDS='1 2 3'] [FORMS='storm glam G1-L2 ...'] results/learning/glam_catch.sh [RUNS_AT_A_TIME]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-runs/glam-catch}
rows="storm lmamba double_transformer double_mamba glam glam_no_variation"
horizons="horizon-16 horizon-24 horizon-32"
layers="G1-L2 G2-L1 G2-L2"
seeds=${SEEDS:-1 2 3}
forms=${FORMS:-glam $(tr ' ' '\n' <<<"$rows" | grep -vx glam) $horizons $layers}

changes() {
  case $1 in
    horizon-*) echo "--start 16 --growth 8 --growth-every 10000 --maximum ${1#horizon-}" ;;
    G?-L?) echo "--global-layers ${1:1:1} --local-layers ${1:4:1}" ;;
    # the paper replaces STORM's Transformer by as many layers of LMamba, and that has two (--attention-layers)
    lmamba) echo "--sequence lmamba --local-layers 2" ;;
    *) echo "--sequence $1" ;;
  esac
}

kept=results/learning/glam-catch

finished() {  # form, seed: whether the run is done, here or among those that are kept
  grep -qs final/ "$runs/$1/seed_$2/metrics.jsonl" || grep -qs "__$1__seed-$2,.*,finished," "$kept/runs.csv"
}

commands() {
  for seed in $seeds; do
    for form in $forms; do
      run="$runs/$form/seed_$seed"
      if finished "$form" "$seed"; then continue; fi
      if [ -e "$run/config.toml" ]; then
        echo "--resume $run"
      else
        echo "--config glam/catch --seed $seed $(changes "$form") --run $run"
      fi
    done
  done
}

commands | OMP_NUM_THREADS=1 xargs -P "${1:-1}" -I{} sh -c "$python -m world_models.glam.train {}"
mapfile -t made < <(grep -ls final/ "$runs"/*/seed_*/metrics.jsonl | xargs -rn1 dirname)
if [ ${#made[@]} -gt 0 ]; then
  "$python" -m dqn_memory.study.report "$kept" "${made[@]}" --returns --archive "$kept"
fi
