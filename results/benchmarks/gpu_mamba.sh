#!/usr/bin/env bash
# Mamba on an accelerator, on a machine with CUDA, in a few minutes: the mixer and the scan on every backend that works
# (one that does not is named with its reason); then the recorded scans through the compiled Triton kernels, if pytest is
# there.
# PYTHON=... chooses the interpreter; the first argument is the folder of mamba.md and mamba.json (default:
# results/benchmarks/gpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
failed=0  # one that fails must not keep the other from being done
timeout 380 "$PYTHON" -m dqn_memory.benchmark --only mamba_cuda --write "$FOLDER" || failed=1
if "$PYTHON" -c "import pytest" 2>/dev/null; then
  timeout 200 "$PYTHON" -m pytest -q tests/blocks/test_scan_triton.py -k "not interpreter" || failed=1
fi
exit $failed
