// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// newHalves is two shards that own half of the slots each.
func newHalves(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, now: time.UnixMilli(1000)}
	for i := range p.cores {
		id := keyspace.ShardID(i + 1)
		p.cores[i] = New(Config{Store: "test", Shard: id})
		p.leaders[i] = NewLeader(p.cores[i], LeaderConfig{Term: 1}, p.now)
		first := uint32(i * keyspace.Slots / 2)
		p.apply(i, &shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: &shardv1.Genesis{
			Store: "test", Shard: uint32(id), Slots: []*shardv1.SlotRange{{First: first, Last: first + keyspace.Slots/2 - 1}},
		}}})
	}
	return p
}

// keysAt returns keys whose slots a half owns.
func keysAt(half, count int) (keys [][]byte) {
	for i := 0; len(keys) < count; i++ {
		key := fmt.Sprintf("key/%d", i)
		if int(keyspace.SlotOf(keyspace.VertexOf(key)))/(keyspace.Slots/2) == half {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}

// TestTooMuchToLendIsRefused: a command that reads more from another shard than
// one message may carry is refused, changes nothing and holds nothing, where it
// would otherwise hold its vertices for ever.
func TestTooMuchToLendIsRefused(t *testing.T) {
	p := newHalves(t)
	big := keysAt(1, 9)
	for i, key := range big {
		cmd := putCommand(key, i, 0)
		cmd.ThenOps[0].Value = make([]byte, keyspace.MaxValueBytes)
		p.apply(1, entryOf(cmd))
	}
	for _, c := range []struct {
		reads   int
		refused bool
	}{{9, true}, {7, false}} {
		own := keysAt(0, 1)[0]
		cmd := &kvv1.Command{Keys: append([][]byte{own}, big...), ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_PUT, Value: []byte("new")}}}
		claim := &shardv1.Claim{Shard: 2}
		for i := range big {
			claim.Keys = append(claim.Keys, uint32(i+1))
			if i < c.reads {
				cmd.ThenOps = append(cmd.ThenOps, &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET, Key: uint32(i + 1)})
			}
		}
		reply := p.submit(77, cmd, []*shardv1.Claim{{Shard: 1, Keys: []uint32{0}}, claim})
		if refused := strings.Contains(reply.GetResult().GetRefused(), "read fewer keys"); refused != c.refused {
			t.Errorf("%d values read: refused %v (%q), want %v", c.reads, refused, reply.GetResult().GetRefused(), c.refused)
		}
		if _, written := p.cores[0].keys.get(string(own)); written == c.refused {
			t.Errorf("%d values read: written %v", c.reads, written)
		}
		for i := range p.cores {
			if n := len(p.cores[i].pending); n > 0 {
				t.Errorf("%d values read: shard %d still has %d attempts", c.reads, i+1, n)
			}
		}
	}
}

// submit runs a command over both shards to its end and returns the reply.
func (p *pair) submit(origin uint64, cmd *kvv1.Command, claims []*shardv1.Claim) (reply *kvv1.Reply) {
	p.replies = func(o uint64, r *kvv1.Reply) {
		if o == origin {
			reply = r
		}
	}
	p.leaders[0].Submit(origin, cmd, claims)
	p.drain(0)
	for range 200 {
		p.round()
	}
	return reply
}

// TestInputsAreBoundTogether: what each shard may lend alone can be too much
// for the coordinator's log entry.
func TestInputsAreBoundTogether(t *testing.T) {
	value := make([]byte, keyspace.MaxValueBytes)
	inputs := func(shards int) (list []*shardv1.Input) {
		for i := range shards {
			list = append(list, &shardv1.Input{Shard: uint32(i + 2), States: []*shardv1.KeyState{{Found: true, Value: value}, {Found: true, Value: value}}})
		}
		return list
	}
	for _, in := range boundInputs(inputs(4)) {
		if in.Refused != "" || len(in.States) != 2 {
			t.Errorf("8 MiB from 4 shards: %q", in.Refused)
		}
	}
	for i, in := range boundInputs(inputs(5)) {
		if in.Refused == "" || len(in.States) > 0 || in.Shard != uint32(i+2) {
			t.Errorf("10 MiB from 5 shards were let through: shard %d", in.Shard)
		}
	}
}
