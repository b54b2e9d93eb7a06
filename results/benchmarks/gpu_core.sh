#!/usr/bin/env bash
# The bar of updates on an accelerator, on a machine with CUDA: the captured update against the eager one.
# PYTHON=... chooses the interpreter; the first argument is the folder of core.md and core.json (default:
# results/benchmarks/gpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
timeout 230 "$PYTHON" -m dqn_memory.benchmark --only graphs --write "$FOLDER"
