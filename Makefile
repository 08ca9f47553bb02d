# `make demo` and `make test` set up all they need in .venv on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test quick lint format clean

demo: $(INSTALLED)
	$(BIN)/python examples/own_loop.py

test: lint
	$(BIN)/python -m pytest -q

quick: lint
	$(BIN)/python -m pytest -q -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "sage-snn needs Python 3.11 or newer: make PYTHON=python3.11 ..."'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist
