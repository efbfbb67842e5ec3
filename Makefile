# Every target does its own set-up. Those that touch the kernel need root.
PYTHON := .venv/bin/python
FILE ?= tests/cases/redirection.md
SHIM := agent/cni/pointsman-cni
SHIM_CC := musl-gcc -static -s
SHIM_CFLAGS := -std=gnu11 -Os -Wall -Wextra -Wshadow -Wconversion -Werror

.PHONY: help setup shim demo test test-kernel lint cases bench-install bench-drift bench-cni bench-destination proto clean

help:
	@echo 'make demo            the story, two minutes to read, on real kernel state (KEEP=1 keeps it running)'
	@echo 'make test            lint, types, layers, all tests'
	@echo 'make test-kernel     datapath and agent on the kernel of Debian 12, emulated: 5 to 8 minutes (PARTS="drift daemon")'
	@echo 'make lint            lint, types, layers only'
	@echo 'make cases FILE=f    run a file of cases'
	@echo 'make bench-install   install, update, compare for 1, 50 and 250 pods (PODS="1 50 250")'
	@echo 'make bench-drift     from a foreign change to the healed table'
	@echo 'make bench-cni       what the CNI gate adds to the start and end of a pod (PODS=250)'
	@echo 'make bench-destination  updates, opening and latency of 5,060 streams in a cluster of 10,000 pods'
	@echo 'make proto           the protobuf modules of agent/destination/proto, anew'
	@echo 'make shim            the CNI plugin, $(SHIM)'

setup:
	@.ci/setup
	@$(MAKE) -s shim

shim: $(SHIM)

$(SHIM): agent/cni/shim.c
	$(SHIM_CC) $(SHIM_CFLAGS) -o $@.new $<
	mv $@.new $@

demo: setup
	@$(PYTHON) -m tests.demo $(if $(KEEP),--keep)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

test: lint
	$(PYTHON) -m pytest

test-kernel: setup
	@$(PYTHON) -m tests.kernels $(PARTS)

cases: setup
	@$(PYTHON) -m tests.cases "$(FILE)"

bench-install: setup
	@$(PYTHON) -m tests.bench.install $(PODS)

bench-drift: setup
	@$(PYTHON) -m tests.bench.drift

bench-cni: setup
	@$(PYTHON) -m tests.bench.cni $(PODS)

# The generated modules are committed; their messages live in a descriptor pool of their own.
proto: setup
	$(PYTHON) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/destination/proto/*.proto
	sed -i -e 's/_descriptor_pool\.Default()/_pool.POOL/' -e 's/^from google.protobuf import descriptor_pool as _descriptor_pool$$/from agent.destination.proto import pool as _pool/' agent/destination/proto/*_pb2.py

bench-destination: setup
	@$(PYTHON) -m tests.bench.destination

clean:
	rm -rf $(SHIM) .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
