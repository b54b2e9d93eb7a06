#!/usr/bin/env bash
# Both bars of an accelerator in one go, on a machine with CUDA, in less than eight minutes:
# the captured update against the eager one, and environment steps per second with one update a step.
# PYTHON=... chooses the interpreter; the first argument is the folder of core.md and core.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
timeout 460 "$PYTHON" -m dqn_memory.benchmark --only graphs --only training --folder "$FOLDER"
