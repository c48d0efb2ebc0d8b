# Every Byte. `make` lists what can be made. Each target does its own set-up, in .venv, and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HERE := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))

.DEFAULT_GOAL := help
.PHONY: help install lab test test-all test-browser notebooks figures site slides handout worksheets pdf lite pages record rehearsal published fuzz bench lock clean

help: ## list the targets
	@echo "Every Byte: make <target>   (another Python: make PYTHON=python3.12 <target>)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## set up .venv with everything the book needs

$(STAMP): pyproject.toml tools/install.py $(wildcard locks/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'Every Byte needs Python 3.11 or newer, and "$(PYTHON)" is not that: try make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/install.py
	@touch $@

lab: $(STAMP) ## open the book in JupyterLab, on this machine only
	$(BIN)/jupyter lab --ip=127.0.0.1 --LabApp.news_url=None \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  --LabApp.app_settings_dir=$(HERE)tools/lab $(if $(filter 0,$(shell id -u)),--allow-root) \
	  --ServerApp.root_dir=$(CURDIR) $(LAB_FLAGS) notebooks/00_start_here.ipynb

test: $(STAMP) ## check in minutes: style, the tests, and a share of the notebooks run again and compared
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8

test-all: export EVERYBYTE_TESTS := all
test-all: test ## check everything: also the cases and notebooks of which `make test` takes a sample

test-browser: $(STAMP) ## every notebook and explorer in a real browser (needs Chromium), with timings and screenshots in .artifacts
	EVERYBYTE_BROWSER=whole EVERYBYTE_TESTS=all $(BIN)/python -m pytest -s tests/browser

notebooks: $(STAMP) ## run every notebook and store its outputs
	$(BIN)/python tools/notebooks.py run all

figures: $(STAMP) ## draw the pictures of the README and the book
	$(BIN)/python tools/figures.py

site: $(STAMP) ## build the static edition into build/site: every page works without a kernel and from disk
	$(BIN)/python tools/edition.py

slides: $(STAMP) ## build slides of every chapter into build/slides (ONLY=15_the_step: of that one; TRACK=90-minutes: a track as one deck)
	$(BIN)/python tools/slides.py $(if $(ONLY),--only $(ONLY)) $(if $(TRACK),--track $(TRACK))

handout: $(STAMP) ## print the formulas on one sheet, build/handout.pdf (needs Chromium)
	$(BIN)/python tools/paper.py handout

worksheets: $(STAMP) ## print predictions and exercises, without answers, into build/worksheets (needs Chromium)
	$(BIN)/python tools/paper.py worksheets

pdf: site ## print the static edition, a file for each chapter, into build/pdf (needs Chromium)
	$(BIN)/python tools/paper.py book

lite: $(STAMP) ## build a JupyterLite with formulas, explorers and chapters into build/lite (needs npm and the network)
	$(BIN)/python tools/lite.py

pages: site lite ## build both as they are published: the static edition in build/site, JupyterLite under it, linked
	$(BIN)/python tools/lite.py join

record: $(STAMP) ## measure the labs' grid on this machine's GPU into labs/records
	$(BIN)/everybyte record $(RECORD_FLAGS)

rehearsal: $(STAMP) ## run the labs' grid on a GPU that does nothing, without one (Linux x86-64, gcc; GPU=h200)
	$(BIN)/everybyte rehearse --set-up --grid --gpu $(or $(GPU),h200) $(REHEARSAL_FLAGS)

published: $(STAMP) ## predict again what others measured and published; it goes on where it stopped (after make rehearsal)
	$(BIN)/everybyte published $(PUBLISHED_FLAGS)

fuzz: $(STAMP) ## give everything twenty thousand odd inputs: a right answer or a clear error, in six minutes
	$(BIN)/python tools/fuzz.py $(FUZZ_FLAGS)

bench: $(STAMP) ## time imports, budgets, dry runs and derivations; derive 40 configurations; compare the whole grid, 500 random meshes, and 14 families
	$(BIN)/python tools/bench.py

lock: $(STAMP) ## write constraints.txt and the digests in locks/ anew, after an edit of constraints.txt or pyproject.toml (needs the network)
	$(BIN)/python -m pip install --require-hashes --no-deps --only-binary :all: -r locks/release.txt
	$(BIN)/python tools/lock.py

clean: ## remove .venv, .venv-rehearsal with its other versions, caches and build products
	rm -rf $(VENV) .venv-rehearsal .venv-rehearsal-versions build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
