# Goondan Workers. Everything these targets need goes into .venv; `make clean` takes it away again.
# Needs Python 3.11 or newer, make and git. `make PYTHON=/path/to/python` picks the interpreter, VENV=… another place.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready

# The tests start hundreds of processes, which need not compile these again where Python keeps no bytecode. In a new
# environment the tests themselves are collected once before, so that one process compiles them and not each.
SOURCES := broker_config goondan_start.py goondan_tasks goondan_web workers
collect_once = [ -e $(1)/.collected ] || { \
    $(1)/bin/python -m pytest --collect-only -q $(2) >/dev/null 2>&1 || true; touch $(1)/.collected; }
# Four processes more than two cores, since the tests of processes wait more than half of their time, and at most 6: some
# tests have deadlines. Files go in the order of tests/conftest.py, which spreads those that wait among those that compute.
# The types are checked beside the tests, and what mypy says comes last.
DISTRIBUTED = -n $(PROCESSES) --dist loadfile
PROCESSES := $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); [ $$n -ge 2 ] && echo 6 || echo 4)

# Install packages, with a line of progress; all that pip says if it fails.
install = { $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable '$(1)' 2>&1 && echo 'status 0' || echo 'status 1'; } \
    | awk -v screen="$$([ -t 1 ] && echo yes)" '$(PROGRESS)'
PROGRESS = { said = said $$0 "\n"; step = "" } \
    /^Collecting / { count++; split($$2, name, /[<>=!~;[]/); step = count " packages found, " name[1] } \
    /^Installing collected/ { step = "installing " count " packages"; count = 0 } \
    step && screen { printf "\r\033[K  %s", step; fflush() } \
    step && !screen && count % 25 == 0 { print "  " step; fflush() } \
    /^status / { failed = $$2 } \
    END { if (screen) printf "\r\033[K"; if (failed) printf "%s", said; exit failed }

USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CREATE = python=; \
    for candidate in $(or $(PYTHON),python3.12 python3.11 python3.13 python3.14 python3); do \
        if $$candidate -c '$(USABLE)' 2>/dev/null; then python=$$candidate; break; fi; \
    done; \
    if [ -z "$$python" ]; then \
        echo "Python 3.11 or newer with its venv module is needed (on Debian: apt install python3 python3-venv)." >&2; exit 1; \
    fi; \
    echo "Preparing $(VENV) with $$($$python --version): downloads packages, takes a minute or two, happens once."; \
    $$python -m venv --clear $(VENV)

.DEFAULT_GOAL := help
.PHONY: help demo test pythons lint types contracts docs faults simulate bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## run the example swarm on a private Redis: a task goes from agent to agent, every step on screen
	@$(BIN)/goondan demo

test: $(READY) lint contracts ## everything CI checks: lint, types, contracts, tests
	@$(BIN)/python -m compileall -q $(SOURCES)
	@said=$$(mktemp); $(BIN)/python -m mypy >$$said 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null; rm -f $$said' EXIT; trap 'exit 130' INT TERM; status=0; \
	$(call collect_once,$(VENV)); \
	$(BIN)/python -m pytest $(DISTRIBUTED) --no-loadscope-reorder $(ARGS) || status=$$?; \
	wait $$types || status=1; cat $$said; exit $$status

pythons: $(BIN)/python ## the unit tests with the other supported Pythons of this machine; VERSION=3.13 or VERSION=today for one
	@own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	found=$$(.ci/interpreters | grep -v "^$$own="); few=; set --; \
	for version in $$(sed -n 's/.*:: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml); do \
	    one=$$(echo "$$found" | grep "^$$version="); \
	    if [ $$version = $$own ]; then echo "Python $$version: the one of make test"; \
	    elif [ -z "$$one" ]; then echo "Python $$version: not found on this machine"; \
	    elif [ "$(VERSION)" = today ] || [ $$version = "$(or $(VERSION),$$version)" ]; then set -- "$$@" "$$one"; \
	    else echo "Python $$version: left out by VERSION=$(VERSION)"; fi; \
	done; \
	[ "$(VERSION)" != today ] || few=--one-case; \
	if [ "$(VERSION)" = today ] && [ $$# -gt 1 ]; then \
	    said="each of the $$# others has its day"; shift $$(($$(date +%s) / 86400 % $$#)); set -- "$$1"; \
	    echo "Python $${1%%=*}: chosen by the date, $$said; make pythons runs all, with all cases"; \
	fi; \
	[ $$# -gt 0 ] || [ -z "$(filter-out today,$(VERSION))" ] || exit 1; status=0; \
	for one in "$$@"; do \
	    version=$${one%%=*}; venv=$(VENV)/$$version; run="$$venv/bin/python -m pytest -q $(DISTRIBUTED) tests/unit $$few"; \
	    [ -z "$(PREPARE)" ] && echo "Python $$version: running tests/unit …" || run="echo $$venv is ready"; \
	    if said=$$({ $(MAKE) -s PYTHON=$${one#*=} VENV=$$venv $$venv/.ready && \
	        { $(call collect_once,$$venv,tests/unit); } && $$run; } 2>&1); \
	    then said="passed: $$(echo "$$said" | tail -n 1)"; \
	    else echo "$$said"; said=failed; status=1; fi; \
	    echo "Python $$version: $$said"; \
	done; exit $$status

lint: $(READY) ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## mypy --strict over sources and tests
	@$(BIN)/python -m mypy

contracts: $(READY) ## the direction of imports
	@$(BIN)/lint-imports

docs: $(READY) ## check links, code blocks and reference pages of the documentation
	@$(BIN)/python -m pytest tests/docs

faults: $(READY) ## kill, freeze, cut, fill and soak, 25 minutes; says what was lost, doubled and late
	@$(BIN)/python -m pytest tests/faults tests/integration/test_mcp_conformance.py -m "not short" $(ARGS)

simulate: $(READY) ## random walks over the ledger's scripts, with faults; ARGS="--minutes 20 --seed 1", --mutations --only TEXT
	@$(BIN)/python -m tests.simulation $(ARGS)

bench: $(BENCH_READY) ## measure against other task queues, minutes; ARGS=--quick, ARGS=--help
	@$(BIN)/python -m benchmarks $(ARGS)

lock: $(READY) ## pin the newest versions of what the image installs and is built with, with hashes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml | $(BIN)/uv pip compile --quiet --upgrade --generate-hashes \
	    --python-version 3.12 --python-platform linux --custom-compile-command 'make lock' \
	    --output-file build-constraints.txt -
	@$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --python-version 3.12 --python-platform linux \
	    --extra all --extra otel --custom-compile-command 'make lock' --output-file constraints.txt pyproject.toml

clean: ## remove .venv, caches and build results
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(CREATE)

$(READY): pyproject.toml | $(BIN)/python
	@set -e; $(BIN)/python -m pip --version >/dev/null 2>&1 || { $(CREATE); }; $(call install,.[dev]); touch $@; \
	echo "$(VENV) is ready."

$(BENCH_READY): $(READY)
	@echo "Adding the other task queues to $(VENV): downloads packages, happens once."
	@$(call install,.[bench])
	@touch $@
