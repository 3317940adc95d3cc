# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The entry points. The work is done by short scripts under hack/ and e2e/,
# which also run by themselves. What is fetched or built beside the product
# lies in a cache outside the checkout (KOLOCATE_CACHE, by default
# ~/.cache/kolocate), so the second run is quick.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# ARGS is passed on to the demo, the tests, the e2e script or the benchmarks.
ARGS ?=
# TAG is the tag of the container images.
TAG ?= dev
# PACKAGES limits test, test-race, bench and lint to some Go packages.
PACKAGES ?= ./...
export PACKAGES

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/kolocate and bin/kolocate-partitioner, both static
	@hack/build.sh

.PHONY: demo
demo: build ## Run a store on this machine and watch it rebalance (ARGS="--graph FILE --json")
	@exports=$$(hack/env.sh envoy) && eval "$$exports" && export KOLOCATE_PARTITIONER="$(CURDIR)/bin/kolocate-partitioner" && exec bin/kolocate demo $(ARGS)

.PHONY: test
test: ## Run the Go tests, with the race detector where it matters (PACKAGES, ARGS="-run X")
	@hack/test.sh $(ARGS)

.PHONY: test-race
test-race: ## Run the Go tests with the race detector everywhere
	@RACE=all hack/test.sh $(ARGS)

.PHONY: bench
bench: ## Run the Go benchmarks (PACKAGES, ARGS)
	@hack/test.sh -run '^$$' -bench . -benchmem $(ARGS)

.PHONY: e2e
e2e: ## Create a kind cluster, install the chart, and check a rebalance from end to end
	@e2e/run.sh $(ARGS)

.PHONY: lint
lint: ## Run golangci-lint, shellcheck and the house rules (PACKAGES)
	@hack/lint/lint.sh

.PHONY: fmt
fmt: ## Format the Go code
	@"$$(hack/tools/build.sh golangci-lint)/golangci-lint" fmt ./...

.PHONY: generate
generate: ## Generate protos, deepcopy, CRDs, RBAC and the chart's golden files
	@hack/generate.sh

.PHONY: generate-proto
generate-proto: ## Generate Go code from api/proto
	@hack/generate.sh proto

.PHONY: verify
verify: ## Check that what is generated is up to date, the chart, go.mod and the import rules
	@hack/verify/verify.sh

.PHONY: images
images: build ## Build the container images, without any registry (TAG, ARGS="kolocate envoy" for some)
	@hack/images/build.sh $(TAG) $(ARGS)

.PHONY: tools
tools: ## Build and fetch the developer tools into the cache
	@hack/tools/build.sh >/dev/null && hack/deps/shellcheck.sh >/dev/null && hack/deps/envoy.sh >/dev/null && hack/deps/kahip.sh >/dev/null

.PHONY: clean
clean: ## Remove what make built in the checkout
	@rm -rf bin _output

.PHONY: clean-cache
clean-cache: ## Remove the cache of fetched and built parts
	@. hack/lib.sh && dir=$$(cache_dir) && echo "removing $$dir" && chmod -R u+w "$$dir" 2>/dev/null; rm -rf "$$dir"
