// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// FormatPercent writes a share (0.123) as statuses show it (12.3%): with one
// decimal, because finer changes are noise and each would cost a write. Not a
// number and infinity give "".
func FormatPercent(share float64) string {
	if math.IsNaN(share) || math.IsInf(share, 0) {
		return ""
	}
	return strconv.FormatFloat(share*100, 'f', 1, 64) + "%"
}

// ParsePercent reads a Share or Excess (5%) as a number (0.05).
func ParsePercent(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok {
		return 0, fmt.Errorf("reading %q: expected a number and a percent sign, for example 5%%", text)
	}
	return value / 100, nil
}
