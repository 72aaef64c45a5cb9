# Every target first installs what it needs into .venv; that is skipped while the lock and pyproject.toml are unchanged.
#   PYTHON=/path/to/python3.11 make install     to choose the interpreter
#   make demo ARGS="run.seed=1 learner.lr=0"    to override settings of the demo's config

SHELL := /bin/bash
VENV := .venv/bin
ARGS ?=
# The first CPython 3.11 among these; the environment's own comes last, for machines where it was made from one not on the PATH.
PYTHON ?= $(firstword $(foreach candidate,python3.11 python3 $(VENV)/python,$(shell \
	$(candidate) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $(candidate))))

.PHONY: help install demo test slow lint bench results clean
help:
	@echo 'make install   the CPU stack into .venv, about 2 minutes and 4 GB'
	@echo 'make demo      train the demo agent, about 10 minutes; ARGS="run.seed=1" overrides keys of its config'
	@echo 'make test      all tests but those marked slow; ARGS="tests/unit" for a part of them'
	@echo 'make slow      the tests marked slow: minutes each'
	@echo 'make lint      ruff, mypy, import rules, wheel build'
	@echo 'make bench     the benchmarks of speed: environments, tool cache, learner, replay'
	@echo 'make results   the demo over three seeds beside learning rate 0, about 40 minutes'
	@echo 'make clean     remove .venv, caches and build output; runs/ stays'

install:
	@test -n "$(PYTHON)" || { echo 'error: no Python 3.11 found; install it (apt-get install python3.11 python3.11-venv python3.11-dev) or name one: PYTHON=/path/to/python3.11 make install' >&2; exit 1; }
	@$(PYTHON) -I deploy/install.py

demo: install
	$(VENV)/cacherl train --config deploy/configs/demo.yaml $(ARGS)

test: install
	$(VENV)/python -m pytest -m "not slow" $(ARGS)

slow: install
	$(VENV)/python -m pytest -m slow --timeout 3600 $(ARGS)

lint: install
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && $(VENV)/python -m build --wheel --no-isolation --outdir "$$out"

bench: install
	@shopt -s nullglob; for file in $(filter-out benchmarks/learning.py benchmarks/replay_options.py benchmarks/smollm2.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(VENV)/python "$$file" || exit 1; done

results: install
	$(VENV)/python benchmarks/learning.py learning $(ARGS)

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
