# make demo              set up, train a small agent and show it
# make test              set up and run the tests, except the long ones
# make test-long         the long tests: complete runs, killed runs, torch's compiler
# make test-results      compare remade pages of results/ with the tracked ones
# make test-cluster      the tests of Ray
# make test-integrations the tests with sb3-contrib and TorchRL
# make test-triton       the tests of Triton's scan, interpreted
# make test-verdicts     ask diagnose about twelve tasks, five times each: ten hours; a stopped one goes on
# make test-verdicts-short  ask it about two easy ones, four minutes each
# make test-wheel        build the package, and try it alone in a new environment
# make fuzz MINUTES=10   change files at random and report failures
# make lint              ruff, mypy and the rules of imports
# make bench             speed of the core
# make study-smoke       a small study and its report, in minutes
# make results           remake every report, picture and page in results/ from its tables
# make docs              the documentation as a site, build/docs/index.html
# PYTHON=python3.12 chooses the interpreter, CONSTRAINTS= lifts the pin of torch, and PIP_FLAGS= goes to pip.

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
PIP_FLAGS ?=
WORKERS ?= 2
MINUTES ?= 10
BIN := .venv/bin

.PHONY: demo test test-long test-results test-cluster test-integrations test-verdicts test-verdicts-short test-wheel test-triton fuzz study-smoke results lint bench docs clean

demo: .venv/.all
	$(BIN)/python -m dqn_memory.demo

test: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not results and not long" tests

test-long: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "long and not results" tests

# A target of its own, because its time grows with results/.
test-results: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m results tests/study

test-cluster: .venv/.stamp
	$(BIN)/python -m pip install $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[cluster]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -k ray tests/study/test_study_run.py

test-integrations: .venv/.stamp
	$(BIN)/python -m pip install $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[sb3,torchrl]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/integrations

test-verdicts: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/verdicts/verdicts.py --write results

test-verdicts-short: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/verdicts/verdicts.py --only CartPole-v1 --only Verdict/Cue-v0 --repetitions 1 --minutes 4 --seeds 2 --folder runs/verdicts-of-4-minutes

test-wheel:
	rm -rf build/lib build/bdist.* build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip wheel $(PIP_FLAGS) --quiet --no-deps --wheel-dir build/wheel .
	build/wheel/venv/bin/python -m pip install $(PIP_FLAGS) --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) build/wheel/*.whl
	tests/try_wheel.sh build/wheel/*.whl build/wheel/venv/bin/python

# Triton's wheel is large and torch for CPUs does not need it, so it is installed outside of the environment.
test-triton: build/triton/.stamp
	PYTHONPATH=build/triton OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/blocks/test_scan_triton.py tests/blocks/test_linear_scan.py

build/triton/.stamp: .venv/.stamp
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --upgrade --target build/triton triton
	touch $@

fuzz: .venv/.stamp
	PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --minutes $(MINUTES)

study-smoke: .venv/.stamp
	$(BIN)/python -m dqn_memory.study.run smoke --workers $(WORKERS)
	$(BIN)/python -m dqn_memory.study.report runs/studies/smoke

results: .venv/.stamp
	$(BIN)/python -m dqn_memory.study.report --all results
	$(BIN)/python results/published/atari100k.py

lint: .venv/.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.stamp
	$(BIN)/python -m dqn_memory.benchmark

docs: .venv/.stamp
	$(BIN)/python -m pip install $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# All extras without the developers' tools.
.venv/.all: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; try: make PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[all]'
	touch $@

.venv/.stamp: .venv/.all
	$(BIN)/python -m pip install $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[dev]'
	touch $@
