#!/usr/bin/env bash
# Learners from rollouts on a machine with CUDA and without a network, in 8 minutes of an H200:
# the test that a captured iteration computes what an eager one does; whole runs of PQN and PPO with 2,048 environments;
# environment steps per second with six memories and 256 to 8,192 environments, eager and captured.
# PYTHON=... chooses the interpreter, QUICK=1 rehearses all of it with tiny sizes, on a CPU too. The first argument is the
# folder of rollouts.md and rollouts.json (default: results/benchmarks/gpu/sizes).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu/sizes}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
"$PYTHON" -m pytest -q tests/core/test_rollouts.py -k captured
timeout 450 "$PYTHON" -m dqn_memory.benchmark --only runs_cuda --only rollouts_cuda --repetitions 2 --seconds 410 \
  ${QUICK:+--quick} --write "$FOLDER"
