// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suite owns the tests of the operator against a real API server. It
// holds no code of the product. Nothing but the tests runs it.
package suite
