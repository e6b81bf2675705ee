# make demo         two servers, one shop: oversold without a lock, right with lockkit
# make serve        the same shop, left running, with a page to click on
# make test         everything CI does: lint, types, tests of the installed wheel on real servers
# make quick        for in between: the wheel, and some tests of nearly everything, in a minute and with
#                   no server but Redis
# make whole        the conformance suite in full over each way to each store: before a release
# make check        lint and types only
# make bench        lockkit beside others, as one table, and the numbers in the README
# make soak-orders  orders at two machines that are killed hundreds of times, and a verdict
# make matrix       the tests on the lowest versions of every dependency, and on Python 3.11 + Django 5.2,
#                   3.12 and 3.13 + the newest Django
# make constraints  move constraints.txt to the newest releases
#
# Variables: VENV, PYTHON (the interpreter of a new VENV), PYTEST_ARGS ("-k redis", "-n 0"),
# BENCH_ARGS ("--only scale --minutes 10", "--help"),
# SOAK_ARGS ("--requests 1000 --shop flask --seed 7", "--help").

SHELL := /bin/bash
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
# Most tests wait for other processes: even two cores have time for five. Each has its own servers.
PARALLEL := --numprocesses=5 --dist=loadscope --no-loadscope-reorder
CONSTRAINTS ?= --constraint constraints.txt
AGAIN ?= $(if $(PYTEST_ARGS),,yes)

BIN := $(VENV)/bin
WHEELS := $(VENV)/wheel
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TIMED = TIMEFORMAT="make $@: %0R s, CPU %0U + %0S s"; time
# The tests find the installed package or nothing: not the checkout, not a package of the user's.
# And what was compiled once is kept, whatever the shell says: they start many processes.
ISOLATED := env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1

.PHONY: demo serve test quick whole check lint format types bench soak-orders matrix constraints clean environment servers tests wheel
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: wheel $(VENV)/.demo
	@$(BIN)/python example_project/manage.py demo

serve: wheel $(VENV)/.demo
	@$(BIN)/python example_project/manage.py serve

# Each part runs, whatever the others find; it fails if one of them did. The checks run beside the
# tests, which leave time for them; what they print comes last.
test: wheel $(VENV)/.dev servers
	@$(TIMED) { \
		$(MAKE) --no-print-directory --keep-going check > $(VENV)/checked 2>&1 & checks=$$!; \
		trap "kill $$checks 2>/dev/null" EXIT; \
		$(MAKE) --no-print-directory tests; tested=$$?; \
		wait $$checks; checked=$$?; cat $(VENV)/checked; \
		test $$tested$$checked = 00; }

quick: wheel $(VENV)/.dev
	@tools/servers redis
	@$(TIMED) $(MAKE) --no-print-directory tests PYTEST_ARGS="--quick $(PYTEST_ARGS)"

whole: wheel $(VENV)/.dev servers
	@$(TIMED) $(MAKE) --no-print-directory tests PYTEST_ARGS="--whole tests/stores/conformance $(PYTEST_ARGS)"

check: lint format types

lint: $(VENV)/.dev
	$(BIN)/ruff check --quiet .

format: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.dev
	$(BIN)/mypy

# Alone it tests the wheel that was installed last. AGAIN= gives no second chance: see tools/again.py.
tests: $(VENV)/.dev
	$(ISOLATED) $(BIN)/pytest --cache-clear $(PARALLEL) $(PYTEST_ARGS) || \
		{ test $$? = 1 -a -n "$(AGAIN)" && $(ISOLATED) $(BIN)/python tools/again.py; }

bench: wheel $(VENV)/.dev
	@tools/servers redis postgresql mariadb zookeeper
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

soak-orders: wheel $(VENV)/.dev
	@tools/servers redis postgresql
	$(ISOLATED) PYTHONPATH=$(CURDIR)/tests/kit $(BIN)/python -W ignore -m soak $(SOAK_ARGS)

matrix:
	@tools/matrix

constraints:
	@tools/matrix --pin

servers:
	@tools/servers redis openssl postgresql pgbouncer mariadb zookeeper chromium cc

clean:
	rm -rf .venv .venv-* build dist example_project/*.sqlite3*

# Always built: it takes seconds, and make does not see that a file was deleted.
wheel: $(VENV)/.build
	@echo "Building and installing the wheel"
	@rm -rf $(WHEELS)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(WHEELS) .
	@$(PIP) install --no-deps --force-reinstall $(WHEELS)/lockkit-*.whl

# Installed again only when what they were installed from has changed.
$(VENV)/.build: pyproject.toml constraints.txt tools/find-python
	@echo "Making $(VENV)"
	@test -x $(BIN)/python || { \
		python=$${PYTHON:-$$(tools/find-python)} && "$$python" -m venv $(VENV); }
	@$(PIP) install --upgrade $(CONSTRAINTS) pip
	@$(PIP) install $(CONSTRAINTS) --group build
	@touch $@

$(VENV)/.demo: $(VENV)/.build
	@echo "Installing what the shop needs"
	@$(PIP) install $(CONSTRAINTS) --group demo
	@touch $@

$(VENV)/.dev: $(VENV)/.build
	@test -d $(WHEELS) || $(MAKE) --no-print-directory wheel
	@echo "Installing drivers, frameworks and tools"
	@$(PIP) install $(CONSTRAINTS) --group dev "$$(echo $(WHEELS)/lockkit-*.whl)[all]"
	@touch $@
