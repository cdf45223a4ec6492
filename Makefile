# Two commands: `make report` and `make test`. Both create .venv from a lock with hashes when it is missing or old.
# Needs: make, Python 3.11 or newer with venv. PYTHON=python3.12 make report picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SNAKEMAKE := $(BIN)/snakemake --cores 1
PIP_QUIET := -q -q --disable-pip-version-check --no-input

.PHONY: report test lint check environment clean

report: $(VENV)/pipeline.ok
	@$(SNAKEMAKE) report
	@echo "[report] open results/report/index.html in a browser; it needs no network"

test: $(VENV)/dev.ok lint
	@$(BIN)/python -m pytest

lint: $(VENV)/dev.ok
	@echo "[lint] ruff, mypy, snakefmt, snakemake --lint"
	@$(BIN)/ruff check --quiet scripts tests benchmarks
	@$(BIN)/ruff format --quiet --check scripts tests benchmarks
	@$(BIN)/mypy --no-error-summary scripts
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/snakemake --lint >/dev/null

environment: $(VENV)/pipeline.ok

$(VENV)/pipeline.ok: envs/pipeline.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; call: PYTHON=python3.12 make report")'
	@echo "[environment] creating $(VENV) from envs/pipeline.txt (about 500 MB, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes --requirement envs/pipeline.txt
	@touch $@

$(VENV)/dev.ok: envs/dev.txt $(VENV)/pipeline.ok
	@echo "[environment] adding the test tools from envs/dev.txt"
	@$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes --requirement envs/dev.txt
	@touch $@

# Removes what the workflow made; the cache of models and engines (resources/) stays.
clean:
	@find results -mindepth 1 ! -name README.md -delete
