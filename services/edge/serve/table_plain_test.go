// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package serve

import "github.com/kolocate/kolocate/services/edge/ir"

// largestTable is the bound of the route table.
const largestTable = ir.DefaultMaxOverrides
