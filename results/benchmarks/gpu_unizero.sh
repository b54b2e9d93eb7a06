#!/usr/bin/env bash
# UniZero on a machine with CUDA, in one go: the tests that compare a CPU with a GPU, the bars of acting and learning, and the full-size model on Pong for as long as there is time, with checkpoints to resume from.
# PYTHON=... chooses the interpreter; the first argument is the folder of all that is written (default:
# results/benchmarks/gpu), the second the seconds of the Pong run (default 480). Tests and benchmark are stopped after
# 460 seconds each. The folder's unizero.json begins as a copy of the one in results/benchmarks, whose section of the GPU is
# made anew: it and unizero.md can be put in the place of the old ones, before the next call. Each part takes at most
# ten minutes: PARTS="tests benchmark pong" names what is done.
# The Pong run lives in RUN (default runs/gpu-unizero-pong): its checkpoints hold some 400 MB of weights and moments and
# the replay, so they stay there, and what is small of it is copied into the folder. A run that exists is resumed.
# ONLY="acting" measures that table of the benchmark alone, into a folder of its own: a section is replaced whole.
# ENGINES="eager compile cudagraph" measures the compiled engine too, which needs Triton and minutes of its compiler.
# DEVICE, ENGINE, PRECISION and FLAGS define a new Pong run (default: cuda, cudagraph, bfloat16, --tf32); all else is the
# preset unizero/paper as it is, reanalysis and sticky actions among it. Beside torch, numpy and numba this needs
# gymnasium, ale-py, tyro, tomli-w and tensorboard.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
PONG=${2:-480}
RUN=${RUN:-runs/gpu-unizero-pong}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
mkdir -p "$FOLDER"
[ -e "$FOLDER/unizero.json" ] || cp results/benchmarks/unizero.json "$FOLDER"

tests() {
  if "$PYTHON" -c "import pytest, hypothesis" 2>/dev/null; then
    timeout 460 "$PYTHON" -m pytest -q tests/unizero/test_unizero_engine.py -k "captured or warm_up or cudagraph" 2>&1
  else
    echo "no pytest and hypothesis here: the tests on CUDA are left out"
  fi | tee "$FOLDER/unizero-tests.txt"
}

benchmark() {
  local engines=()
  for engine in ${ENGINES:-eager cudagraph}; do engines+=(--engine "$engine"); done
  for table in ${ONLY:-}; do engines+=(--only "$table"); done
  timeout 460 "$PYTHON" -m world_models.benchmark unizero --device cuda "${engines[@]}" --write "$FOLDER"
}

pong() {
  local words status
  if [ -e "$RUN/config.toml" ]; then
    words=(--resume "$RUN")
  else
    words=(--config unizero/paper --env ALE/Pong-v5 --device "${DEVICE:-cuda}" --run "$RUN"
      --engine "${ENGINE:-cudagraph}" --precision "${PRECISION:-bfloat16}" --checkpoint-every 4000 --log-every 800)
    read -r -a flags <<<"${FLAGS---tf32}"
    words+=("${flags[@]}")
  fi
  status=0
  timeout --signal INT --kill-after 60 "$PONG" "$PYTHON" -m world_models.unizero.train "${words[@]}" || status=$?
  for file in metrics.jsonl config.toml environment.json; do
    if [ -e "$RUN/$file" ]; then cp "$RUN/$file" "$FOLDER/pong-$file"; fi
  done
  [ "$status" -eq 0 ] || [ "$status" -eq 124 ]  # 124: time was over, and the last checkpoint is what goes on
}

failed=0
for part in ${PARTS:-tests benchmark pong}; do
  case $part in
    tests | benchmark | pong) "$part" || failed=1 ;;  # one that fails must not keep the others from being done
    *) echo "PARTS knows tests, benchmark and pong, not $part" >&2; exit 2 ;;
  esac
done
exit $failed
