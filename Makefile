# Every target sets up .venv by itself if pyproject.toml or a lock file has changed.
PYTHON ?= python3
HOST =
PORT =
DATABASE_URL =
EXAMPLES =
QUICK =
KILLS = 50
OPERATIONS = 110000
SEED =
JSON =
MINUTES =
RATE =
PROCESSES = logical

# Without compiled modules every test process would compile them again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# The lock is complete, so pip need not resolve dependencies. That also leaves out the GPU library of XGBoost.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps
# One process for each core, up to four; each has a PostgreSQL of its own. Neighbouring tests go to the same process,
# because they share fixtures, and a process without work takes over tests of the others.
PARALLEL := -n $(PROCESSES) --maxprocesses 4 --dist worksteal

.PHONY: help run test test-quick clients client-types lint browser torture soak machine fuzz audit bench bench-http demo clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

run: .venv/ready  ## start the service on http://127.0.0.1:8000 (HOST=, PORT=, DATABASE_URL=)
	@exec $(BIN)/undercurrent serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) \
	  $(if $(DATABASE_URL),--database-url $(DATABASE_URL))

test: lint browser  ## run lint, then all tests (PROCESSES=)
	$(BIN)/pytest -q $(PARALLEL)

test-quick: .venv/ready  ## run the tests that need no PostgreSQL, no server process and no browser: a minute
	$(BIN)/pytest -q $(PARALLEL) -m "not slow"

clients: .venv/ready  ## build the client packages into dist/ and test them, also installed in empty environments
	$(BIN)/python -m tests.clients.packages
	$(BIN)/pytest -q $(PARALLEL) tests/clients

client-types: .venv/ready  ## generate the types of the TypeScript client anew, after a change of the API
	$(BIN)/python -m tests.clients.packages types

machine: .venv/ready  ## compare random requests with a model of the rules, try extreme numbers and many callers (EXAMPLES=200)
	UNDERCURRENT_EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/pytest -q $(PARALLEL) \
	  tests/service/test_machine.py tests/service/test_numbers.py tests/policy/test_numbers.py \
	  tests/e2e/test_concurrency.py

fuzz: .venv/ready  ## run schemathesis on all routes, on both databases, with and without keys (EXAMPLES=100, SEED=)
	$(BIN)/python -m tests.service.fuzzing $(if $(EXAMPLES),--examples $(EXAMPLES)) $(if $(SEED),--seed $(SEED))

lint: .venv/ready  ## check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

browser:
	@missing=""; command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="chromium fonts-dejavu-core"; \
	command -v sqlite3 >/dev/null || missing="$$missing sqlite3"; \
	command -v nginx >/dev/null || missing="$$missing nginx-light"; \
	command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Debian's packages for the tests (a minute): $$missing ..."; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
	      echo "The packages could not be installed; some tests need them."; \
	  else \
	    echo "Some tests need Debian's packages (apt-get install $$missing); without them they are skipped, or fail in CI."; \
	  fi; \
	fi

torture: .venv/ready  ## kill the service again and again under load and count what is lost: 20 minutes (KILLS=, OPERATIONS=, SEED=, JSON=)
	$(BIN)/python -m tests.e2e.torture --kills $(KILLS) --operations $(OPERATIONS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

audit: .venv-audit/ready  ## look for known vulnerabilities in the locked dependencies; needs the internet
	@.venv-audit/bin/python deploy/audit.py

bench: .venv/ready-bench  ## compare the speed with other libraries (QUICK=1: one minute)
	$(BIN)/python -m benchmarks.policy $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.reproduction $(if $(QUICK),--quick)

bench-http: .venv/ready  ## compare the service over HTTP with an empty endpoint: 15 minutes (QUICK=1: five)
	$(BIN)/python -m benchmarks.http $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.growth $(if $(QUICK),--quick)

soak: .venv/ready  ## run a steady load with restarts on both databases and report drifts: 10 minutes (MINUTES=, RATE=)
	$(BIN)/python -m tests.e2e.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATE),--rate $(RATE))

demo: .venv/ready  ## start a service and four policies that serve simulated customers, until Ctrl-C (PORT=)
	@exec $(BIN)/undercurrent-sim demo $(if $(PORT),--port $(PORT))

clean:  ## remove .venv and every cache
	rm -rf clients/typescript/node_modules clients/typescript/dist clients/python/*.egg-info
	rm -rf .venv .venv-audit build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: pyproject.toml requirements.lock clients/python/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; Undercurrent needs Python 3.11 or newer."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Undercurrent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another, e.g. PYTHON=python3.12."; exit 1; }
	@echo "Setting up .venv (the first time takes a minute) ..."
	@test -x $(BIN)/undercurrent || $(PYTHON) -m venv --clear .venv
	@$(INSTALL) -r requirements.lock
	@$(INSTALL) --no-build-isolation -e . -e clients/python
	@echo "Compiling the kernels (under a minute) ..."
	@$(BIN)/python -m service.engine.warm_up
	@touch $@

.venv/ready-bench: .venv/ready requirements-bench.lock
	@echo "Installing the libraries to compare with (contextualbandits is compiled: it takes a minute and a C++ compiler) ..."
	@$(INSTALL) -r requirements-bench.lock
	@touch $@

# A separate environment: the auditing tool has dependencies of its own.
.venv-audit/ready: requirements-audit.lock
	@$(PYTHON) -m venv --clear .venv-audit
	@.venv-audit/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements-audit.lock
	@touch $@
