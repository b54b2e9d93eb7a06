#!/usr/bin/env bash
# Both bars of an accelerator in one go, on a machine with CUDA:
# the captured update against the eager one, and environment steps per second with one update a step, whose page goes
# into the folder training/ below the first one's.
# PYTHON=... chooses the interpreter; the first argument is the folder of core.md and core.json (default:
# results/benchmarks/gpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
failed=0  # one that fails must not keep the other from being done
timeout 230 "$PYTHON" -m dqn_memory.benchmark --only graphs --write "$FOLDER" || failed=1
timeout 400 "$PYTHON" -m dqn_memory.benchmark --only training --write "$FOLDER/training" || failed=1
exit $failed
