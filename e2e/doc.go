// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e owns the test of the whole product on a real cluster: chart,
// operator, store, load, rebalance, failures, clean-up. It holds no code of the
// product, and its tests need the build tag e2e. e2e/run.sh runs it.
package e2e
