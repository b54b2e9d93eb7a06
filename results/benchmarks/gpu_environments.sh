#!/usr/bin/env bash
# The bar of an accelerator for the environments, on a machine with CUDA, in a few minutes: 65,536 worlds of two kinds inside
# one CUDA graph, resets included; then the test that a CPU and a GPU give the same numbers, if pytest is there.
# PYTHON=... chooses the interpreter; the first argument is the folder of environments.md and environments.json (default:
# results/benchmarks/gpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
failed=0  # one that fails must not keep the other from being done
timeout 240 "$PYTHON" -m envs.benchmark --device cuda --write "$FOLDER" || failed=1
if "$PYTHON" -c "import pytest, hypothesis" 2>/dev/null; then
  timeout 300 "$PYTHON" -m pytest -q tests/envs -k "cuda" || failed=1
fi
exit $failed
