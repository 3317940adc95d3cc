// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// single is a store of one shard.
type oneShard struct {
	t      *testing.T
	c      *Core
	index  uint64
	origin uint64
	now    int64
}

func newOneShard(t *testing.T, cfg Config) *oneShard {
	t.Helper()
	cfg.Store, cfg.Shard = "test", 1
	s := &oneShard{t: t, c: New(cfg), now: 1000}
	s.apply(&shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: &shardv1.Genesis{
		Store: "test", Shard: 1, Slots: []*shardv1.SlotRange{{First: 0, Last: keyspace.Slots - 1}},
	}}})
	return s
}

func (s *oneShard) apply(e *shardv1.Entry) []Effect {
	s.t.Helper()
	s.index++
	e.TimeMillis = s.now
	effects, err := s.c.Apply(s.index, e)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.c.CheckInvariants(); err != nil {
		s.t.Fatal(err)
	}
	return effects
}

// do runs a command and returns its reply, or nil if it waits.
func (s *oneShard) do(cmd *kvv1.Command) *kvv1.Reply {
	s.t.Helper()
	s.origin++
	for _, e := range s.apply(&shardv1.Entry{Body: &shardv1.Entry_Commands{Commands: &shardv1.Commands{
		Commands: []*shardv1.Submitted{{Origin: s.origin, Command: cmd}},
	}}}) {
		if e.Kind == EffectReply && e.Origin == s.origin {
			return e.Reply
		}
	}
	return nil
}

func keysOf(names ...string) [][]byte {
	list := make([][]byte, len(names))
	for i, name := range names {
		list[i] = []byte(name)
	}
	return list
}

func opPut(key uint32, value string) *kvv1.Op {
	return &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Key: key, Value: []byte(value)}
}

func opOf(kind kvv1.OpKind, key uint32) *kvv1.Op { return &kvv1.Op{Kind: kind, Key: key} }

const (
	get       = kvv1.OpKind_OP_KIND_GET
	remove    = kvv1.OpKind_OP_KIND_DELETE
	increment = kvv1.OpKind_OP_KIND_INCREMENT
)

func TestGenesisOfAnotherShardIsRefused(t *testing.T) {
	c := New(Config{Store: "mine", Shard: 1})
	if _, err := c.Apply(1, entryOf(putCommand([]byte("a"), 1, 0))); err == nil || !strings.Contains(err.Error(), "genesis") {
		t.Fatalf("a command before genesis: %v", err)
	}
	_, err := c.Apply(2, &shardv1.Entry{Body: &shardv1.Entry_Genesis{Genesis: &shardv1.Genesis{Store: "theirs", Shard: 2}}})
	if err == nil || !strings.Contains(err.Error(), "theirs") || !strings.Contains(err.Error(), "mine") {
		t.Fatalf("a genesis of another store: %v", err)
	}
}

// A refusal in any op leaves nothing changed.
func TestRefusedCommandChangesNothing(t *testing.T) {
	s := newOneShard(t, Config{})
	s.do(&kvv1.Command{Keys: keysOf("text", "big"), ThenOps: []*kvv1.Op{opPut(0, "no number"), opPut(1, "9223372036854775807")}})
	before := s.c.keys.bytes
	for _, key := range []uint32{1, 2} {
		one := &kvv1.Op{Kind: increment, Key: key, Delta: 1}
		r := s.do(&kvv1.Command{Keys: keysOf("new", "text", "big"), ThenOps: []*kvv1.Op{opPut(0, "x"), one}})
		if r.Outcome != kvv1.Outcome_OUTCOME_OK || r.Result.Refused == "" || r.Result.Succeeded || len(r.Result.Ops) > 0 {
			t.Fatalf("increment of key %d: %v", key, r)
		}
	}
	if s.c.keys.bytes != before {
		t.Fatalf("a refused command left %d bytes", s.c.keys.bytes-before)
	}
}

func TestComparesAndOwnWrites(t *testing.T) {
	s := newOneShard(t, Config{})
	r := s.do(&kvv1.Command{
		Keys:     keysOf("{a}1", "{a}2"),
		Compares: []*kvv1.Compare{{Key: 0, Kind: kvv1.CompareKind_COMPARE_KIND_ABSENT}},
		ThenOps: []*kvv1.Op{
			opPut(0, "1"), opPut(1, "2"), opOf(remove, 0), opOf(get, 0),
			{Kind: kvv1.OpKind_OP_KIND_SCAN_VERTEX, Key: 0, FromFirst: true},
			{Kind: increment, Key: 1, Delta: -5},
		},
	})
	ops := r.Result.Ops
	if !ops[2].Found || ops[3].Found || len(ops[4].Entries) != 1 || string(ops[4].Entries[0].Key) != "{a}2" || ops[5].Number != -3 {
		t.Fatalf("a command does not see its own writes: %v", r)
	}
	r = s.do(&kvv1.Command{
		Keys:     keysOf("{a}2"),
		Compares: []*kvv1.Compare{{Kind: kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL, Value: []byte("-4")}},
		ThenOps:  []*kvv1.Op{opPut(0, "then")}, ElseOps: []*kvv1.Op{opOf(get, 0)},
	})
	if r.Result.Succeeded || string(r.Result.Ops[0].Value) != "-3" {
		t.Fatalf("the else branch did not run: %v", r)
	}
}

