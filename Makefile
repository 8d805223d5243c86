# The entry points. Each does what it needs first; a second run is quick. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that fits. Another one: make PYTHON=/path/to/python ...
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && \
	echo $$python && break; done)
MODEL ?= qwen2.5-coder-0.5b
BIN := .venv/bin
INSTALLED := .venv/.installed
FAST := not slow and not engine and not data and not postgres and not wheel

.PHONY: help install engine model demo lint check test proof-kills proof-fuzz gen lock fmt clean

help: ## List the entry points.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 18

install: $(INSTALLED) ## Make .venv with Paceline and its developer tools (about 0.5 GB).

$(INSTALLED): requirements/dev.txt requirements/test-data.txt pyproject.toml hatch_build.py
	@[[ -n "$(PYTHON)" ]] || \
		{ echo "Paceline needs Python 3.11, 3.12 or 3.13: install one, or name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make venvs: install its venv package, or name another: make PYTHON=/path"; exit 1; }
	@echo "Installing Paceline into .venv: about 0.5 GB, 1 to 2 minutes"
	[[ -x $(BIN)/pip ]] || $(PYTHON) -m venv --clear .venv
	$(BIN)/pip --disable-pip-version-check install --require-hashes -r requirements/dev.txt | \
		{ grep -v '^Requirement already satisfied' || true; }
	$(BIN)/pip --disable-pip-version-check install --no-deps --require-hashes -r requirements/test-data.txt | \
		{ grep -v '^Requirement already satisfied' || true; }
	$(BIN)/pip --disable-pip-version-check install --no-deps --no-build-isolation --editable .
	touch $@

engine: install ## Make the CPU engine's venv in the user's cache folder (about 3.5 GB).
	$(BIN)/paceline engine install cpu

model: engine ## Fetch MODEL into the user's cache folder (about 0.5 GB to load, 1.3 GB to keep).
	$(BIN)/paceline models fetch $(MODEL)

demo: install ## Repair small programs with a real model. ENGINE=emulated; FILE=... TESTS=... for your own.
	$(BIN)/paceline demo $(if $(ENGINE),--engine "$$ENGINE") $(if $(FILE),--file "$$FILE") \
		$(if $(TESTS),--tests "$$TESTS")

lint: install ## Style, types, protos and generated files.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python scripts/gen_protos.py --check
	$(BIN)/python scripts/gen_docs.py --check

check: lint ## lint and the fast tests, before every commit.
	$(BIN)/pytest -q -m "$(FAST)"

test: install engine model ## Every test, those on a real engine included. PACELINE_DATA=... adds the public traces.
	@$(if $(PACELINE_DATA),,echo "PACELINE_DATA is not set: the tests that read the public traces are left out")
	python=$$($(BIN)/paceline engine path cpu) && model=$$($(BIN)/paceline models path $(MODEL)) && \
	PACELINE_TEST_ENGINE_PYTHON="$$python" PACELINE_TEST_MODEL="$$model" \
		$(BIN)/pytest $(if $(PACELINE_DATA),,-m "not data")

proof-kills: install ## Kill the runtime KILLS times (100) at seeded moments; a run that was broken off goes on.
	PYTHONPATH=. $(BIN)/python scripts/proof_kills.py $(or $(KILLS),100)

proof-fuzz: install ## Fuzz with CASES (1000000) cases; a run that was broken off goes on.
	PYTHONPATH=. $(BIN)/python scripts/proof_fuzz.py $(or $(CASES),1000000)

gen: install ## Regenerate the code from protos and the pages from code.
	$(BIN)/python scripts/gen_protos.py
	$(BIN)/python scripts/gen_docs.py

lock: install ## Refresh requirements/*.txt after a change in pyproject.toml; UPGRADE=1 takes the newest releases.
	$(BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

fmt: install ## Format the code and the protos.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

clean: ## Remove what was made here; engines and models stay in the user's cache folder.
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
