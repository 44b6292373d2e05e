# OpenTrn's house commands. `make help` lists them. Everything is installed into $(VENV), nothing elsewhere.
VENV   ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.setup-stamp
WORKERS ?= 2
ARGS   ?=

# One thread per process: BLAS threads that spin beside the test workers slow both many times over.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-tensorflow demo test tiny stablehlo onnx keras bench lint wheel clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  VENV=DIR    the virtual environment to use or make (now: $(VENV))"
	@echo "  PYTHON=EXE  the Python that makes it, 3.11 or newer (now: $(PYTHON))"
	@echo "  ARGS=...    passed on to pytest by test and tiny"

setup: $(STAMP)  ## Make the virtual environment from the lock files; does nothing when it is up to date

setup-tensorflow: setup  ## Add TensorFlow and Keras (1.4 GB; Linux): their tests run with the others then
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-tensorflow.lock

$(STAMP): requirements.lock requirements-data.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit("OpenTrn needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(VENV) (about 1.5 GB, a few minutes the first time) ..."
	@rm -f $(STAMP)
	@test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-data.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: setup  ## Run a kernel and a sentence encoder on a simulated Trainium
	$(PY) examples/demo.py

test: setup  ## Run every test
	$(PY) -m pytest -n $(WORKERS) $(ARGS)

tiny: setup  ## Run the whole trip in seconds
	$(PY) -m pytest tests/tiny $(ARGS)

stablehlo: setup  ## Run all test vectors of openxla/stablehlo (OPENTRN_STABLEHLO=FOLDER or archive)
	OPENTRN_STABLEHLO_ALL=1 $(PY) -m pytest tests/graph/test_stablehlo_vectors.py $(ARGS)

opinfo: setup  ## Run PyTorch's own samples of every op on the device (an hour at most)
	OPENTRN_OPINFO=all $(PY) -m pytest -q tests/frameworks/test_opinfo.py $(ARGS)

families: setup  ## Run small models of 27 families forward and backward on the device
	OPENTRN_FAMILIES=all $(PY) -m pytest -q tests/frameworks/test_families.py $(ARGS)

onnx: setup  ## Run ONNX's own node tests and print the table
	$(PY) -m tests.graph.onnx_nodes

keras: setup-tensorflow  ## Train Keras models on digits, on the TensorFlow and JAX backends (minutes)
	OPENTRN_KERAS=all $(PY) -m pytest -q tests/frameworks/tensorflow/test_keras.py $(ARGS)

bench: setup  ## Measure speed against NumPy and others, and print the ratios
	$(PY) bench/speed.py

lint: setup  ## Check style, complexity and docstrings
	$(PY) -m ruff check .

# The tests are copied out of the checkout, so that they can only see the installed package.
wheel: setup  ## Build the wheel, install it into an empty environment and run tests/tiny there
	@rm -rf build dist
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@set -e; home=$$(mktemp -d); trap 'rm -rf "$$home"' EXIT; \
	"$(PYTHON)" -m venv "$$home/venv"; \
	"$$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
		--constraint requirements.lock dist/opentrn-*.whl pytest; \
	mkdir "$$home/tests"; cp -R tests/tiny tests/conftest.py "$$home/tests/"; cd "$$home"; \
	"$$home/venv/bin/python" -m pytest --rootdir "$$home" --import-mode=importlib -W error tests/tiny
	@ls -l dist

clean:  ## Remove what builds and tests left (not the virtual environment)
	rm -rf build dist out .pytest_cache .ruff_cache .hypothesis opentrn.egg-info