func TestVertexScanLimits(t *testing.T) {
	s := newOneShard(t, Config{})
	for i := range 10 {
		s.do(&kvv1.Command{Keys: keysOf(fmt.Sprintf("{v}%d", i), fmt.Sprintf("{w}%d", i)), ThenOps: []*kvv1.Op{opPut(0, "x"), opPut(1, "x")}})
	}
	scan := func(key, end string, limit uint32, first bool) *kvv1.OpResult {
		r := s.do(&kvv1.Command{Keys: keysOf(key), ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_SCAN_VERTEX, End: []byte(end), Limit: limit, FromFirst: first}}})
		return r.Result.Ops[0]
	}
	for _, test := range []struct {
		key, end string
		limit    uint32
		first    bool
		want     int
		more     bool
	}{
		{"v", "", 0, true, 10, false},
		{"{v}3", "{v}7", 0, false, 4, false},
		{"{v}3", "{v}7", 3, false, 3, true},
		{"{v}3", "{v}7", 4, false, 4, false},
		{"{v}99", "", 5, false, 0, false},
	} {
		if got := scan(test.key, test.end, test.limit, test.first); len(got.Entries) != test.want || got.More != test.more {
			t.Errorf("scan from %q to %q, limit %d: %d entries, more %v; want %d, %v", test.key, test.end, test.limit, len(got.Entries), got.More, test.want, test.more)
		}
	}
	r := s.do(&kvv1.Command{Keys: keysOf("{v}8"), ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_SCAN_RANGE, Limit: 4}}})
	if entries := r.Result.Ops[0].Entries; len(entries) != 4 || string(entries[2].Key) != "{w}0" || !r.Result.Ops[0].More {
		t.Errorf("scan over all keys: %v", r)
	}
}

func TestVersionsGrowOverDeletes(t *testing.T) {
	s := newOneShard(t, Config{})
	last := uint64(0)
	for range 5 {
		version := s.do(&kvv1.Command{Keys: keysOf("k"), ThenOps: []*kvv1.Op{opPut(0, "x")}}).Result.Ops[0].Version
		if version <= last {
			t.Fatalf("version %d follows %d", version, last)
		}
		last = version
		s.do(&kvv1.Command{Keys: keysOf("k"), ThenOps: []*kvv1.Op{opOf(remove, 0)}})
	}
}

func counting(sequence, acknowledgedBelow uint64) *kvv1.Command {
	return &kvv1.Command{
		Id:   &kvv1.CommandId{Client: 9, Sequence: sequence, AcknowledgedBelow: acknowledgedBelow},
		Keys: keysOf("n"), ThenOps: []*kvv1.Op{{Kind: increment, Delta: 1}},
	}
}

func TestExactlyOnce(t *testing.T) {
	s := newOneShard(t, Config{RecordRetention: time.Minute, MaxRecords: 3})
	number := func(cmd *kvv1.Command) int64 {
		r := s.do(cmd)
		if r.Outcome != kvv1.Outcome_OUTCOME_OK {
			return -int64(r.Outcome)
		}
		return r.Result.Ops[0].Number
	}
	for sequence := uint64(1); sequence <= 3; sequence++ {
		if a, b := number(counting(sequence, 0)), number(counting(sequence, 0)); a != int64(sequence) || a != b {
			t.Fatalf("command %d gave %d, then %d", sequence, a, b)
		}
	}
	if got := number(counting(4, 3)); got != 4 || s.c.records.byID.Len() != 2 {
		t.Fatalf("command 4 gave %d, %d records are left", got, s.c.records.byID.Len())
	}
	if got := number(counting(2, 0)); got != -int64(kvv1.Outcome_OUTCOME_REJECTED) {
		t.Fatalf("an acknowledged command gave %d", got)
	}
	for sequence := uint64(5); sequence <= 9; sequence++ {
		number(counting(sequence, 0))
	}
	if s.c.records.byID.Len() != 3 || s.c.records.get(commandKey{9, 7}) == nil {
		t.Fatalf("MaxRecords is 3, but %d are kept", s.c.records.byID.Len())
	}
	s.now += 61_000
	s.apply(&shardv1.Entry{Body: &shardv1.Entry_Housekeeping{Housekeeping: &shardv1.Housekeeping{}}})
	if s.c.records.byID.Len() != 0 || s.c.records.marks.Len() != 0 || s.c.records.bytes != 0 {
		t.Fatalf("after the retention %d records and %d marks are kept", s.c.records.byID.Len(), s.c.records.marks.Len())
	}
}

