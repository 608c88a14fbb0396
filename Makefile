# setup: everything that is needed; train: the first example on NP ranks, judged; test, test-all: the checks;
# suite, suite-arm64: one suite of C++ tests; test-rdma: the checks that need RDMA devices; test-gpu: those that need a
# GPU; wheel, check-wheel: a release, and whether it is fit to be one; docs: the site of the documents.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := setup
# Recipes share apt's and pip's locks. Installing and compiling run side by side by setup's own recipe.
.NOTPARALLEL:
.PHONY: setup system setup-rdma guest-kernel native suite suite-arm64 train test test-all test-rdma test-gpu peers wheel \
  check-wheel docs clean

NP ?= 2
ARGS ?=
DEVICE ?=
VENV := .venv
PYTHON := $(VENV)/bin/python
BUILD := build/release
JOBS := $(shell nproc)
# Optimization of the library as a whole. A build that has it keeps it; `make setup` gives it to one that has not.
LTO ?= ON
export CMAKE_ARGS = -DRDMACOLL_LTO=$(LTO)

# The system's own Python first: a version manager's may lack venv, or change under our feet.
BASE_PYTHON := $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do \
  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then echo $$p; break; fi; done)

APT := ca-certificates ccache clang-format cmake g++ iproute2 libgmock-dev libgtest-dev \
  libibverbs-dev make ninja-build pkg-config procps python3 python3-dev python3-venv
# An MPI that is there already is kept, whichever it is.
APT += $(if $(shell command -v mpirun),,openmpi-bin libopenmpi-dev)
# For the soft-RoCE guest and the tests in it: a kernel is built, and devices are looked at.
APT_RDMA := bc bison flex gcc libelf-dev ibverbs-providers ibverbs-utils iproute2 libc6-dev make perftest \
  python3 qemu-system-x86 util-linux xz-utils
# One compiler cache for every build folder, and for copies of the tree.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

REQUIREMENTS_STAMP := $(VENV)/.requirements-$(shell cat requirements.txt | cksum | cut -d' ' -f1)
RELEASE_STAMP := $(VENV)/.release-$(shell cat release/requirements.txt | cksum | cut -d' ' -f1)
INSTALL_STAMP := $(VENV)/.install-$(shell cat Makefile setup.py pyproject.toml rdmacoll/version.py | cksum | cut -d' ' -f1)

# pip needs one processor and the compilers need none of what it installs, so both run at once.
setup: system
	@$(MAKE) --no-print-directory native & engine=$$!; \
	$(MAKE) --no-print-directory $(REQUIREMENTS_STAMP) || { wait $$engine || true; exit 1; }; \
	wait $$engine
	@$(MAKE) --no-print-directory $(INSTALL_STAMP)

# Installs with apt what dpkg does not know of the packages $(1).
define apt_install
  missing=""; \
  for package in $(1); do \
    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
  done; \
  if [ -n "$$missing" ]; then \
    echo "installing:$$missing"; \
    export DEBIAN_FRONTEND=noninteractive; \
    $(SUDO) apt-get update -qq; \
    $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
  fi
endef

# Elsewhere than with apt it says what is needed.
system:
	@if command -v apt-get >/dev/null; then \
	  $(call apt_install,$(APT)); \
	else \
	  for program in cmake $${CXX:-g++} mpirun python3; do \
	    command -v $$program >/dev/null || { echo "$$program is missing, and there is no apt-get to install it"; exit 1; }; \
	  done; \
	fi

setup-rdma:
	@if command -v apt-get >/dev/null; then \
	  $(call apt_install,$(if $(DEVICE),ibverbs-providers ibverbs-utils iproute2 perftest util-linux,$(APT_RDMA))); \
	else \
	  for program in ibv_devinfo ibv_rc_pingpong rdma setpriv prlimit; do \
	    command -v $$program >/dev/null || { echo "$$program is missing, and there is no apt-get to install it"; exit 1; }; \
	  done; \
	fi

# Builds the guest's kernel in the background; a test that needs it waits for it.
guest-kernel: setup-rdma
	@mkdir -p build && setsid -f nice -n 19 /usr/bin/python3 tests/rdma/guest --prepare </dev/null >build/guest-kernel.log 2>&1

# In a recipe of its own: python3 may just have been installed.
$(REQUIREMENTS_STAMP): requirements.txt | system
	@base="$(BASE_PYTHON)"; base=$${base:-/usr/bin/python3}; \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then \
	  echo "creating $(VENV) with $$base"; \
	  $$base -m venv --clear $(VENV); \
	fi
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@rm -f $(VENV)/.requirements-* && touch $@

native: | system
	@has=$$(sed -n 's/^RDMACOLL_LTO:BOOL=//p' $(BUILD)/CMakeCache.txt 2>/dev/null || true); \
	if [ -z "$$has" ] || [ "$$has $(LTO)" = "OFF ON" ]; then \
	  cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release $(CMAKE_ARGS) \
	    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$(CURDIR)/rdmacoll/lib" >/dev/null; \
	fi
	@cmake --build $(BUILD) --parallel $(JOBS) --target rdmacoll rdmacoll_tf rdmacoll_python

# Runs the program $(1), a suite. A filter that names no test is an error.
define run_suite
  filter='$(or $(FILTER),*)'; \
  $(1) --gtest_filter="$$filter" --gtest_list_tests | grep '^ ' >/dev/null \
    || { echo "no test of $(SUITE) is called $$filter"; exit 1; }; \
  $(1) --gtest_filter="$$filter"
endef

