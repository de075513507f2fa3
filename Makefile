# make train   sets up the core, then trains the quick start on sentences that Vaak generates
# make test    sets up everything, then runs all tests that take seconds; make test-slow runs those that take longer,
#              and gives the property tests more examples, new ones each time: about an hour on two cores
# make lint    style, types, import layers; make bench runs the benchmarks
# make docs    sets up the core and MkDocs, then builds the documentation site in site/; a broken link is an error
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
TORCH := torch==2.13.0
EXTRAS := accelerate,augmentation,cleaning,ct2,gguf,hf,seq2seq,tensorboard,wandb,trackio,plot,spreadsheets,audio,m4a,lilcom,cloud,asr,umap,study,ray,tts,tts-eval,live,lm-eval,serve,test,dev,docs
BIN := .venv/bin
# What is set up, each a file that says so: the core, with which the quick start trains; what lint reads; all of it
CORE := .venv/core-ready
LINT := .venv/lint-ready
READY := .venv/ready
DOCS_READY := .venv/docs-ready
SLOW_READY := .venv/slow-ready
# Where all is set up, the smaller ones are, too
CORE_OR_MORE = $(or $(wildcard $(READY)),$(CORE))
LINT_OR_MORE = $(or $(wildcard $(READY)),$(LINT))
PIP := $(BIN)/pip install --disable-pip-version-check --no-compile --progress-bar off
# The pip that comes with Python 3.11 takes a minute more to find 250 packages
NEW_PIP := $(BIN)/pip install --disable-pip-version-check --quiet 'pip>=25' || echo "  pip stays as old as this Python: a minute more"
# pip's output in few lines: every twentieth package that is found, each file of 20 MB or more
SHORTLY := | awk '/^Collecting/ {if (++n % 20 == 0) print "  " n " packages found"} \
	/^ *Downloading/ {gsub(/[()]/, ""); if ($$NF ~ /^MB/ && $$(NF-1) >= 20) print "  downloading " $$2 ", " $$(NF-1) " MB"} \
	/^Installing/ {print "  installing " NF - 3 " packages"} {fflush()}'
# Compiled is what is imported, when it is imported, and kept: all 22,000 files would take 150 s of a processor. The
# modules that every test or command imports are compiled here, before several processes ask for them at once.
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/python -c 'import torch._dynamo, vaak.library, vaak.cli.main'
COMPILE_ALL := $(BIN)/python -c 'import accelerate, lhotse, scipy.signal, sklearn.cluster, transformers, vaak.cli.main'
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Vaak needs Python 3.11 or newer: make PYTHON=python3.11 …")'

.PHONY: setup train test test-slow bench lint docs clean

setup: $(READY)

$(CORE): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Setting up .venv: torch and the core, about 1.1 GB on disk; some minutes, mostly downloads."
	@echo "Where there is no GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares CUDA, several GB on Linux."
	@$(PYTHON) -m venv .venv
	@$(NEW_PIP)
	@$(PIP) -c constraints.txt $(TORCH) -e . $(SHORTLY)
	@$(COMPILE)
	@touch $(CORE)

$(LINT): $(CORE)
	@$(PIP) -c constraints.txt -e '.[dev]' $(SHORTLY)
	@touch $(LINT)

# One call of pip: each searches all packages again
$(READY): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Setting up .venv with what tests and the site need, nearly all extras: 3.2 GB on disk; some minutes, mostly downloads."
	@echo "Where there is no GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares CUDA, several GB on Linux."
	@$(PYTHON) -m venv .venv
	@$(NEW_PIP)
	@$(PIP) -c constraints.txt $(TORCH) -e '.[$(EXTRAS)]' $(SHORTLY)
	@$(COMPILE_ALL)
	@touch $(CORE) $(LINT) $(READY) $(DOCS_READY) # in the order in which one needs another

# What slow tests alone try: a page in a browser
$(SLOW_READY): $(READY)
	@$(PIP) -c constraints.txt -e '.[demo]' $(SHORTLY)
	@touch $(SLOW_READY)

train: $(CORE_OR_MORE)
	$(BIN)/vaak train configs/quickstart.yml

# One thread a process: the tests are small, and threads of several would wait for each other. Three workers for two
# cores: a fifth of a test's time is waiting for processes that it started.
test: setup
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -n 3 --dist loadfile --durations=10 -m "not slow"

test-slow: setup $(SLOW_READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HYPOTHESIS_PROFILE=search $(BIN)/pytest -n 2 --dist worksteal --timeout 1800 --durations=20 -m "slow or hypothesis"

bench: setup
	for name in startup engine checkpoint plans attention favor audio ranks; do $(BIN)/python benchmarks/$$name.py || exit 1; done

# Workers of mypy that a busy machine doesn't start within three seconds are an error: then one process does it
lint: $(LINT_OR_MORE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 || $(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/shape.py --check

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

$(DOCS_READY): $(CORE_OR_MORE)
	@$(PIP) -c constraints.txt -e '.[docs]' $(SHORTLY)
	@touch $(DOCS_READY)

clean:
	rm -rf .venv runs site
