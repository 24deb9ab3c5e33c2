# One environment in .venv, built on first use from pyproject.toml and constraints.txt.
# `make demo` installs what the package needs to run; the other targets add the developers' tools.

# The first Python of 3.11 or newer that really runs and can build an environment (a pyenv shim may be
# on PATH and fail). Another one: make PYTHON=/path/to/python3.12 ...
PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3; do \
	"$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && { echo "$$candidate"; break; }; done)
NO_PYTHON = Found no Python of 3.11 or newer that can build an environment (on Debian: apt install python3 python3-venv). Name one: make PYTHON=/path/to/python3

VENV ?= .venv
BIN := $(VENV)/bin
# -P: the current folder is not an import path, so the links `kernels` and `grids` are not modules.
PY := $(BIN)/python -P
PIP := $(PY) -m pip --quiet --no-input --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed

VENV_MIN := .venv-min
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo test test-slow test-faults test-min lint format bench docs dist test-dist lock clean clean-env

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# build_env FOLDER: an empty environment, unless a working one is there.
define build_env
	$(if $(PYTHON),,$(error $(NO_PYTHON)))
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || \
		{ echo "building $(1) with $(PYTHON)"; rm -rf $(1); $(PYTHON) -m venv $(1); }
	@$(1)/bin/python -m pip --quiet --disable-pip-version-check install 'pip>=25.3'
endef

$(RUNTIME): pyproject.toml constraints.txt
	$(call build_env,$(VENV))
	$(PIP) install --constraint constraints.txt --build-constraint constraints.txt --editable .
	@touch $@

$(TOOLS): $(RUNTIME)
	$(PIP) install --constraint constraints.txt --group test --group lint --group docs --group build
	@touch $@

env: $(TOOLS) ## build .venv with all tools

demo: $(RUNTIME) ## sweep a million layouts of GPT-3 into build/demo.parquet
	@mkdir -p build
	$(BIN)/mlsysim-sweep run gpt3-million -o build/demo.parquet --overwrite

test: $(TOOLS) ## all tests and docstring examples but the slow ones
	$(PY) -m pytest $(PYTEST_ARGS)

test-slow: $(TOOLS) ## the slow tests, parity on a million inputs among them
	$(PY) -m pytest -m slow --parity-points=1000000 $(PYTEST_ARGS)

test-faults: $(TOOLS) ## the tests that kill processes at every file operation
	$(PY) -m pytest -m faults $(PYTEST_ARGS)

test-min: ## the tests with the oldest dependencies that pyproject.toml allows
	$(call build_env,$(VENV_MIN))
	$(VENV_MIN)/bin/python -P -m pip --quiet --no-input --disable-pip-version-check install \
		--constraint constraints-min.txt --build-constraint constraints.txt --group test --editable .
	$(VENV_MIN)/bin/python -P -m pytest $(PYTEST_ARGS)

lint: $(TOOLS) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict -p mlsysim_sweep
	$(BIN)/lint-imports

format: $(TOOLS) ## put the code in form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(TOOLS) ## run every benchmark, print ratios; fails when one misses its target
	$(PIP) install --constraint constraints.txt --group bench
	@missed=; for file in benchmarks/bench_*.py; do echo "== $$file"; \
		$(BIN)/python "$$file" || missed="$$missed $$file"; done; \
		test -z "$$missed" || { echo "missed or failed:$$missed"; exit 1; }

docs: $(TOOLS) ## the documentation, in build/html/docs/index.html
	$(PY) scripts/reference.py
	$(PY) -m sphinx -W --keep-going --quiet -c docs . build/html
	@echo "see build/html/docs/index.html"

dist: $(TOOLS) ## build wheel and sdist in dist/ and check what is inside
	rm -rf dist
	$(PY) -m build --no-isolation
	$(PY) scripts/check_dist.py contents

test-dist: dist ## install both in empty environments of every Python here and run a sweep
	$(PY) scripts/check_dist.py run

# The oldest direct dependencies first, then the tests' tools on top of them.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --strip-extras \
	--no-header --no-annotate

lock: $(TOOLS) ## write constraints.txt and constraints-min.txt anew from pyproject.toml
	@mkdir -p build
	$(PIP) install uv
	$(LOCK) --all-extras --group test --group lint --group docs --group build \
		--group bench --output-file constraints.txt pyproject.toml
	$(LOCK) --resolution lowest-direct --output-file build/floors.txt pyproject.toml
	$(LOCK) --constraint build/floors.txt --group test --output-file constraints-min.txt pyproject.toml

clean: ## remove what was built, keep the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find mlsysim_sweep tests benchmarks scripts docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

clean-env: ## remove the environments
	rm -rf $(VENV) $(VENV_MIN)
