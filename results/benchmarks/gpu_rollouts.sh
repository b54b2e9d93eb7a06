#!/usr/bin/env bash
# Learners from rollouts on a machine with CUDA: environment steps per second of PQN and PPO,
# eager and with a whole iteration as one captured graph.
# First the test that a captured iteration computes what an eager one does.
# PYTHON=... chooses the interpreter; the first argument is the folder of rollouts.md and rollouts.json (default:
# results/benchmarks/gpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-results/benchmarks/gpu}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
"$PYTHON" -m pytest -q tests/core/test_rollouts.py -k captured
timeout 420 "$PYTHON" -m dqn_memory.benchmark --only rollouts_cuda --repetitions 5 --write "$FOLDER"
