# Two commands do everything: `make demo` and `make test`. Both set up .venv first, and only once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo
export OMP_NUM_THREADS ?= 2

.PHONY: demo serve study test lint types unit slow fuzz fuzz-service mutants setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "restd needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[encoders,bm25,ir-datasets,report,serve,client,mcp,dev]'
	touch $(READY)

demo: setup
	$(BIN)/restd data shop --items 5000 --out $(DEMO)/shop
	$(BIN)/restd data check $(DEMO)/shop
	$(BIN)/restd quickstart $(DEMO)/shop --out $(DEMO)
	$(BIN)/restd search --model $(DEMO)/bundle "quiet mouse for the office" -k 5 --explain S0003770
	$(BIN)/restd search --model $(DEMO)/bundle "drink bottle 500 ml" -k 5 --where "price<=30"
	$(BIN)/restd search --model $(DEMO)/bundle "help me serve kibble without a mess" -k 5 --mode generative

# the demo's model over HTTP, for this machine alone
serve: setup
	$(BIN)/restd serve --model $(DEMO)/bundle

# the paper's matched comparison where an item has one training query: Base-FT and ResTD from one checkpoint
study: setup
	$(BIN)/restd data shop --items 5000 --out $(DEMO)/shop
	$(BIN)/restd index build --catalog $(DEMO)/shop --out $(DEMO)/paper-index --set align.enabled=off
	$(BIN)/restd train --index $(DEMO)/paper-index --data $(DEMO)/shop --out $(DEMO)/base --epochs 6 --no-fit
	$(BIN)/restd compare --index $(DEMO)/paper-index --data $(DEMO)/shop --init $(DEMO)/base --out $(DEMO)/study \
		--recipe shop --updates 300 --objectives base,restd --seeds 42 --baselines bm25,dense,hybrid
	$(BIN)/restd analyze conflicts $(DEMO)/study
	$(BIN)/restd analyze cases $(DEMO)/study
	$(BIN)/restd report $(DEMO)/study --out $(DEMO)/study-report --title "ResTD: the demo shop"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/basedpyright

# a core each: most tests are too small to use two threads
unit: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --doctest-modules --numprocesses 2 --dist loadfile -m "not slow"

test: lint types unit

# what takes too long for every change: whole systems from end to end, what models learn in minutes
slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m slow

# the property tests with many new examples
fuzz: setup
	$(BIN)/python -m pytest --hypothesis-profile=fuzz

# thousands of generated requests to the real service: about ten minutes on two cores
fuzz-service: setup
	$(BIN)/python tools/fuzz_service.py

# whether the tests notice changed code: half an hour on two cores
mutants: setup
	$(BIN)/python tools/mutants.py

clean:
	rm -rf $(VENV) $(DEMO) dist .pytest_cache .ruff_cache .hypothesis
