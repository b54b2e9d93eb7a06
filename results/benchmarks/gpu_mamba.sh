#!/usr/bin/env bash
# Mamba on an accelerator, on a machine with CUDA, in a few minutes: the recorded scans through the Triton kernels, if
# pytest is there; then the mixer and the scan on every backend that works. One that does not is named with its reason.
# PYTHON=... chooses the interpreter; the first argument is the folder of mamba.md and mamba.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
if "$PYTHON" -c "import pytest" 2>/dev/null; then
  timeout 200 "$PYTHON" -m pytest -q tests/blocks/test_scan_triton.py
fi
timeout 380 "$PYTHON" -m dqn_memory.benchmark --only mamba_cuda --folder "$FOLDER"
