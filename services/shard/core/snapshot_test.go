// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	shardv1 "github.com/kolocate/kolocate/api/proto/shard/v1"
)

func TestSnapshotRefusesWhatIsNotItsOwn(t *testing.T) {
	s := newOneShard(t, Config{})
	for i := range 100 {
		s.do(counting(uint64(i+1), 0))
	}
	var buffer bytes.Buffer
	snapshot := s.c.Snapshot()
	hash := s.c.StateHash()
	s.do(counting(101, 0)) // later entries do not change the snapshot
	if _, err := snapshot.WriteTo(&buffer); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Store: "test", Shard: 1}
	restored, err := Restore(cfg, bytes.NewReader(buffer.Bytes()))
	if err != nil || restored.StateHash() != hash || restored.Applied() != snapshot.Applied() {
		t.Fatalf("restored: %v", err)
	}
	if _, err := Restore(Config{Store: "other", Shard: 1}, bytes.NewReader(buffer.Bytes())); err == nil || !strings.Contains(err.Error(), `"test"`) {
		t.Errorf("a snapshot of another store: %v", err)
	}
	for at := 0; at < buffer.Len(); at += 7 {
		torn := bytes.Clone(buffer.Bytes())
		torn[at] ^= 0x10
		if _, err := Restore(cfg, bytes.NewReader(torn)); err == nil {
			t.Errorf("a snapshot with byte %d changed was taken", at)
		}
		if _, err := Restore(cfg, bytes.NewReader(buffer.Bytes()[:at])); err == nil {
			t.Errorf("a snapshot cut at %d was taken", at)
		}
	}
}

// Whatever an entry holds, a replica must not fall over it.
func FuzzApply(f *testing.F) {
	seed, err := proto.Marshal(entryOf(putCommand([]byte("a"), 1, 1), counting(1, 0)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var e shardv1.Entry
		if proto.Unmarshal(data, &e) != nil {
			return
		}
		s := newOneShard(t, Config{})
		if _, err := s.c.Apply(2, &e); err != nil {
			return
		}
		if err := s.c.CheckInvariants(); err != nil {
			t.Fatal(err)
		}
		var buffer bytes.Buffer
		if _, err := s.c.Snapshot().WriteTo(&buffer); err != nil {
			t.Fatal(err)
		}
		restored, err := Restore(Config{Store: "test", Shard: 1}, &buffer)
		if err != nil || restored.StateHash() != s.c.StateHash() {
			t.Fatalf("the snapshot can't be restored: %v", err)
		}
	})
}

// Whatever bytes come as a snapshot, Restore returns an error or a core.
func FuzzRestore(f *testing.F) {
	c := New(Config{Store: "test", Shard: 1})
	var buffer bytes.Buffer
	if _, err := c.Snapshot().WriteTo(&buffer); err != nil {
		f.Fatal(err)
	}
	f.Add(buffer.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = Restore(Config{Store: "test", Shard: 1}, bytes.NewReader(data))
	})
}

// A snapshot is written by another goroutine while entries are applied.
func TestSnapshotIsWrittenBeside(t *testing.T) {
	s := newOneShard(t, Config{})
	for i := range 500 {
		s.do(&kvv1.Command{Id: &kvv1.CommandId{Client: 1, Sequence: uint64(i + 1)}, Keys: keysOf(fmt.Sprint(i)), ThenOps: []*kvv1.Op{opPut(0, "x")}})
	}
	hash := s.c.StateHash()
	snapshot := s.c.Snapshot()
	restored := make(chan uint64)
	go func() {
		var buffer bytes.Buffer
		if _, err := snapshot.WriteTo(&buffer); err != nil {
			t.Error(err)
		}
		c, err := Restore(Config{Store: "test", Shard: 1}, &buffer)
		if err != nil {
			t.Error(err)
			c = New(Config{Store: "test", Shard: 1})
		}
		restored <- c.StateHash()
	}()
	for i := range 500 {
		s.do(&kvv1.Command{
			Id:   &kvv1.CommandId{Client: 1, Sequence: uint64(i + 501), AcknowledgedBelow: uint64(i + 400)},
			Keys: keysOf(fmt.Sprint(i)), ThenOps: []*kvv1.Op{opOf(remove, 0)},
		})
	}
	if got := <-restored; got != hash {
		t.Errorf("the snapshot has the state hash %x, the state it was taken of had %x", got, hash)
	}
}
