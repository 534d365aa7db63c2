# Two commands set up everything on a fresh machine: `make compare` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: compare test test-fast test-lerobot attack audit lint docs package clean

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

# Random inputs, malformed calls, damaged pictures and files, wrong invocations, kills: counts what breaks. About half an
# hour; SHARE=0.05 for a short one, ATTACKS="kills writers" for some of them. See docs/reliability.md.
attack: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python attack/run.py $(ATTACKS) --share $(or $(SHARE),1) --seed $(or $(SEED),0)

# Known vulnerabilities of the packages that constraints.txt pins; says so where the list cannot be reached.
audit: $(VENV)/.audit
	$(BIN)/python attack/audit.py constraints.txt

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
