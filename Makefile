.DEFAULT_GOAL := help
PYTEST_ARGS ?= -q
PYTEST_MARKS ?= not slow
export CACHECRAFT_HOME ?= $(CURDIR)/.cache
export CACHECRAFT_TEST_MODEL ?= $(CURDIR)/.cache/models/smollm2-135m

.PHONY: help setup demo lint test test-slow test-integrations model clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## build .venv (minutes the first time, at once afterwards)
	@scripts/setup.sh

demo: setup ## documents in, questions answered, speed beside plain vLLM
	@.venv/bin/cachecraft demo

lint: setup ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	cd integrations/langchain && ../../.venv/bin/mypy
	cd integrations/llamaindex && ../../.venv/bin/mypy

model: setup
	@test -e "$(CACHECRAFT_TEST_MODEL)/config.json" || \
	.venv/bin/python -m cachecraft_rag.demo.models smollm2-135m "$(CACHECRAFT_TEST_MODEL)"

test: lint model ## lint, then every test but the slow ones
	.venv/bin/python -m pytest -m "$(PYTEST_MARKS)" $(PYTEST_ARGS)
	$(MAKE) test-integrations

test-slow: lint model ## lint, then every test (downloads a second model)
	.venv/bin/python -m pytest $(PYTEST_ARGS)
	$(MAKE) test-integrations

# Apart from each other: the frameworks' own suites want other options, and each has an engine of its own.
test-integrations: model
	cd integrations/langchain && ../../.venv/bin/python -m pytest $(PYTEST_ARGS) --benchmark-disable \
		--disable-socket --allow-unix-socket tests/unit_tests
	cd integrations/langchain && ../../.venv/bin/python -m pytest $(PYTEST_ARGS) --benchmark-disable tests/engine_tests
	cd integrations/llamaindex && ../../.venv/bin/python -m pytest $(PYTEST_ARGS) tests/unit_tests
	cd integrations/llamaindex && ../../.venv/bin/python -m pytest $(PYTEST_ARGS) tests/engine_tests

clean: ## remove .venv, fetched models and tool caches
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
