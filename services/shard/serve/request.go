// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/shard/core"
)

// kind names a command in metrics.
type kind uint8

const (
	kindGet kind = iota
	kindPut
	kindDelete
	kindIncrement
	kindCompareAndSwap
	kindScan
	kindTxn
	kindCount
)

var kindNames = [kindCount]string{"get", "put", "delete", "increment", "compare_and_swap", "scan", "txn"}

func kindOf(cmd *kvv1.Command) kind {
	if len(cmd.GetThenOps()) == 1 && len(cmd.GetKeys()) == 1 && len(cmd.GetCompares()) == 1 {
		return kindCompareAndSwap
	}
	if len(cmd.GetThenOps()) != 1 || len(cmd.GetElseOps()) != 0 || len(cmd.GetCompares()) != 0 || len(cmd.GetKeys()) != 1 {
		return kindTxn
	}
	switch cmd.GetThenOps()[0].GetKind() {
	case kvv1.OpKind_OP_KIND_GET:
		return kindGet
	case kvv1.OpKind_OP_KIND_PUT:
		return kindPut
	case kvv1.OpKind_OP_KIND_DELETE:
		return kindDelete
	case kvv1.OpKind_OP_KIND_INCREMENT:
		return kindIncrement
	default:
		return kindScan
	}
}

// place is where a request waits.
type place uint8

const (
	// placeLog: proposed, or handed to the Leader; a reply of the core ends it.
	placeLog place = iota + 1
	// placePeer: passed on to another shard.
	placePeer
	// placePause: waits for its next try. placeParked: for a handoff to commit.
	placePause
	placeParked
	// placeRead: waits for a linearizable read.
	placeRead
	// placeDone: answered.
	placeDone
)

// reason says why a request ended without having run, for the unary calls' status.
type reason uint8

const (
	reasonNone reason = iota
	reasonBound
	reasonDeadline
)

// sink takes the replies of one client. put may be called from any goroutine
// and must not block; flush is called after a number of them.
type sink interface {
	put(r *request, reply *kvv1.Reply)
	flush()
}

// request is a command on its way through this process. After intake its fields
// are used by the apply goroutine alone.
type request struct {
	command  *kvv1.Command
	vertices []keyspace.Vertex // distinct; none for a scan over all shards
	sink     sink
	tag      uint64
	origin   uint64
	started  time.Time
	deadline time.Time
	due      time.Time
	size     int
	hops     uint32
	attempts int
	// sequence is set when the id was given by this process.
	sequence uint64
	peer     keyspace.ShardID
	kind     kind
	place    place
	reason   reason
	reads    bool
	// redirects: the client wants to be told where its keys are instead of
	// having the command passed on.
	redirects bool
	// uncertain: an earlier try may have run.
	uncertain bool
	// forwarded: the answer comes from another shard, which counts it.
	forwarded bool
	hints     []*kvv1.Hint
}

// maxHops bounds the shards that a command passes before the one it reached
// coordinates it (contract of Peer.Forward).
const maxHops = 4

// prepare fills in what can be known of a command without the shard's state.
func (r *request) prepare(cmd *kvv1.Command, size int, timeout time.Duration, limits *Limits, now time.Time) {
	if timeout <= 0 {
		timeout = limits.DefaultTimeout
	}
	r.command, r.size = cmd, size
	r.vertices = core.Vertices(cmd)
	r.reads = core.PureRead(cmd)
	r.kind = kindOf(cmd)
	r.started, r.deadline = now, now.Add(min(timeout, limits.MaxTimeout))
}

// repeatable says that running the command again does no harm.
func (r *request) repeatable() bool { return r.reads || r.command.GetId() != nil }

func retryReply(message string) *kvv1.Reply {
	return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_RETRY, Message: message}
}

func unknownReply(message string) *kvv1.Reply {
	return &kvv1.Reply{Outcome: kvv1.Outcome_OUTCOME_UNKNOWN, Message: message}
}
