# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0

.PHONY: generate-proto
generate-proto: ## Generate Go code from api/proto
	@hack/generate-proto.sh
