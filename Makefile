# make train   install what training needs and train the default preset
# make test    install everything, then lint, types, import contracts and all tests
PYTHON ?= python3
VENV ?= .venv
PRESET ?= cartpole
ARGS ?=
PEERS ?= cpprb==11.0.0 tianshou==2.0.1 stable-baselines3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
NATIVE := CMakeLists.txt pyproject.toml constraints.txt $(wildcard native/*.h native/*.cc)

.DEFAULT_GOAL := help
.PHONY: help install train test test-acl test-ray check check-model bench examples clean

help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "make install, check, check-model, test-acl, test-ray, bench, examples, clean; make train PRESET=catch ARGS='--actors 4'"

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
	$(PIP) -e '.[train,redis,ray,atari,box2d,mujoco,minatar,video,dev]'
	@touch $@ $(VENV)/.train

install: $(VENV)/.dev

train: $(VENV)/.train
	$(BIN)/apexrl train $(PRESET) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests start hundreds of processes; without compiled files each would compile the package again.
test test-acl test-ray: export PYTHONDONTWRITEBYTECODE :=

# In the order of folders: files with few tests, which xdist would take last, are those whose tests take longest.
test: check
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not cluster'

# The users of docs/redis-acl.md, on a redis-server of version 7 or later, which must be on PATH.
test-acl: $(VENV)/.dev
	APEXRL_TEST_ACL=1 $(BIN)/python -m pytest tests/hosts/test_redis_acl.py

# Whole runs on a Ray of several nodes on this machine, with its metrics; some ten minutes.
test-ray: $(VENV)/.dev
	$(PIP) 'ray[default]'
	RAY_worker_niceness=0 $(BIN)/python -m pytest tests/on_ray

# Lease, publish, wake and reclaim of the native core in every order that the memory model allows; some minutes. The
# scenario `room` has too many for that: it stops at ORDERS.
ORDERS ?= 2000000
check-model:
	mkdir -p build/model
	$(CXX) -std=c++20 -O1 -g1 -c native/tests/explore.cc -o build/model/explore.o
	$(CXX) -std=c++20 -O1 -g1 -w -fsanitize=thread -DAPEXRL_EXPLORE -c native/tests/explore_test.cc -o build/model/test.o
	$(CXX) -rdynamic build/model/test.o build/model/explore.o native/power.cc -o build/model/test -pthread
	build/model/test all $(ORDERS)

bench: $(VENV)/.dev
	$(PIP) $(PEERS)
	$(BIN)/python benchmarks/replay.py $(ARGS)

examples: $(VENV)/.dev
	@for example in examples/*.py; do \
	  case $$example in *jax*) $(BIN)/python -c 'import jax' 2>/dev/null || \
	    { echo "== $$example is left out: no jax here ($(BIN)/python -m pip install jax)"; continue; };; esac; \
	  echo "== $$example"; $(BIN)/python $$example || exit 1; done

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -exec rm -rf {} +
