# slipway: Slurm on Amazon EKS, as code. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
STACK ?= local
RUN := ./slipway run

.PHONY: help up down job status shell preview test lint types charts generate lock bench bench-operator clean-cache

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ./slipway --help lists the commands behind them (nodes, kubectl, logs, …)"

up: ## nothing -> a Slurm cluster on this machine and a finished two-node job
	@./slipway up

down: ## remove all of it: processes, mounts, network namespaces, state (the cache stays)
	@./slipway down

job: ## submit the two-node example job as an ordinary user
	@./slipway job

status: ## what runs, where, and how much memory it uses
	@./slipway status

shell: ## a shell on the login node, as the first user of the stack
	@./slipway shell

preview: ## what `up` would change, with the policy pack: make preview STACK=dev
	@./slipway preview --stack $(STACK)

test: ## the whole test suite
	@$(RUN) ./tests/run

lint: ## ruff
	@$(RUN) ruff check . && $(RUN) ruff format --check .

types: ## mypy --strict on our own packages
	@$(RUN) ./tests/run types

charts: ## helm lint and generated files
	@$(RUN) ./tests/run charts

generate: ## CRDs, RBAC, JSON Schema and generated docs from their one source
	@$(RUN) ./tests/run generate

lock: ## compile requirements.txt from requirements.in
	@$(RUN) ./tests/run lock

bench: ## print the figures that README quotes
	@$(RUN) ./bench/run

bench-operator: ## measure the operator: make bench-operator WORKERS=1000 [OPERATOR='command line' CRDS=folder] [ONLY=scale-out,…]
	@$(RUN) ./bench/operator/run --workers $(or $(WORKERS),1000) $(if $(OPERATOR),--operator '$(OPERATOR)') $(if $(CRDS),--crds '$(CRDS)') $(if $(ONLY),--only $(ONLY)) $(ARGS)

clean-cache: ## forget tools, images and Python packages (they are made again when needed)
	@rm -rf "$${SLIPWAY_CACHE:-$$HOME/.cache/slipway}" && echo "cache removed"
