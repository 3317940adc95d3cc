// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "sync"

// sequenceWindow bounds how far the newest sequence may be ahead of the oldest
// that is under way. The shards keep a record for each in between.
const sequenceWindow = 1 << 17

// sequences numbers the updates of a client and knows below which number all
// are answered (DESIGN 3.3). It may be used concurrently.
type sequences struct {
	mu sync.Mutex
	// next is the last sequence given; every one below lowest is answered.
	last, lowest uint64
	// answered is a ring of bits for lowest and the sequences after it.
	answered [sequenceWindow / 64]uint64
}

// take gives the next sequence and the mark below which all are answered.
func (s *sequences) take() (sequence, acknowledgedBelow uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lowest == 0 {
		s.lowest = 1
	}
	if s.last+1-s.lowest >= sequenceWindow {
		return 0, 0, errWindowFull
	}
	s.last++
	return s.last, s.lowest, nil
}

// answer says that a sequence will never be sent again.
func (s *sequences) answer(sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered[sequence%sequenceWindow/64] |= 1 << (sequence % 64)
	for s.lowest <= s.last {
		word, bit := &s.answered[s.lowest%sequenceWindow/64], uint64(1)<<(s.lowest%64)
		if *word&bit == 0 {
			return
		}
		*word &^= bit
		s.lowest++
	}
}
