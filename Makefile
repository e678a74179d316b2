# The commands a person needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export LITELLM_LOCAL_MODEL_COST_MAP := True
unexport PYTHONDONTWRITEBYTECODE  # else each of the many processes that are started compiles all of it again

.DEFAULT_GOAL := help

help: ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.runtime ## what the product needs, into .venv
dev: $(VENV)/.dev ## what the tests and the linters need as well

$(BIN)/python:
	@$(PYTHON) deploy/bootstrap.py $(VENV)

$(VENV)/.runtime: $(BIN)/python requirements.lock
	@$(BIN)/python deploy/bootstrap.py $(VENV) requirements.lock
	@touch $@

$(VENV)/.dev: $(BIN)/python requirements-dev.lock
	@$(BIN)/python deploy/bootstrap.py $(VENV) requirements-dev.lock
	@touch $@ $(VENV)/.runtime

run: install ## start everything on this machine
	@$(BIN)/agent-coder up

demo: install ## solve the bundled sample issue from end to end
	@$(BIN)/agent-coder demo

test: dev ## the whole suite
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile

lint: dev ## ruff, types, dependency rule, size caps
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tests/lint/caps.py

format: dev ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix -q .
	@$(BIN)/ruff format -q .

proto: dev ## write proto/ anew from the contracts and the gateway
	@$(BIN)/python -m deploy.generate

bench: dev ## speed, as ratios to a floor measured in the same run
	@$(BIN)/python -m bench

test-clients: dev ## the suites that need Node or a browser
	@bash tests/clients/run

clean: ## remove what was installed and what was run
	@rm -rf $(VENV) .agent-coder

.PHONY: help install dev run demo test lint format proto bench test-clients clean
