// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// unit is a command that waits for its vertices or holds them: a single-shard
// command, or this shard's part of a multi-shard one.
type unit struct {
	// sequence orders units as they came.
	sequence uint64
	origin   uint64
	command  *kvv1.Command
	vertices []keyspace.Vertex
	// attempt is nil for a single-shard command.
	attempt *attempt
	// ranged units read a range of keys of all vertices; they queue at none.
	ranged bool
	reads  bool
	gone   bool
}

// queues keep, for each vertex that some unit waits for or holds, these units in
// the order in which they will have it.
type queues struct {
	next   uint64
	all    []*unit // ascending by sequence; some may be gone
	live   int
	vertex map[keyspace.Vertex][]*unit
	ranges []*unit // ascending by sequence
	ready  []*unit
	// waiting counts single-shard commands.
	waiting int
}

func newQueues() queues { return queues{vertex: map[keyspace.Vertex][]*unit{}} }

// busy says whether a command on these vertices must wait.
func (q *queues) busy(cmd *kvv1.Command, vertices []keyspace.Vertex, reads bool) bool {
	if q.live == 0 {
		return false
	}
	for _, v := range vertices {
		if len(q.vertex[v]) > 0 {
			return true
		}
	}
	if !reads {
		for _, r := range q.ranges {
			if writesInto(cmd, r) {
				return true
			}
		}
	}
	return false
}

// writesInto says whether a command that may write declares a key in r's range.
func writesInto(cmd *kvv1.Command, r *unit) bool {
	start, end := text(r.command.Keys[0]), text(r.command.ThenOps[0].End)
	for _, key := range cmd.Keys {
		if inRange(text(key), start, end) {
			return true
		}
	}
	return false
}

// add puts a unit behind all that came before it. Whoever adds one that may be
// runnable at once marks it as ready.
func (q *queues) add(u *unit) {
	q.next++
	u.sequence = q.next
	q.insert(u)
}

func (q *queues) insert(u *unit) {
	q.all = append(q.all, u)
	q.live++
	if u.attempt == nil {
		q.waiting++
	} else {
		u.attempt.unit = u
	}
	if u.ranged {
		q.ranges = append(q.ranges, u)
	}
	for _, v := range u.vertices {
		q.vertex[v] = append(q.vertex[v], u)
	}
}

// runnable says that u is first at all its vertices and meets no range that came
// before it (or, if it is a range, no writer that did).
func (q *queues) runnable(u *unit) bool {
	for _, v := range u.vertices {
		if q.vertex[v][0] != u {
			return false
		}
	}
	if u.ranged {
		for _, w := range q.all {
			if w.sequence >= u.sequence {
				return true
			}
			if !w.gone && !w.ranged && !w.reads && writesInto(w.command, u) {
				return false
			}
		}
		return true
	}
	if u.reads {
		return true
	}
	for _, r := range q.ranges {
		if r.sequence < u.sequence && writesInto(u.command, r) {
			return false
		}
	}
	return true
}

// remove takes away a unit that is first at all its vertices, and marks as ready
// whatever may have waited for it.
func (q *queues) remove(u *unit) {
	u.gone = true
	q.live--
	if u.attempt == nil {
		q.waiting--
	}
	for _, v := range u.vertices {
		if rest := q.vertex[v][1:]; len(rest) > 0 {
			q.vertex[v] = rest
			q.ready = append(q.ready, rest[0])
		} else {
			delete(q.vertex, v)
		}
	}
	q.removeRange(u)
	if len(q.all) > 2*q.live+16 || q.live == 0 {
		q.compact()
	}
}

func (q *queues) removeRange(u *unit) {
	if !u.ranged {
		if !u.reads {
			q.ready = append(q.ready, q.ranges...)
		}
		return
	}
	kept := q.ranges[:0:0]
	for _, r := range q.ranges {
		if r != u {
			kept = append(kept, r)
		}
	}
	q.ranges = kept
	for _, w := range q.all {
		if !w.gone && w.sequence > u.sequence {
			q.ready = append(q.ready, w)
		}
	}
}

func (q *queues) compact() {
	kept := make([]*unit, 0, q.live)
	for _, u := range q.all {
		if !u.gone {
			kept = append(kept, u)
		}
	}
	q.all = kept
}

// pump starts every unit whose turn it is.
func (c *Core) pump() {
	for len(c.queues.ready) > 0 {
		u := c.queues.ready[0]
		c.queues.ready = c.queues.ready[1:]
		if !u.gone && c.queues.runnable(u) {
			c.start(u)
		}
	}
	c.queues.ready = nil
}

// start runs a single-shard command, or has a multi-shard one hold its vertices.
func (c *Core) start(u *unit) {
	if u.attempt != nil {
		if u.attempt.phase == attemptDelivered {
			c.hold(u.attempt)
		}
		return
	}
	c.queues.remove(u)
	c.leaveProgress(u.command)
	c.runLocal(u.origin, u.command, u.vertices)
}

// enterProgress and leaveProgress count the commands under way of an id.
func (c *Core) enterProgress(cmd *kvv1.Command) {
	if id, ok := commandKeyOf(cmd); ok {
		c.progress[id]++
	}
}

func (c *Core) leaveProgress(cmd *kvv1.Command) {
	if id, ok := commandKeyOf(cmd); ok {
		if c.progress[id]--; c.progress[id] <= 0 {
			delete(c.progress, id)
		}
	}
}
