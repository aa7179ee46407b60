# make run   the quick start: handwritten digits, ten clients, FedWSQ at 4 bits
# make fuzz  hostile files of every kind, for as long as SECONDS says
# make test  lint, types and the fast tests; make test-slow and test-flower run the rest
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# In force for build environments too, so that torch is never resolved without its pin.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

# Seconds of fuzzing for each kind of file; SECONDS=3600 for a night.
SECONDS ?= 600

.PHONY: run test test-slow test-flower fuzz lint bench docs install clean

run: $(STAMP)
	$(BIN)/fedwsq run $(ARGS)

test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(ARGS)

test-slow: $(STAMP)
	$(BIN)/pytest -m slow $(ARGS)

test-flower: $(STAMP)
	$(BIN)/pytest -m flower tests/flower $(ARGS)

# Guided by coverage: finds stay in .fuzz, and are what the next time starts from.
fuzz: $(STAMP)
	$(BIN)/pip install --quiet --editable '.[dev,fuzz]'
	for kind in $$(ls tests/fuzz/corpus); do $(BIN)/python tests/fuzz/fuzz_guided.py $$kind $(SECONDS) || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/foundation.py $(ARGS)

docs: $(STAMP)
	$(BIN)/python -c 'from fedwsq.plan import methods_document; print(methods_document(), end="")' > docs/methods.md

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "fedwsq needs Python 3.11 to 3.13, and $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
