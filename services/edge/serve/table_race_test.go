// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package serve

import "github.com/kolocate/kolocate/services/edge/ir"

// largestTable is smaller than the bound under the race detector, which makes
// each entry ten times dearer.
const largestTable = ir.DefaultMaxOverrides / 10
