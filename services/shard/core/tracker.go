// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/kolocate/kolocate/services/keyspace"

// tracker notes, for the leader's copy of a handoff, what changes meanwhile. It
// is volatile: a new leader starts the copy again.
type tracker struct {
	area *area
	keys map[string]struct{}
	// records may hold some that have been dropped since; every so often they go.
	records []*record
	table   *records
	tidyAt  int
}

// recordsBeforeTidying is the least number of records after which a tracker
// looks for dropped ones.
const recordsBeforeTidying = 4096

func newTracker(a *area, table *records) *tracker {
	return &tracker{area: a, keys: map[string]struct{}{}, table: table, tidyAt: recordsBeforeTidying}
}

func (t *tracker) reset() {
	t.keys, t.records, t.tidyAt = map[string]struct{}{}, nil, recordsBeforeTidying
}

func (t *tracker) written(key string) {
	if !t.area.has(keyspace.VertexOf(key)) {
		return
	}
	t.keys[key] = struct{}{}
}

func (t *tracker) recorded(rec *record) {
	if !t.area.hasAny(rec.vertices) {
		return
	}
	t.records = append(t.records, rec)
	if len(t.records) < t.tidyAt {
		return
	}
	kept := t.records[:0:0]
	for _, old := range t.records {
		if t.table.get(old.id) != nil {
			kept = append(kept, old)
		}
	}
	t.records, t.tidyAt = kept, max(recordsBeforeTidying, 2*len(kept))
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
