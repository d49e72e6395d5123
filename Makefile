# Two commands do all the set-up: `make chat` runs the main job, `make test` passes the tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One thread a process: two threads each on a busy machine are slower than one.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help chat test check lint proto format bench clean

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

chat: $(VENV)/.chat ## Chat through the real split system; PROMPT="..." for one answer, NETWORK=4g for an emulated link
	@BIN=$(BIN) PROMPT='$(subst ','\'',$(PROMPT))' NETWORK='$(NETWORK)' MODEL='$(MODEL)' sh deploy/chat.sh

test: $(VENV)/.dev ## Run the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: $(VENV)/.dev ## Style, types, import rules, freshness of the generated wire code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=proto:shared:server:client:netsim:training:bench $(BIN)/lint-imports
	$(BIN)/python proto/regenerate.py --check

check: lint test ## What CI runs

proto: $(VENV)/.dev ## Generate the wire code from proto/moa/v1/moa.proto
	$(BIN)/python proto/regenerate.py

format: $(VENV)/.dev ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## Measure forwards, drafting, first token, bytes; results to bench/results and docs/
	$(BIN)/moa-bench micro

clean: ## Delete the environment
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: with it installed, nothing asks the registry for another build of it.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "Installing torch (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@touch $@

$(VENV)/.chat: pyproject.toml $(VENV)/.torch
	@echo "Installing moa ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[client,server]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	@echo "Installing moa and what its tests need ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.chat