# One C++ suite: make suite SUITE=unit FILTER='Ring*'
suite: | system
	@cmake -S . -B build/test $$(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release \
	  -DRDMACOLL_TESTS=ON >/dev/null
	@cmake --build build/test --parallel $(JOBS) --target $(SUITE)_tests
	@$(call run_suite,build/test/$(SUITE)_tests)

# The same suite for 64-bit ARM, which qemu emulates. GoogleTest and the header of verbs are compiled for it here.
ARM := build/arm64
suite-arm64: | system
	@$(call apt_install,g++-aarch64-linux-gnu libgtest-dev libibverbs-dev ninja-build qemu-user)
	@mkdir -p $(ARM)/include && ln -sfn /usr/include/infiniband $(ARM)/include/infiniband
	@cmake -S /usr/src/googletest -B $(ARM)/googletest -G Ninja -DCMAKE_TOOLCHAIN_FILE="$(CURDIR)/tests/arm64.cmake" \
	  -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$(CURDIR)/$(ARM)/gtest" >/dev/null
	@cmake --build $(ARM)/googletest --parallel $(JOBS) --target install >/dev/null
	@cmake -S . -B $(ARM) -G Ninja -DCMAKE_TOOLCHAIN_FILE="$(CURDIR)/tests/arm64.cmake" -DCMAKE_BUILD_TYPE=Release \
	  -DRDMACOLL_TESTS=ON -DVERBS_INCLUDE_DIR="$(CURDIR)/$(ARM)/include" \
	  -DGTest_DIR="$(CURDIR)/$(ARM)/gtest/lib/cmake/GTest" >/dev/null
	@cmake --build $(ARM) --parallel $(JOBS) --target $(SUITE)_tests
	@$(call run_suite,qemu-aarch64 -L /usr/aarch64-linux-gnu $(ARM)/$(SUITE)_tests)

# A development install: Python from this tree, libraries in rdmacoll/lib. The tree is an entry of Python's path: a
# finder behind the path would lose against any folder that is called rdmacoll beside a program.
$(INSTALL_STAMP): | native $(REQUIREMENTS_STAMP)
	CMAKE_ARGS= $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --config-settings editable_mode=compat -e .
	@rm -f $(VENV)/.install-* && touch $@

# Found when it is used: setup may install it. Each MPI has its own flags.
MPIRUN = $(shell if mpirun --version 2>&1 | grep -q 'Open MPI'; then \
    echo mpirun --oversubscribe --bind-to none $$([ $$(id -u) = 0 ] && echo --allow-run-as-root); \
  else echo mpirun; fi)

train: setup
	$(MPIRUN) -np $(NP) "$(CURDIR)/$(PYTHON)" tests/train.py $(ARGS)

# The guest's kernel, where there is none yet, is built meanwhile from the first second on. Without LTO the compiler's
# cache has the objects of the library for the suites, and for the wheel of a test; `make test-all` tests with it.
test: export LTO = OFF
test: guest-kernel setup
	$(PYTHON) -m pytest -m 'not slow' $(ARGS)

test-all: guest-kernel setup
	$(PYTHON) -m pytest $(ARGS)

# In a guest kernel with soft-RoCE, which is built once; or on a device of this machine: DEVICE=mlx5_0.
test-rdma: setup setup-rdma
	RDMACOLL_TEST_DEVICE=$(DEVICE) $(PYTHON) -m pytest -m rdma tests/rdma $(ARGS)

# On the GPU of this machine, which the ranks share. It builds and installs nothing: PYTHON=python3 with numpy and pytest
# will do, and each of cupy, PyTorch, JAX and numba that it has is used. GPU_JSON=path writes the table.
test-gpu:
	$(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

$(RELEASE_STAMP): release/requirements.txt | $(REQUIREMENTS_STAMP)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r release/requirements.txt
	@rm -f $(VENV)/.release-* && touch $@

# The source archive, and from it, so that nothing of the tree can help, the wheel for old clusters. Then the wheel of the
# package `horovod`, which is Python alone.
wheel: system $(RELEASE_STAMP)
	@rm -rf dist
	@echo "packing the sources, then compiling them with zig: two or three minutes of two processors"
	$(PYTHON) -m build --no-isolation --sdist --outdir dist .
	$(PYTHON) -m pip wheel --verbose --no-build-isolation --no-deps --config-settings=--build-option=--release \
	  -w dist dist/rdmacoll-*.tar.gz
	@rm -rf build/horovod
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps -w dist ./compat/horovod

check-wheel: $(RELEASE_STAMP)
	$(PYTHON) release/check_wheel.py $(ARGS)

# The libraries that `rdmacoll bench compare` measures beside ours, each in an environment of its own; Horovod is compiled.
peers: setup
	$(PYTHON) -m rdmacoll bench peers --install all

# The site of the documents, in build/docs/site. A link that leads nowhere ends it. mkdocs has an environment of its own.
DOCS := build/docs
DOCS_STAMP := $(DOCS)/venv/.requirements-$(shell cat release/docs/requirements.txt | cksum | cut -d' ' -f1)
$(DOCS_STAMP): release/docs/requirements.txt | $(REQUIREMENTS_STAMP)
	$(PYTHON) -m venv --clear $(DOCS)/venv
	$(DOCS)/venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

docs: native $(DOCS_STAMP)
	PYTHONPATH="$(CURDIR)" TF_CPP_MIN_LOG_LEVEL=3 $(PYTHON) release/docs/pages.py $(DOCS)/pages
	NO_MKDOCS_2_WARNING=1 $(DOCS)/venv/bin/mkdocs build --strict --config-file release/docs/mkdocs.yml
	@echo "$(DOCS)/site/index.html"

clean:
	rm -rf build dist rdmacoll/lib
