# `make demo` and `make test` need only Python 3.10 or newer; each sets up .venv with what it uses.
# PYTHON=/path/to/python3 picks the interpreter.

VENV := .venv
BIN := $(VENV)/bin
TINY := fixtures/tiny
DRAFT := $(TINY)/draft_1plusN_reduced
# So small a model is faster on one core than on two.
ONE_THREAD := OMP_NUM_THREADS=1

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& { echo $$python; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all coverage lowest fuzz check format schemas docs broken \
	benchmark setup clean

PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/.verify  ## convert a real speculators draft and verify the result against its target
	$(BIN)/dspark-convert inspect $(DRAFT)
	mkdir -p build
	$(BIN)/dspark-convert to-dense $(DRAFT) build/demo --target $(TINY)/target --overwrite
	$(ONE_THREAD) $(BIN)/dspark-verify check build/demo --target $(TINY)/target --source $(DRAFT) \
		--prompts $(TINY)/prompts.jsonl --max-new-tokens 32 --dtype float32 --min-accepted-length 2

test: $(VENV)/.dev  ## run the tests
	$(PYTEST)

test-slow: $(VENV)/.dev  ## run the tests that `make test` leaves out: more cases of the same subjects
	$(PYTEST) -m 'slow and not gpu'

test-all: test test-slow  ## run all tests, but for those that need a GPU

coverage: $(VENV)/.dev  ## run the tests, and fail when they cover less of the package than they did
	$(PYTEST) --cov

# Old releases warn of newer ones beside them; only what they do is tested.
lowest: build/lowest/.done  ## run the tests with the lowest supported releases (best with Python 3.10)
	build/lowest/bin/python -m pytest -n auto --dist loadfile -W default \
		-m 'not current and not gpu and not slow'

build/lowest/.done: pyproject.toml .ci/lowest.txt
	rm -rf build/lowest
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --upgrade pip
	build/lowest/bin/python -m pip install --quiet --constraint .ci/lowest.txt --editable '.[dev,verify]'
	@touch $@

fuzz: $(VENV)/.dev  ## read damaged inputs of every kind for a minute (SECONDS=900 SEED=2 for more)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1)

check: $(VENV)/.dev  ## lint, formatting, types, published schemas, generated pages, version and changelog
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p fixtures.broken -p benchmarks
	$(BIN)/mypy --strict .ci/release.py
	$(BIN)/dspark-convert schema --check schemas/
	$(BIN)/python docs/generate.py --check
	$(BIN)/python .ci/release.py

format: $(VENV)/.dev  ## format the code, sort the imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(VENV)/.base  ## write schemas/ anew from the models
	$(BIN)/dspark-convert schema --write schemas/

docs: $(VENV)/.base  ## write the generated pages of docs/ anew
	$(BIN)/python docs/generate.py

broken: $(VENV)/.base  ## write every broken or unusual draft to build/broken
	$(BIN)/python -m fixtures.broken build/broken

benchmark: $(VENV)/.base  ## measure speed and memory (writes 8 GiB to build/benchmark, then removes it)
	$(BIN)/python benchmarks/convert.py

setup: $(VENV)/.dev  ## install everything that the tests and checks need

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'no Python 3.10 or newer found; try make PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.verify: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[verify]'
	@touch $@ $(VENV)/.base

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,verify]'
	@touch $@ $(VENV)/.base $(VENV)/.verify
