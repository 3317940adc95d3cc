// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sequence numbers the updates of one client for exactly-once (DESIGN 3.3).
// It never sends anything. The SDK uses it, and shards, for clients that give no ids.
package sequence

import (
	"fmt"
	"sync"
)

// Size bounds how far the newest sequence may be ahead of the oldest that is
// under way. The shards keep a record for each in between.
const Size = 1 << 17

// ErrFull says that Size sequences are under way or behind one that is.
var ErrFull = fmt.Errorf("one update has been waiting while %d later ones were started: wait for it, or use a shorter deadline", Size)

// Window gives sequences and knows below which all are answered. The zero value
// is ready. It may be used concurrently.
type Window struct {
	mu sync.Mutex
	// last is the newest sequence; every one below lowest is answered.
	last, lowest uint64
	// answered is a ring of bits for lowest and the sequences after it.
	answered [Size / 64]uint64
}

// Take gives the next sequence, from 1, and the mark below which all are
// answered. It returns ErrFull at its bound.
func (w *Window) Take() (sequence, acknowledgedBelow uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lowest == 0 {
		w.lowest = 1
	}
	if w.last+1-w.lowest >= Size {
		return 0, 0, ErrFull
	}
	w.last++
	return w.last, w.lowest, nil
}

// Answer says that a sequence will never be sent again. It is called once for each.
func (w *Window) Answer(sequence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered[sequence%Size/64] |= 1 << (sequence % 64)
	for w.lowest <= w.last {
		word, bit := &w.answered[w.lowest%Size/64], uint64(1)<<(w.lowest%64)
		if *word&bit == 0 {
			return
		}
		*word &^= bit
		w.lowest++
	}
}
