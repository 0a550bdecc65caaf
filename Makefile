# The two commands are `make demo` and `make test`. Both set up .venv and compile the gateware first, once.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
export UWARP_CACHE ?= $(CURDIR)/.cache
WORKERS ?= 2
DEMO ?=
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help check-tools setup gateware benches demo test soak lint docs resources clean

help:
	@echo "make demo    send a picture between two NICs over a lossy wire (DEMO='--loss 0' passes options)"
	@echo "make test    run every test"
	@echo "make soak    run the long tests as well"
	@echo "make lint    ruff and mypy"
	@echo "make docs    write docs/registers.md again"
	@echo "make resources  synthesise every unit and write docs/resources.md (an hour or two)"
	@echo "make setup   only set up .venv;  make clean   remove all that was made"

check-tools:
	@missing=0; \
	need() { command -v "$$1" >/dev/null 2>&1 || { echo "make: $$1 is missing: $$2" >&2; missing=1; }; }; \
	need "$(PYTHON)" "install Python 3.11 (Debian: apt install python3.11 python3.11-venv), or name it: make PYTHON=/path/to/python3.11"; \
	need g++ "it compiles the gateware (Debian: apt install g++)"; \
	need perl "Verilator needs it (Debian: apt install perl)"; \
	if command -v "$(PYTHON)" >/dev/null 2>&1; then \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' || \
	    { echo "make: $(PYTHON) is older than Python 3.11; name another: make PYTHON=/path/to/python3.11" >&2; missing=1; }; \
	  "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "make: $(PYTHON) has no venv module (Debian: apt install python3.11-venv)" >&2; missing=1; }; \
	fi; exit $$missing

$(STAMP): pyproject.toml constraints.txt | check-tools
	@echo "setting up $(VENV) (a minute, once)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: check-tools $(STAMP)

gateware: setup
	@$(BIN)/python -m uwarp.device.build

benches: gateware
	@$(BIN)/python -m sim_tb.build

demo: setup
	@$(BIN)/uwarp demo $(DEMO)

test: benches
	@$(PYTEST) -m "not soak" $(TESTS)

soak: benches
	@$(PYTEST) -m "soak or not soak" $(TESTS)

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: setup
	@$(BIN)/python -m uwarp.contract registers --output docs/registers.md

resources: setup
	@$(BIN)/python -m uwarp_boards.resources

clean:
	rm -rf $(VENV) .cache build demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
