# Two commands set up everything on a fresh machine: `make compare` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: compare test test-fast test-lerobot attack lint docs package clean

# One thread per process: two runs side by side would fight for two cores.
compare: $(VENV)/.cli
	OMP_NUM_THREADS=1 $(BIN)/stringpe compare relations

# One thread per process: two workers and what they start would fight for two cores.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Something of every package, without what compiles, trains for long, starts processes or goes over every host.
test-fast: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

# The plug-ins under packages/ and data sets both ways, with the real LeRobot in an environment of its own.
test-lerobot:
	packages/run_tests $(or $(LEROBOT_ENV),.venv-lerobot)

# Random inputs, malformed calls, damaged files, kills: counts what breaks. MINUTES=30 for the long one.
attack: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python attack/run.py --minutes $(or $(MINUTES),3)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	rm -rf build/pages site && mkdir -p build/pages
	cp -r README.md CHANGELOG.md CODE_OF_CONDUCT.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE build/pages
	cp -r docs notebooks models results benchmarks build/pages
	$(BIN)/mkdocs build --strict

package: $(VENV)/.package
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# An install is a stamp file named after the extra; the extras come from pyproject.toml under constraints.txt.
$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
