// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import "testing"

// What was proposed here is applied without being decoded, and nothing of it is kept.
func TestOwnProposalsAreNotDecoded(t *testing.T) {
	oracle := newStandIn(t, 1)
	config := startShardsConfig(t, oracle)
	s, err := start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	c := dialSDK(t, oracle, nil)
	for i := range 100 {
		if _, err := c.Put(t.Context(), key("k%d", i), key("v")); err != nil {
			t.Fatal(err)
		}
	}
	var left int
	var decoded uint64
	if err := s.host.Run(func() { left, decoded = len(s.engine.own.queue), s.engine.own.decoded }); err != nil {
		t.Fatal(err)
	}
	if left > 5 || decoded > 5 {
		t.Fatalf("%d entries are kept, %d were decoded", left, decoded)
	}
}
