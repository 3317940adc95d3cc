// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package sequence

import (
	"errors"
	"math/rand/v2"
	"testing"
)

func TestWindowHasABound(t *testing.T) {
	var w Window
	for range Size {
		if _, _, err := w.Take(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.Take(); !errors.Is(err, ErrFull) {
		t.Fatalf("over the bound: %v", err)
	}
	w.Answer(2)
	if _, _, err := w.Take(); !errors.Is(err, ErrFull) {
		t.Fatalf("the first is still open: %v", err)
	}
	w.Answer(1)
	if sequence, below, err := w.Take(); err != nil || sequence != Size+1 || below != 3 {
		t.Fatalf("Take() = %d, %d, %v, want %d, 3", sequence, below, err, Size+1)
	}
}

// Property: the mark is the lowest sequence that was taken and not answered.
func TestWindowAgreesWithSet(t *testing.T) {
	for seed := range uint64(1) {
		r := rand.New(rand.NewPCG(seed, 1))
		var w Window
		var open []uint64
		for range 3 * Size {
			if len(open) > 0 && (r.IntN(2) == 0 || len(open) > 500) {
				at := r.IntN(min(len(open), 1+r.IntN(50)))
				w.Answer(open[at])
				open = append(open[:at], open[at+1:]...)
				continue
			}
			sequence, below, err := w.Take()
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, sequence)
			if below != open[0] {
				t.Fatalf("seed %d: mark %d, want %d", seed, below, open[0])
			}
		}
	}
}
