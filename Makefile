# Every target prepares the machine itself: a bare Debian 12 with make, git and CA certificates is enough.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
ARGS ?=
FUZZ_SECONDS ?= 30
PYTHON := .venv/bin/python
# The wheel is built with the compilers (by name) and flags of the dev build, so that it finds its objects in the compile cache.
PIP := CC=$${CC:-cc} CXX=$${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PYTHON) -m pip
PIP_BUILD := --quiet --no-build-isolation --no-deps --disable-pip-version-check --config-settings=cmake.define.MC_WERROR=ON

.PHONY: help setup setup-lint build install run test bench bench-fabric bench-peers bench-versions lint format wheel asan tsan fuzz clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup:  ## install missing Debian packages and fill .venv
	@deps/setup

setup-lint:
	@deps/setup lint

build: setup  ## compile everything (build/dev)
	cmake --preset dev -Wno-dev
	cmake --build build/dev -j $(JOBS)

install: setup  ## build the Python package and install it into .venv
	@$(PIP) install $(PIP_BUILD) .

run: install  ## the demonstration; arguments in ARGS="..."
	$(PYTHON) -m mooncake.demo $(ARGS)

test: build  ## build, then every C++ and Python test
	rm -rf build/dev/reports
	@status=0; \
	GTEST_BRIEF=1 ctest --test-dir build/dev --output-on-failure -j $(JOBS) --output-junit reports/ctest.xml || status=1; \
	$(MAKE) --no-print-directory install || exit 1; \
	$(PYTHON) -m pytest --junitxml=build/dev/reports/pytest.xml || status=1; \
	$(PYTHON) tests/tidy/summary.py build/dev/reports || status=1; \
	exit $$status

bench: install  ## measure; arguments in ARGS="..."
	@$(PYTHON) bench/run.py $(ARGS)
	@test -n "$(ARGS)" || $(MAKE) --no-print-directory bench-fabric

bench-fabric: setup  ## measure the fabric against libfabric alone; arguments in ARGS="..."
	cmake --preset dev -Wno-dev
	cmake --build build/dev -j $(JOBS) --target fabric_bench
	build/dev/bin/fabric_bench $(ARGS)

bench-peers: install  ## measure against other software; arguments in ARGS="..."
	@$(PYTHON) bench/peers.py $(ARGS)

bench-versions: install  ## compare with another version of this package: ARGS="INTERPRETER", one that has it installed
	@$(PYTHON) bench/versions.py $(ARGS)

wheel: setup  ## dist/*.whl
	@$(PIP) wheel $(PIP_BUILD) -w dist .
	@ls -l dist/*.whl

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.c')

lint: setup-lint  ## clang-format, the tidy rules, and a build under clang-tidy
	clang-format-14 --dry-run -Werror $(SOURCES)
	$(PYTHON) -m pytest -q tests/tidy
	cmake --preset tidy -Wno-dev
	cmake --build build/tidy -j $(JOBS)

format: setup-lint  ## rewrite the sources with clang-format
	clang-format-14 -i $(SOURCES)

# Address-space randomisation can collide with the sanitizers' fixed mappings.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# The C++ tests of a preset, and how many passed: $(call sanitized,PRESET,ENVIRONMENT)
define sanitized
	cmake --preset $(1) -Wno-dev
	cmake --build build/$(1) -j $(JOBS)
	rm -rf build/$(1)/reports
	@status=0; \
	$(2) GTEST_BRIEF=1 $(FIXED_ADDRESSES) ctest --test-dir build/$(1) --output-on-failure -j $(JOBS) --output-junit reports/ctest.xml || status=1; \
	$(PYTHON) tests/tidy/summary.py --no-python build/$(1)/reports || status=1; \
	exit $$status
endef

asan: setup  ## the C++ tests under AddressSanitizer and UBSan
	$(call sanitized,asan,ASAN_OPTIONS=detect_stack_use_after_return=1)

tsan: setup  ## the C++ tests under ThreadSanitizer
	$(call sanitized,tsan,TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)

fuzz: setup-lint  ## every fuzz target for FUZZ_SECONDS
	cmake --preset fuzz -Wno-dev
	cmake --build build/fuzz -j $(JOBS) --target fuzz_targets
	@set -e; for target in build/fuzz/bin/*_fuzz; do \
	    name=$$(basename $$target); mkdir -p build/fuzz/corpus/$$name; \
	    echo "$$name"; $$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
	        build/fuzz/corpus/$$name $$(test -d tests/fuzz/corpus/$$name && echo tests/fuzz/corpus/$$name); \
	done

clean:  ## remove what was built; .venv stays
	rm -rf build dist
