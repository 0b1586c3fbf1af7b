# Every target sets up what it needs in .venv; PYTHON chooses the interpreter
# (3.11 or later).  Hosts with an NVIDIA GPU get JAX for CUDA, also where another
# host has made a .venv without it, in a folder that both see.
PYTHON ?= python3
DATA ?= digits
BIN := .venv/bin
# Locks have the pins of requirements*.txt, and all that these need, with hashes.
LOCK := $(if $(shell command -v nvidia-smi),requirements.lock,requirements-cpu.lock)
RUN := .venv/$(LOCK:.lock=)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: train demo test slurm gpu compare lint requirements lock bench peers ray soak docs clean

train: $(RUN)
	$(BIN)/python main.py --config=configs/vgg16_elastic.py

demo: $(RUN)
	$(BIN)/python -m tools.demo

test: .venv/dev
	$(BIN)/python -m pytest -n 2

slurm: .venv/dev
	$(BIN)/python -m pytest -n 3 --dist load -m slurm

gpu: .venv/dev
	$(BIN)/python -m pytest -m gpu

compare: $(RUN)
	$(BIN)/python -m tools.compare --config=configs/compare.py:$(DATA) --out=runs/compare$(if $(filter-out digits,$(DATA)),-$(DATA))

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

requirements: .venv/dev
	.ci/lock --check

lock: .venv/dev
	.ci/lock

bench: $(RUN)
	$(BIN)/python -m bench

peers: .venv-peers/run

ray: .venv/dev .venv-ray/run
	SYNCOPATE_RAY=.venv-ray/bin/python $(BIN)/python -m pytest tests/launch/launch_ray_test.py

soak: .venv/dev
	$(BIN)/python -m pytest --hypothesis-profile=random -m 'soak or hypothesis'

docs: .venv/docs
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build/html
	@echo 'Pages: docs/_build/html/index.html'

clean:
	rm -rf .venv .venv-peers .venv-ray runs docs/_build docs/api/packages .pytest_cache .ruff_cache .hypothesis

$(RUN): $(LOCK)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one with make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r $(LOCK)
	touch $@

.venv/dev: $(RUN) requirements-dev.lock
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	touch $@

.venv/docs: $(RUN) requirements-docs.lock
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements-docs.lock
	touch $@

.venv-peers/run: requirements-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP_INSTALL) -r requirements-peers.txt
	touch $@

.venv-ray/run: $(LOCK) requirements-ray.lock
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python $(PIP_INSTALL) --require-hashes -r $(LOCK) -r requirements-ray.lock
	touch $@
