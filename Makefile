# Two commands set up everything on a fresh machine: `make compare` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: compare test lint docs clean

# One thread per process: two runs side by side would fight for two cores.
compare: $(VENV)/.cli
	OMP_NUM_THREADS=1 $(BIN)/stringpe compare relations

# One thread per process: two workers and what they start would fight for two cores.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/pdoc --output-directory site --docformat markdown stringpe

# An install is a stamp file named after the extra; the extras come from pyproject.toml under constraints.txt.
$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
