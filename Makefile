# make demo   set up and run the main job on two sample models
# make test   set up and run every check and test
# make test-gpu   set up an environment for CUDA 13 and run the tests that need a GPU
# make test-environments   run the tests with other Pythons, and with the lowest, pinned and newest dependencies
# make test-install   build the wheel and the sdist, and try them in empty environments
# make test-processors   run the samples' int8 files on emulated processors; ARGS=wasm runs them on one
# make site   set up and build the site of the documentation into site/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := .venv-gpu
# PyTorch's threads spin while they wait; beside another busy process two are far slower than one.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-nightly test-gpu test-environments test-install test-processors lint format docs docs-check site bench clean

demo: $(VENV)/.installed
	cd sample_models/cifar10_cnn && ../../$(BIN)/ptq calibrate model.pt --method histogram
	cd sample_models/cifar10_cnn && ../../$(BIN)/ptq export --onnx
	cd sample_models/cifar10_cnn && ../../$(BIN)/ptq evaluate --max-drop top1=0.01
	cd sample_models/spoken_digits_transformer && ../../$(BIN)/ptq quantize model.pt --max-drop top1=0.01

test: lint docs-check
	$(BIN)/pytest -n 2 --dist worksteal -rs -m "not nightly"
	$(BIN)/python -m tools.environments --short

test-nightly: lint docs-check
	$(BIN)/pytest -n 2 --dist worksteal

test-gpu: $(GPU)/.installed
	$(GPU)/bin/pytest -m gpu

test-environments: $(VENV)/.installed-dev
	$(BIN)/python -m tools.environments $(ARGS)

test-install: $(VENV)/.installed-dev
	$(BIN)/python -m tools.try_release

test-processors: $(VENV)/.installed-dev
	$(BIN)/python -m tools.processors $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.budget

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	$(BIN)/python -m tools.generate_docs
	$(BIN)/python -m tools.draw_quantizers
	$(BIN)/python -m tools.sample_table
	COLUMNS=100 $(BIN)/python -m tools.pages.write_sessions README.md
	$(BIN)/python -m tools.pages.write_sessions docs/analyze.md

docs-check: $(VENV)/.installed-dev
	$(BIN)/python -m tools.generate_docs --check
	$(BIN)/python -m tools.draw_quantizers --check

# The variable silences an advertisement.
site: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.main_job
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.pieces
	$(BIN)/python -m benchmarks.amax
	$(BIN)/python -m benchmarks.amax_accuracy
	$(BIN)/python -m benchmarks.presets
	$(BIN)/python -m benchmarks.portable
	$(BIN)/python -m benchmarks.portable --speed
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.placement
	$(BIN)/python -m benchmarks.quantizers
	$(BIN)/python -m benchmarks.analyze
	$(BIN)/python -m benchmarks.evaluation
	$(BIN)/python -m benchmarks.busy
	$(BIN)/python -m benchmarks.static_quantization
	$(BIN)/python -m benchmarks.large_model
	$(BIN)/python -m benchmarks.layer_norm
	$(BIN)/python -m benchmarks.rnn
	$(BIN)/python -m benchmarks.conv_forms
	$(BIN)/python -m benchmarks.activation_noise
	$(BIN)/python -m benchmarks.language

clean:
	rm -rf $(VENV) $(GPU) .emulation .environments build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf sample_models/*/ptq-run

$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(GPU)/.installed: pyproject.toml setup.py constraints.txt
	test -x $(GPU)/bin/python || $(PYTHON) -m venv $(GPU)
	$(GPU)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev,cuda]'
	# Both packages of ONNX Runtime have the same files: those for GPUs must come last.
	$(GPU)/bin/pip uninstall --quiet --yes onnxruntime onnxruntime-gpu
	$(GPU)/bin/pip install --quiet --no-deps --constraint constraints.txt onnxruntime-gpu
	touch $@
