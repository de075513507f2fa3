# make train   set-up, then the main job on the embedded default data
# make test    set-up, then all tests that take seconds; make test-slow runs those that take longer,
#              and gives the property tests more examples, new ones each time: about an hour on two cores
# make lint    style, types, import layers; make bench runs the benchmarks
# make docs    set-up, then the documentation site in site/; a broken link is an error
SHELL := /bin/bash
PYTHON ?= python3
TORCH := torch==2.13.0
BIN := .venv/bin
READY := .venv/ready
DOCS_READY := .venv/docs-ready

.PHONY: setup train test test-slow bench lint docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Vaak needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[accelerate,augmentation,cleaning,ct2,gguf,hf,seq2seq,wandb,trackio,plot,spreadsheets,audio,asr,study,ray,tts,tts-eval,lm-eval,test,dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests/' .venv/lib || true # on all cores, as pip does not; some files are templates
	@touch $(READY)

train: setup
	$(BIN)/vaak train configs/quickstart.yml

# One thread a process: the tests are small, and threads of several would wait for each other. Three workers for two
# cores: a fifth of a test's time is waiting for processes that it started. Compiled files are kept (in __pycache__, unless
# PYTHONDONTWRITEBYTECODE is set): workers and hundreds of commands import the same ones.
test: setup
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist loadfile --durations=10 -m "not slow"

test-slow: setup
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HYPOTHESIS_PROFILE=search $(BIN)/pytest -n 2 --dist worksteal --timeout 1800 --durations=20 -m "slow or hypothesis"

bench: setup
	for name in startup engine checkpoint plans attention favor audio ranks; do $(BIN)/python benchmarks/$$name.py || exit 1; done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $(DOCS_READY)

clean:
	rm -rf .venv runs site