func TestQueueBound(t *testing.T) {
	s := newOneShard(t, Config{MaxQueued: 2})
	// Give a slot away, so that a command over two shards can hold key a.
	s.apply(&shardv1.Entry{Body: &shardv1.Entry_Begin{Begin: &shardv1.Begin{Origin: 99, Propose: &shardv1.Propose{
		Attempt: &shardv1.Attempt{}, Command: &kvv1.Command{Keys: keysOf("a", "b"), ThenOps: []*kvv1.Op{opPut(0, "1"), opPut(1, "1")}},
		Claims: []*shardv1.Claim{{Shard: 1, Keys: []uint32{0}}, {Shard: 2, Keys: []uint32{1}}},
	}}}})
	s.apply(&shardv1.Entry{Body: &shardv1.Entry_Decide{Decide: &shardv1.Decide{Decision: &shardv1.Decision{
		Attempt: &shardv1.Attempt{Coordinator: 1, Number: 1}, Ok: true, Timestamp: &shardv1.Timestamp{Clock: 7, Shard: 2},
	}}}})
	read := &kvv1.Command{Keys: keysOf("a"), ThenOps: []*kvv1.Op{opOf(get, 0)}}
	if _, ok := s.c.Read(read); ok {
		t.Fatal("a read passed a held vertex")
	}
	for i := range 3 {
		r := s.do(read)
		if full := i == 2; full != (r != nil) || full && (r.Outcome != kvv1.Outcome_OUTCOME_RETRY || !strings.Contains(r.Message, "MaxQueued")) {
			t.Fatalf("command %d on a held vertex: %v", i, r)
		}
	}
	if st := s.c.Stats(); st.Held != 1 || st.Queued != 2 || st.Pending != 1 {
		t.Fatalf("stats: %+v", st)
	}
}

func TestValidate(t *testing.T) {
	long := strings.Repeat("k", keyspace.MaxKeyBytes+1)
	var keyError *keyspace.KeyError
	for name, cmd := range map[string]*kvv1.Command{
		"no key":           {ThenOps: []*kvv1.Op{opOf(get, 0)}},
		"no op":            {Keys: keysOf("a")},
		"long key":         {Keys: keysOf(long), ThenOps: []*kvv1.Op{opOf(get, 0)}},
		"undeclared key":   {Keys: keysOf("a"), ThenOps: []*kvv1.Op{opOf(get, 1)}},
		"unknown op":       {Keys: keysOf("a"), ThenOps: []*kvv1.Op{opOf(99, 0)}},
		"unknown compare":  {Keys: keysOf("a"), Compares: []*kvv1.Compare{{}}, ThenOps: []*kvv1.Op{opOf(get, 0)}},
		"long value":       {Keys: keysOf("a"), ThenOps: []*kvv1.Op{opPut(0, strings.Repeat("v", keyspace.MaxValueBytes+1))}},
		"client 0":         {Id: &kvv1.CommandId{Sequence: 1}, Keys: keysOf("a"), ThenOps: []*kvv1.Op{opOf(get, 0)}},
		"range and others": {Keys: keysOf("a"), ThenOps: []*kvv1.Op{opOf(kvv1.OpKind_OP_KIND_SCAN_RANGE, 0), opOf(get, 0)}},
		"nil op":           {Keys: keysOf("a"), ThenOps: []*kvv1.Op{nil}},
		"nil":              nil,
	} {
		err := Validate(cmd)
		var commandError *CommandError
		if !errors.As(err, &commandError) || name == "long key" && !errors.As(err, &keyError) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Validate(&kvv1.Command{Keys: keysOf(""), ThenOps: []*kvv1.Op{opOf(kvv1.OpKind_OP_KIND_SCAN_RANGE, 0)}}); err != nil {
		t.Errorf("a scan from the first key: %v", err)
	}
}

// TestSizes: the size of a vertex is that of its keys and values when the copy
// was taken, whatever is written later.
func TestSizes(t *testing.T) {
	s := newOneShard(t, Config{})
	for i, key := range []string{"{v}a", "{v}bc", "w"} {
		cmd := putCommand([]byte(key), i, 0)
		cmd.ThenOps[0].Value = make([]byte, 10)
		s.do(cmd)
	}
	sizes := s.c.Sizes()
	cmd := putCommand([]byte("{v}later"), 9, 0)
	s.do(cmd)
	for vertex, want := range map[keyspace.Vertex]uint64{"v": 4 + 10 + 5 + 10, "w": 11, "nobody": 0} {
		if got, known := sizes.Of(vertex); got != want || known != (want > 0) {
			t.Errorf("vertex %s: %d bytes, known %v; want %d", vertex, got, known, want)
		}
	}
}
