# `make demo` and `make test` do all the set-up they need on a machine with Python 3.11+, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PEERS := mabwiser contextualbandits river vowpalwabbit "obp>=0.4.1,<0.5"

.PHONY: setup demo test check bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) "torch==2.13.0"
	$(PIP) --editable . --group dev
	touch $(READY)

demo: $(READY)
	$(BIN)/daband demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A peer that does not install here (one needs a C++ compiler) is left out, and the benchmark says so.
bench: $(READY)
	$(PIP) --editable ".[peers]" || for peer in $(PEERS); do $(PIP) "$$peer" || echo "$$peer does not install here"; done
	mkdir -p runs
	$(BIN)/python benchmarks/linear.py --json runs/benchmark-linear.json

docs: $(READY)
	$(PIP) --group docs
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
