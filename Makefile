# Two commands set everything up: `make quickstart` and `make test`.
# PYTHON picks the interpreter (3.11 or newer) that the environment is made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test long chaos scale lint clean help

help: ## Lists the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

quickstart: .venv/installed ## Installs, runs the first audit (under a minute) and writes its report
	$(BIN)/dpaudit run jobs/quickstart.yaml --storage-path runs
	@echo "report: $$($(BIN)/dpaudit report runs/quickstart)"

test: .venv/tested ## Installs the test extra and runs the whole suite
	$(BIN)/python -m pytest --numprocesses 2

long: .venv/tested ## Adds the tests that take minutes and repeat at length what a shorter one shows
	DPAUDIT_LONG=1 $(BIN)/python -m pytest --numprocesses 2

chaos: .venv/tested ## Kills processes and nodes of a real cluster 33 times, compares with a quiet run
	DPAUDIT_LONG=1 $(BIN)/python -m pytest tests/chaos -k kills_during --log-cli-level=INFO

lint: .venv/tested ## Checks style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

scale: .venv/tested ## Measures what orchestration costs on this machine (minutes; nothing else may run)
	$(BIN)/python -m jobs.scale throughput
	$(BIN)/python -m jobs.scale overhead
	$(BIN)/python -m jobs.scale peers
	$(BIN)/python -m jobs.scale large

clean: ## Removes the environment and caches; run directories stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/tested: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ .venv/installed
