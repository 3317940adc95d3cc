// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/tidwall/btree"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// commandKey is a command's id.
type commandKey struct {
	client, sequence uint64
}

func commandKeyOf(cmd *kvv1.Command) (commandKey, bool) {
	if cmd.Id == nil {
		return commandKey{}, false
	}
	return commandKey{client: cmd.Id.Client, sequence: cmd.Id.Sequence}, true
}

// record is what exactly-once keeps of an executed update. It is immutable.
type record struct {
	id       commandKey
	result   *kvv1.Result
	vertices []keyspace.Vertex
	time     int64 // log time of execution, milliseconds
	bytes    int
	// one holds the vertices if there is just one.
	one [1]keyspace.Vertex
}

func newRecord(id commandKey, result *kvv1.Result, vertices []keyspace.Vertex, now int64) *record {
	rec := &record{id: id, result: result, time: now, bytes: resultBytes(result)}
	rec.vertices = append(rec.one[:0], vertices...)
	return rec
}

// filed is a record under its id, so that a look-up need not make a record.
type filed struct {
	id  commandKey
	rec *record
}

func filedLess(a, b filed) bool {
	if a.id.client != b.id.client {
		return a.id.client < b.id.client
	}
	return a.id.sequence < b.id.sequence
}

// mark is what a client has acknowledged.
type mark struct {
	below uint64
	time  int64 // log time of the client's last update, milliseconds
}

// records is the table of executed updates. The trees copy in constant time; the
// queue is only ever appended to and cut at its front, so a copy of its header
// is a copy of it.
type records struct {
	byID *btree.BTreeG[filed]
	// queue holds the records in order of arrival; one that byID no longer holds
	// is skipped.
	queue []*record
	marks *btree.Map[uint64, mark]
	bytes int
}

func newRecords() records {
	return records{
		byID:  btree.NewBTreeGOptions(filedLess, btree.Options{NoLocks: true}),
		marks: &btree.Map[uint64, mark]{},
	}
}

func (r *records) copy() records {
	return records{byID: r.byID.Copy(), queue: r.queue[:len(r.queue):len(r.queue)], marks: r.marks.Copy(), bytes: r.bytes}
}

func (r *records) get(id commandKey) *record {
	found, _ := r.byID.Get(filed{id: id})
	return found.rec
}

// forgotten says that the client has acknowledged the result, so that no record
// is left to tell it again.
func (r *records) forgotten(id commandKey) bool {
	m, known := r.marks.Get(id.client)
	return known && id.sequence < m.below
}

// fewAcknowledged is the number of sequences up to which looking for each is
// faster than looking for those there are.
const fewAcknowledged = 4

// acknowledge drops what the client acknowledges below a sequence.
func (r *records) acknowledge(client, below uint64, now int64) {
	if below == 0 {
		return
	}
	m, _ := r.marks.Get(client)
	if below <= m.below {
		return
	}
	r.marks.Set(client, mark{below: below, time: max(now, m.time)})
	if below-m.below <= fewAcknowledged {
		for sequence := m.below; sequence < below; sequence++ {
			r.drop(commandKey{client: client, sequence: sequence})
		}
		return
	}
	for {
		first, found := r.first(client)
		if !found || first.id.sequence >= below {
			return
		}
		r.drop(first.id)
	}
}

// first returns the client's record of the lowest sequence.
func (r *records) first(client uint64) (found *record, ok bool) {
	r.byID.Ascend(filed{id: commandKey{client: client}}, func(f filed) bool {
		found, ok = f.rec, f.id.client == client
		return false
	})
	return found, ok
}

func (r *records) add(rec *record) {
	if old, replaced := r.byID.Set(filed{id: rec.id, rec: rec}); replaced {
		r.bytes -= old.rec.bytes
	}
	r.bytes += rec.bytes
	r.queue = append(r.queue, rec)
}

// merge takes a record that comes with a handoff. One that is here already is of
// the same command, whose other vertices are here: it then stands for both.
func (r *records) merge(rec *record) {
	if r.forgotten(rec.id) {
		return
	}
	if old := r.get(rec.id); old != nil {
		both := *old
		both.vertices = slices.Clone(old.vertices)
		for _, v := range rec.vertices {
			if !hasVertex(both.vertices, v) {
				both.vertices = append(both.vertices, v)
			}
		}
		if len(both.vertices) == len(old.vertices) {
			return
		}
		rec = &both
	}
	r.add(rec)
}

func (r *records) drop(id commandKey) {
	if old, existed := r.byID.Delete(filed{id: id}); existed {
		r.bytes -= old.rec.bytes
	}
}

// expire drops the oldest records: those from before a log time, and as many as
// it takes to come under the bounds.
func (r *records) expire(before int64, maxRecords, maxBytes int) {
	for len(r.queue) > 0 {
		oldest := r.queue[0]
		if r.get(oldest.id) == oldest {
			if oldest.time >= before && r.byID.Len() <= maxRecords && r.bytes <= maxBytes {
				break
			}
			r.drop(oldest.id)
		}
		r.queue = r.queue[1:]
	}
	if len(r.queue) > 1024 && len(r.queue) > 2*r.byID.Len() {
		r.compact()
	}
}

// compact takes records that have been dropped out of the queue.
func (r *records) compact() {
	live := make([]*record, 0, r.byID.Len())
	for _, rec := range r.queue {
		if r.get(rec.id) == rec {
			live = append(live, rec)
		}
	}
	r.queue = live
}

// expireMarks forgets clients that have been silent since before a log time, and
// if more than the bound are left, those of the lowest ids.
func (r *records) expireMarks(before int64, bound int) {
	var gone []uint64
	r.marks.Scan(func(client uint64, m mark) bool {
		if m.time < before || r.marks.Len()-len(gone) > bound {
			gone = append(gone, client)
		}
		return true
	})
	for _, client := range gone {
		r.marks.Delete(client)
	}
}

// resultBytes estimates the memory that a result takes.
func resultBytes(result *kvv1.Result) int {
	n := 96 + len(result.GetRefused())
	for _, op := range result.GetOps() {
		n += 96 + len(op.Value)
		for _, entry := range op.Entries {
			n += 96 + len(entry.Key) + len(entry.Value)
		}
	}
	return n
}

func (rec *record) toProto() *shardv1.Record {
	p := &shardv1.Record{Client: rec.id.client, Sequence: rec.id.sequence, Result: rec.result, TimeMillis: rec.time}
	for _, v := range rec.vertices {
		p.Vertices = append(p.Vertices, []byte(v))
	}
	return p
}

func recordFromProto(p *shardv1.Record) *record {
	rec := &record{
		id:     commandKey{client: p.GetClient(), sequence: p.GetSequence()},
		result: p.GetResult(), time: p.GetTimeMillis(), bytes: resultBytes(p.GetResult()),
	}
	for _, v := range p.GetVertices() {
		rec.vertices = append(rec.vertices, keyspace.Vertex(v))
	}
	return rec
}
