// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// A client has one command under way at a time, and may send it again with the
// same id while it waits.
type client struct {
	id       uint64
	sequence uint64
	op       *operation
}

// operation is a command of the history. An update writes its own number into
// keys, so the order of writers is known from the versions.
type operation struct {
	number      int
	client      *client
	command     *kvv1.Command
	called      int
	returned    int // 0 while it is under way
	outstanding int // tries without a reply
	result      *kvv1.Result
}

func (w *world) clientStep() {
	c := w.clients[w.r.IntN(len(w.clients))]
	switch {
	case c.op == nil && w.todo > 0:
		w.todo--
		w.call(c)
	case c.op == nil:
	case c.op.outstanding == 0 || w.chance(w.faults.impatient) || w.calm && w.chance(0.02):
		w.try(c.op)
	}
}

func (w *world) call(c *client) {
	w.clock++
	op := &operation{number: len(w.ops) + 1, client: c, called: w.clock}
	op.command = w.randomCommand(op)
	w.ops = append(w.ops, op)
	c.op = op
	w.try(op)
}

func (w *world) randomCommand(op *operation) *kvv1.Command {
	c := op.client
	cmd := &kvv1.Command{}
	if w.chance(0.06) {
		cmd.Keys = [][]byte{[]byte("{v")}
		cmd.ThenOps = []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_SCAN_RANGE, End: []byte("{w")}}
		return cmd
	}
	n := []int{1, 1, 2, 2, 2, 3}[w.r.IntN(6)]
	kind := w.r.IntN(5)
	for _, i := range w.r.Perm(len(w.vertices))[:min(n, len(w.vertices))] {
		w.addOps(cmd, w.vertices[i], kind, op.number)
	}
	if kind != 0 {
		c.sequence++
		cmd.Id = &kvv1.CommandId{Client: c.id, Sequence: c.sequence, AcknowledgedBelow: c.sequence}
	}
	return cmd
}

// addOps adds what a command does in one vertex: kind 0 reads, 1 writes blindly,
// the others read, write and count.
func (w *world) addOps(cmd *kvv1.Command, v keyspace.Vertex, kind, number int) {
	value := []byte(fmt.Sprint(number))
	key := uint32(len(cmd.Keys))
	cmd.Keys = append(cmd.Keys, []byte(fmt.Sprintf("{%s}%c", v, 'a'+rune(w.r.IntN(2)))), []byte("{"+string(v)+"}n"))
	get := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET, Key: key}
	put := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Key: key, Value: value}
	count := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Key: key + 1, Delta: 1}
	scan := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_SCAN_VERTEX, Key: key, FromFirst: true}
	if kind > 1 && w.chance(0.4) { // a key that comes and goes
		cmd.Keys = append(cmd.Keys, []byte("{"+string(v)+"}d"))
		cmd.ThenOps = append(cmd.ThenOps, &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET, Key: key + 2})
		if w.chance(0.5) {
			cmd.ThenOps = append(cmd.ThenOps, &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_DELETE, Key: key + 2})
		} else {
			cmd.ThenOps = append(cmd.ThenOps, &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Key: key + 2, Value: value})
		}
	}
	switch {
	case kind == 0 && w.chance(0.3):
		cmd.ThenOps = append(cmd.ThenOps, scan)
	case kind == 0:
		cmd.ThenOps = append(cmd.ThenOps, get)
	case kind == 1:
		cmd.ThenOps = append(cmd.ThenOps, put, count)
	case w.chance(0.2):
		cmd.ThenOps = append(cmd.ThenOps, scan, put, count)
	default:
		cmd.ThenOps = append(cmd.ThenOps, get, put, count)
	}
}

// try sends a command to some shard, as a client or a forwarding shard would.
func (w *world) try(op *operation) {
	n := w.nodes[w.r.IntN(len(w.nodes))]
	if PureRead(op.command) && w.chance(0.5) {
		if r, ok := n.core.Read(op.command); ok {
			op.outstanding++
			w.replied(newOrigin(w, op), r)
			return
		}
	}
	if w.chance(w.faults.stale) {
		w.tryStale(op, n)
		return
	}
	for range 4 {
		class := n.core.Classify(op.command, believes{w}, w.shards, false)
		switch class.Class {
		case ClassLocal:
			op.outstanding++
			n.proposals = append(n.proposals, w.submitted(op))
			return
		case ClassMulti:
			op.outstanding++
			if r := n.leader.Submit(newOrigin(w, op), op.command, class.Claims); r != nil {
				op.outstanding--
			}
			n.drain()
			return
		case ClassElsewhere:
			n = w.node(class.Target)
		default:
			return
		}
	}
}

func (w *world) submitted(op *operation) *shardv1.Entry {
	return &shardv1.Entry{TimeMillis: w.now.UnixMilli(), Body: &shardv1.Entry_Commands{Commands: &shardv1.Commands{
		Commands: []*shardv1.Submitted{{Origin: newOrigin(w, op), Command: op.command}},
	}}}
}

// tryStale proposes a command where it may not belong.
func (w *world) tryStale(op *operation, n *node) {
	op.outstanding++
	if w.chance(0.5) {
		n.proposals = append(n.proposals, w.submitted(op))
		return
	}
	at := map[keyspace.Vertex]keyspace.ShardID{}
	for _, v := range Vertices(op.command) {
		at[v] = w.shards[w.r.IntN(len(w.shards))]
		if w.chance(0.7) {
			at[v] = w.believed[v]
		}
	}
	claims := claimsOf(op.command, at)
	if isRangeScan(op.command) {
		claims = nil // such a scan claims all shards there are
		for _, id := range w.shards {
			claims = append(claims, &shardv1.Claim{Shard: uint32(id)})
		}
	}
	n = w.node(keyspace.ShardID(claims[w.r.IntN(len(claims))].Shard))
	if r := n.leader.Submit(newOrigin(w, op), op.command, claims); r != nil {
		op.outstanding--
	}
	n.drain()
}

// replied takes the reply to one try of a command.
func (w *world) replied(origin uint64, r *kvv1.Reply) {
	op := w.origins[origin]
	if op == nil {
		return
	}
	delete(w.origins, origin)
	op.outstanding--
	if op.returned > 0 || !w.calm && w.chance(w.faults.silent) {
		return
	}
	switch r.Outcome {
	case kvv1.Outcome_OUTCOME_OK:
		if r.Result.Refused != "" {
			w.fail("operation %d refused: %s", op.number, r.Result.Refused)
		}
		w.clock++
		op.returned, op.result = w.clock, r.Result
		op.client.op = nil
	case kvv1.Outcome_OUTCOME_REJECTED:
		w.fail("operation %d rejected: %s", op.number, r.Message)
	}
}
