#!/usr/bin/env bash
# GLAM on a machine with CUDA, in one go: the tests that compare captured with eager execution, the bar of an environment
# step, and the full size on Pong for as long as there is time, with checkpoints to resume from.
# PYTHON=... chooses the interpreter; the first argument is the folder of all that is written (default:
# results/benchmarks/gpu), the second the seconds of the Pong run (default 480). Tests and benchmark are stopped after
# 460 seconds each, so that each part takes at most ten minutes: PARTS="tests benchmark pong" names what is done.
# The folder's glam.json begins as a copy of the one in results/benchmarks, whose section of the GPU is made anew: it and
# glam.md can be put in the place of the old ones, before the next call. ONLY="phases" measures that table of the benchmark
# alone, into a folder of its own: a section is replaced whole. Beside torch, numpy and numba this needs gymnasium, ale-py,
# tyro, tomli-w and tensorboard.
# The Pong run lives in RUN (default runs/gpu-glam-pong): its checkpoints hold some 220 MB of weights and moments and the
# replay of up to 1.2 GB, so they stay there, and what is small of it is copied into the folder. A run that exists is
# resumed. DEVICE, ENGINE, PRESET, BACKEND and FLAGS define a new Pong run (default: cuda, cudagraph, fast, auto, none).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
PONG=${2:-480}
RUN=${RUN:-runs/gpu-glam-pong}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
mkdir -p "$FOLDER"
[ -e "$FOLDER/glam.json" ] || cp results/benchmarks/glam.json "$FOLDER"

tests() {
  if "$PYTHON" -c "import pytest" 2>/dev/null; then
    timeout 460 "$PYTHON" -m pytest -q tests/glam/test_glam_train.py -k "captured or graphs" 2>&1
  else
    echo "no pytest here: the tests on CUDA are left out"
  fi | tee "$FOLDER/glam-tests.txt"
}

benchmark() {
  local only=()
  for table in ${ONLY:-}; do only+=(--only "$table"); done
  timeout 460 "$PYTHON" -m world_models.benchmark glam --device cuda --write "$FOLDER" "${only[@]}"
}

pong() {
  local words status
  if [ -e "$RUN/config.toml" ]; then
    words=(--resume "$RUN")
  else
    words=(--config "glam/${PRESET:-fast}" --env ALE/Pong-v5 --device "${DEVICE:-cuda}" --engine "${ENGINE:-cudagraph}"
      --backend "${BACKEND:-auto}" --checkpoint-every 2500 --log-every 500 --evaluate-every 7500 --run "$RUN")
    read -r -a flags <<<"${FLAGS:-}"
    words+=("${flags[@]}")
  fi
  status=0
  timeout --signal INT --kill-after 60 "$PONG" "$PYTHON" -m world_models.glam.train "${words[@]}" || status=$?
  for file in metrics.jsonl config.toml environment.json; do
    if [ -e "$RUN/$file" ]; then cp "$RUN/$file" "$FOLDER/glam-pong-$file"; fi
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
