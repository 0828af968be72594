# `make help` lists the targets. Needs Python 3.11 or newer; all else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.setup-done
NEOVIM_PACKAGES = $${XDG_DATA_HOME:-$$HOME/.local/share}/nvim/site/pack/specengine/start

.PHONY: help setup demo check test exact bench vscode neovim editors clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(STAMP) ## make .venv, install, fetch the default model; does nothing the second time

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Needs Python 3.11 or newer: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "Debian, Ubuntu: apt install python3-venv" >&2; exit 1; }

$(STAMP): pyproject.toml models.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	$(BIN)/specengine models pull
	@touch $@

demo: setup ## type into a real file and show each suggestion
	$(BIN)/specengine demo

check: setup ## format, lint, types, layers, spelling
	$(BIN)/ruff format --check && $(BIN)/ruff check
	$(BIN)/pyright && $(BIN)/lint-imports
	$(BIN)/codespell && $(BIN)/validate-pyproject pyproject.toml

test: check ## all that CI runs
	$(BIN)/python -m pytest

exact: setup ## the long proof that speculation writes the target's text
	EXACT_PROMPTS=40 $(BIN)/python -m pytest -p no:randomly -v tests/exact

bench: setup ## decoding speed with and without speculation
	$(BIN)/specengine bench decode

vscode: setup ## package the extension for VS Code
	rm -rf editors/vscode/wheel && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir editors/vscode/wheel .
	cd editors/vscode && npm ci && npm run check && npm test && npm run package

neovim: setup ## link the plugin into Neovim's packages
	mkdir -p $(NEOVIM_PACKAGES) && ln -sfn $(CURDIR)/editors/neovim $(NEOVIM_PACKAGES)/specengine
	nvim --clean --headless -c 'helptags $(CURDIR)/editors/neovim/doc' -c quit || echo "for :help specengine, run :helptags ALL in Neovim" >&2

editors: vscode ## test in real editors, and write docs/editors/tests.md
	tests/editors/run.sh

clean: ## remove .venv and build outputs; models in the cache stay
	rm -rf .venv build dist
