// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/kolocate/kolocate/services/keyspace"

// tracker notes, for the leader's copy of a handoff, what changes meanwhile. It
// is volatile: a new leader starts the copy again.
type tracker struct {
	area    *area
	keys    map[string]struct{}
	bytes   int
	records []*record
}

func newTracker(a *area) *tracker { return &tracker{area: a, keys: map[string]struct{}{}} }

func (t *tracker) written(key string) {
	if !t.area.has(keyspace.VertexOf(key)) {
		return
	}
	if _, known := t.keys[key]; !known {
		t.keys[key] = struct{}{}
		t.bytes += len(key)
	}
}

func (t *tracker) recorded(rec *record) {
	if t.area.hasAny(rec.vertices) {
		t.records = append(t.records, rec)
	}
}

func (c *Core) track(t *tracker) { c.trackers = append(c.trackers, t) }

func (c *Core) untrack(t *tracker) {
	kept := c.trackers[:0:0]
	for _, other := range c.trackers {
		if other != t {
			kept = append(kept, other)
		}
	}
	c.trackers = kept
}
