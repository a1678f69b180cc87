# Two commands set everything up: `make quickstart` and `make test`.
# PYTHON picks the interpreter (3.11 or newer) that the environment is made from.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test lint clean help

help: ## Lists the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

quickstart: .venv/installed ## Installs, runs the first audit (under a minute) and writes its report
	$(BIN)/dpaudit run jobs/quickstart.yaml --storage-path runs
	@echo "report: $$($(BIN)/dpaudit report runs/quickstart)"

test: .venv/tested ## Installs the test extra and runs the whole suite
	$(BIN)/python -m pytest

lint: .venv/tested ## Checks style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
