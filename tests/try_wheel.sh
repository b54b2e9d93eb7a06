#!/usr/bin/env bash
# Tries a wheel that is installed in an environment of its own: try_wheel.sh WHEEL PYTHON, from the checkout.
set -euo pipefail
wheel=$(realpath "$1") python=$(realpath -s "$2")
unset PYTHONPATH
export OMP_NUM_THREADS=1

# every file of the packages is in it
held=$("$python" -m zipfile -l "$wheel" | awk '{print $1}' | sort)
missing=$(git ls-files dqn_memory envs world_models configs | sort | comm -23 - <(echo "$held"))
[ -z "$missing" ] || { echo "error: the wheel lacks $missing" >&2; exit 1; }
"$python" -m pip check

# and nothing else is needed
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
run() { echo "+ python $*"; "$python" "$@"; }
run -c "import dqn_memory, envs, world_models; assert 'site-packages' in dqn_memory.__file__, dqn_memory.__file__"
run -m dqn_memory.train --config demo --total-steps 2000 --learning-starts 500 --prepopulate 0 --evaluate-every 0 \
  --final-episodes 20 --track csv --run run
run -m dqn_memory.evaluate run --episodes 20
run -m dqn_memory.parameters > /dev/null
run -m world_models.parameters glam > /dev/null
run -m dqn_memory.study.run smoke --dry-run | tail -n 3
