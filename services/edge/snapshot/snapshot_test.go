// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"strings"
	"testing"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/translate"
	"github.com/kolocate/kolocate/services/keyspace"
)

func edgeOf(shards, overrides int) *ir.Edge {
	e := &ir.Edge{Epoch: 4, Store: "s", Listener: "127.0.0.1:8080", Oracle: []string{"127.0.0.1:7100"}}
	for i := range shards {
		id := keyspace.ShardID(i + 1)
		e.Shards = append(e.Shards, ir.Shard{ID: id, Replicas: []ir.Endpoint{{Address: fmt.Sprintf("127.0.0.1:%d", 7000+i)}}})
	}
	for slot := range e.Slots {
		e.Slots[slot] = keyspace.ShardID(slot*shards/keyspace.Slots + 1)
	}
	for i := range overrides {
		e.Overrides = append(e.Overrides, ir.Override{
			Vertex: keyspace.Vertex(fmt.Sprintf("user/%d", i)), Shard: keyspace.ShardID(i%shards + 1),
		})
	}
	return e
}

func build(t *testing.T, e *ir.Edge) *Snapshot {
	t.Helper()
	s, err := Build(e)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestVersionFollowsContent(t *testing.T) {
	first := build(t, edgeOf(2, 3))
	again := build(t, edgeOf(2, 3))
	if first.Version() != again.Version() {
		t.Errorf("equal edges have versions %s and %s", first.Version(), again.Version())
	}
	e := edgeOf(2, 3)
	e.Epoch = 5
	if later := build(t, e); later.Hash != first.Hash || later.Version() == first.Version() {
		t.Errorf("a later epoch alone changed the hash from %s to %s, or did not change the version", first.Hash, later.Hash)
	}
	e.Overrides[0].Shard = 2
	moved := build(t, e)
	if moved.Hash == first.Hash {
		t.Error("a moved override did not change the hash")
	}
	for _, kind := range Kinds {
		for name, version := range moved.GetVersionMap(kind) {
			changed := version != first.GetVersionMap(kind)[name]
			if changed != (kind == resourcev3.RouteType) {
				t.Errorf("a moved override: %s %s changed: %v", kind, name, changed)
			}
		}
	}
}

func TestInvalidIsRefused(t *testing.T) {
	e := edgeOf(2, 0)
	e.Slots[5] = 9
	if _, err := Build(e); err == nil || !strings.Contains(err.Error(), "slot 5") {
		t.Errorf("got %v, want an error about slot 5", err)
	}
	resources := func() *translate.Resources {
		r, err := translate.Translate(edgeOf(2, 0))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := resources()
	r.Endpoints = r.Endpoints[1:]
	if _, err := FromResources(1, r); err == nil {
		t.Error("a cluster without its endpoints was accepted")
	}
	r = resources()
	r.Routes[0].VirtualHosts[0].Domains = nil
	if _, err := FromResources(1, r); err == nil || !strings.Contains(err.Error(), "Domains") {
		t.Errorf("got %v, want an error about the missing domains", err)
	}
}

func BenchmarkBuild50000Overrides(b *testing.B) {
	e := edgeOf(8, 50_000)
	for b.Loop() {
		if _, err := Build(e); err != nil {
			b.Fatal(err)
		}
	}
}
