# Every command a developer or CI needs. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
E2E    := $(VENV)/.installed-e2e
DOCS   := $(VENV)/.installed-docs

# One thread per test worker: two workers with torch's own pools would fight over the cores.
# Offline: a test that reaches for a hub must fail at once, not hang.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-lowest test-slow test-e2e bench-baselines bench-classes bench-coalitions bench-cost bench-tuned bench-emoji bench-evidence bench-hardening bench-house bench-natural bench-operators bench-path bench-scale bench-scoring bench-trust bench-web lint format types contracts check docs dist examples clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## Make .venv and install guda with its developer tools (nothing to do if up to date)

# pip is the last thing `venv` writes, so a .venv that was interrupted half-way is made again.
# constraints.txt pins torch: an open range would take the newest build, on Linux with gigabytes of CUDA.
$(STAMP): pyproject.toml benchmarks/sources/pyproject.toml constraints.txt
	@test -x $(BIN)/pip || { \
	  command -v $(PYTHON) >/dev/null || \
	    { echo "error: '$(PYTHON)' not found; install Python 3.11 or newer, or run make PYTHON=/path/to/python3" >&2; exit 2; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: guda needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1); run make PYTHON=/path/to/python3.11" >&2; exit 2; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }; \
	  echo "Making $(VENV) with $$($(PYTHON) -V)"; \
	  $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]' -e benchmarks/sources
	@touch $@

# Playwright, FastAPI and Ray are extras: only the tests that need them install them, under the same constraints.
$(E2E): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,e2e]'
	@touch $@

# mkdocs and what builds a release: only for `make docs` and `make dist`.
$(DOCS): $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,docs,release]'
	@touch $@

demo: install ## Run the whole method on the digits; writes runs/demo/report.html
	$(BIN)/guda demo

test: install ## Run the fast tests
	$(PYTEST) -m "not slow and not e2e" -n 2

test-lowest: ## Run the fast tests with the oldest versions that pyproject.toml allows (.venv-lowest; not part of CI)
	test -x .venv-lowest/bin/pip || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install -c constraints-lowest.txt -e '.[dev]' -e benchmarks/sources
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-lowest/bin/pytest -m "not slow and not e2e" -n 2

test-slow: $(E2E) ## Run the tests that take minutes
	$(call pytest-if-any,slow)

test-e2e: $(E2E) ## Run the tests that need a browser (Debian's chromium) or a Ray cluster
	$(call pytest-if-any,e2e and not slow)

bench-baselines: install ## Measure every baseline against LOGO, and the featuriser's speed (an hour after bench-operators; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/baselines.py

bench-classes: install ## Measure attribution of class-conditional models on digits and Fashion-MNIST (an hour from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/classes.py

bench-coalitions: install ## Measure subset models, LDS, shares and opt-outs on three data sets (hours from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/coalitions.py

bench-emoji: install ## Measure text-to-image attribution on eight emoji styles (hours from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/emoji.py

bench-evidence: $(E2E) ## Measure maps, inversions, exhibits and the demo's report (ten minutes from nothing; needs chromium; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/evidence.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/evidence.py --page runs/demo

bench-hardening: $(E2E) ## Bad inputs, kills, full disks and two drivers against the command line (an hour; docs/reliability.md)
	$(BIN)/python tools/fuzz.py --corpus --inputs 2000 --jobs 2 --write
	$(BIN)/python tools/kill.py --kills 100 --write
	$(BIN)/python tools/kill_server.py --write
	$(BIN)/python tools/invariance.py --write
	$(BIN)/python tools/flood.py | $(BIN)/python tools/hardening.py flood

bench-house: install ## Measure the code's size, what a reader walks through, and the memory of guda.attribute (ten minutes)
	$(BIN)/python benchmarks/house.py --label after

bench-natural: install ## Measure densities of natural images, and answers of a distilled method (hours from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/alignment.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/natural.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/distil.py

bench-cost: install ## Measure agreement with retraining against the cost of unlearning (after bench-path; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/cost.py

bench-tuned: install ## Choose settings by function and by rank, judged by other retrainings (after bench-path; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/tuned.py

bench-operators: install ## Measure every unlearning operator against LOGO (hours from nothing; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/logo_budget.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/operators.py

bench-path: install ## Measure path divergence against the ELBO difference on five data sets (hours from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/path.py

bench-scale: $(E2E) ## Measure Ray on two nodes, 10 to 1,000 groups, sixty font families (hours from nothing; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scale.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/many_groups.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fonts.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/screens.py

bench-scoring: install ## Measure the scoring engine: evaluations saved, coverage, overhead (long; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scoring.py

bench-trust: install ## Measure whether claims hold: coverage, foreign pictures, answer sets, held-out pictures (an hour from nothing; resumes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/trust.py

bench-web: $(E2E) ## Measure how long the page takes to answer, on the demo run; take its pictures (needs chromium)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/web.py runs/demo --screenshots docs/images

examples: install ## Execute the notebooks of examples/ and keep their outputs (minutes)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tools/notebooks.py

lint: install ## Check style and formatting (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## Fix style and formatting in place (ruff)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

contracts: install ## Check that library packages import nothing of the workflow (import-linter)
	$(BIN)/lint-imports

types: install ## Check types (mypy)
	$(BIN)/mypy

check: lint types contracts test ## Everything a change must pass: lint, types, import contracts, fast tests

docs: $(DOCS) ## Build the site into build/site; a warning or a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The same commit gives the same bytes: times in the archives are those of the commit.
dist: $(DOCS) ## Build wheel and sdist into dist/, reproducibly
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist .
	cd dist && sha256sum guda-*

clean: ## Remove caches and build output (keeps .venv and runs/)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Run the tests of one marker. Having none is fine (pytest would exit with 5); any other failure is a failure.
define pytest-if-any
@rc=0; $(PYTEST) -m "$(1)" --collect-only -qq >/dev/null 2>&1 || rc=$$?; \
if [ $$rc -eq 5 ]; then echo 'There are no tests marked "$(1)" yet: nothing to run.'; \
else echo '$(PYTEST) -m "$(1)"'; $(PYTEST) -m "$(1)"; fi
endef
