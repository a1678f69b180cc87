# Two commands set everything up: `make quickstart` and `make test`.
# PYTHON picks the interpreter (3.11 or newer) that the environment is made from; INSTALLER=pip does
# without uv, which downloads many files at once.
PYTHON ?= python3
INSTALLER ?= uv
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# Hundreds of processes load the same modules: each would compile them anew.
export PYTHONDONTWRITEBYTECODE :=
install-with-pip := $(PIP) --editable
install-with-uv := $(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --editable

.PHONY: quickstart test test-cluster long chaos scale bench-claims gpu lint docs clean help constraints

help: ## Lists the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

quickstart: .venv/installed ## Installs, runs the first audit (under a minute) and writes its report
	$(BIN)/dpaudit run jobs/quickstart.yaml --storage-path runs
	@echo "report: $$($(BIN)/dpaudit report runs/quickstart)"

# Threads of numpy and torch that wait for each other took a third of the time of several processes.
test test-cluster long: export OMP_NUM_THREADS := 1

test: .venv/tested ## Installs the test extra and runs the suite, but for the tests of clusters
	$(BIN)/python -m tests.compiled
	$(BIN)/python -m pytest --numprocesses 3 -m "not cluster"

test-cluster: .venv/tested ## Runs the tests that start clusters and take nodes, drivers or storage away
	$(BIN)/python -m pytest --numprocesses 4 -m cluster $$(grep -rl --include='test_*.py' mark.cluster tests)

long: .venv/tested ## Adds the tests that take minutes and repeat at length what a shorter one shows
	DPAUDIT_LONG=1 $(BIN)/python -m pytest --numprocesses 2

chaos: .venv/tested ## Strikes a real cluster a hundred times (STORMS=10: a thousand times)
	DPAUDIT_LONG=1 DPAUDIT_STORMS=$(or $(STORMS),1) $(BIN)/python -m pytest tests/chaos -k "hundred or five" --log-cli-level=INFO

lint: .venv/tested ## Checks style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/documented ## Builds the documentation, notebooks run, into site/ (NOTEBOOKS=false: pages alone)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

scale: .venv/tested ## Measures what orchestration costs on this machine (minutes; nothing else may run)
	$(BIN)/python -m jobs.scale throughput
	$(BIN)/python -m jobs.scale overhead
	$(BIN)/python -m jobs.scale peers
	$(BIN)/python -m jobs.scale large

bench-claims: .venv/installed ## Audits mechanisms whose privacy loss is known (half an hour)
	$(BIN)/python -m jobs.bench --jobs 2

gpu: .venv/installed ## Checks the engine on this machine's GPU and prints a Markdown table
	$(BIN)/python -m jobs.gpu

clean: ## Removes the environment and caches; run directories stay
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache

constraints: .venv/installer-uv ## Brings constraints.txt to the newest versions; run the suite with them
	echo uv | $(BIN)/uv pip compile --quiet --upgrade --no-annotate --no-header \
	  --extra test --extra docs pyproject.toml - --output-file .venv/newest
	{ grep '^#' constraints.txt; grep -vE '^(triton|nvidia-|cuda-)' .venv/newest | sed 's/+[a-z0-9]*$$//' | LC_ALL=C sort; } \
	  > .venv/constraints
	mv .venv/constraints constraints.txt

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

.venv/installer-pip: .venv/bin/python
	touch $@

.venv/installer-uv: .venv/bin/python
	$(PIP) uv
	touch $@

.venv/installed: .venv/installer-$(INSTALLER) pyproject.toml constraints.txt
	$(install-with-$(INSTALLER)) .
	touch $@

.venv/tested: .venv/installer-$(INSTALLER) pyproject.toml constraints.txt
	$(install-with-$(INSTALLER)) '.[test]'
	touch $@ .venv/installed

.venv/documented: .venv/installer-$(INSTALLER) pyproject.toml constraints.txt
	$(install-with-$(INSTALLER)) '.[docs]'
	touch $@ .venv/installed
