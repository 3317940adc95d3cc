// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package ir

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kolocate/kolocate/services/keyspace"
)

func valid() *Edge {
	e := &Edge{
		Epoch:  3,
		Store:  "s",
		Oracle: []string{"127.0.0.1:7100"},
		Shards: []Shard{
			{ID: 1, Replicas: []Endpoint{{Address: "127.0.0.1:7000", Leader: true}}},
			{ID: 2},
		},
		Overrides: []Override{{Vertex: "a", Shard: 2}, {Vertex: "b c\x00", Shard: 1}},
		Listener:  "0.0.0.0:8080",
	}
	for slot := range e.Slots {
		e.Slots[slot] = keyspace.ShardID(1 + slot%2)
	}
	return e
}

func TestValidateAccepts(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestValidateNamesTheFault(t *testing.T) {
	for want, spoil := range map[string]func(*Edge){
		"epoch is 0":                            func(e *Edge) { e.Epoch = 0 },
		"no shards":                             func(e *Edge) { e.Shards = nil },
		"shard-1 is listed twice":               func(e *Edge) { e.Shards[1].ID = 1 },
		"shard id 65: expected 1 to 64":         func(e *Edge) { e.Shards[1].ID = 65 },
		"slot 7 has no shard":                   func(e *Edge) { e.Slots[7] = 0 },
		"slot 9 is at shard-3":                  func(e *Edge) { e.Slots[9] = 3 },
		`vertex "a" names shard 5`:              func(e *Edge) { e.Overrides[0].Shard = 5 },
		`vertex "a" is listed twice`:            func(e *Edge) { e.Overrides[1].Vertex = "a" },
		`override of vertex ""`:                 func(e *Edge) { e.Overrides[1].Vertex = "" },
		`address "nowhere": expected host:port`: func(e *Edge) { e.Shards[0].Replicas[0].Address = "nowhere" },
		"expected a port from 1 to 65535":       func(e *Edge) { e.Shards[0].Replicas[0].Address = "h:99999" },
		`address "127.0.0.1:7000" is listed`: func(e *Edge) {
			e.Shards[0].Replicas = append(e.Shards[0].Replicas, e.Shards[0].Replicas[0])
		},
		"no oracle address":            func(e *Edge) { e.Oracle = nil },
		`oracle: address ":1"`:         func(e *Edge) { e.Oracle = []string{":1"} },
		"expected an IP address":       func(e *Edge) { e.Listener = "localhost:80" },
		`listener: address ""`:         func(e *Edge) { e.Listener = "" },
		"bound of overrides is -1":     func(e *Edge) { e.MaxOverrides = -1 },
		"health check interval is -1n": func(e *Edge) { e.HealthInterval = -1 },
	} {
		e := valid()
		spoil(e)
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestOverridesBeyondTheBoundAreReported(t *testing.T) {
	e := valid()
	e.Overrides = nil
	for i := range 12 {
		e.Overrides = append(e.Overrides, Override{Vertex: keyspace.Vertex(fmt.Sprint(i)), Shard: 1})
	}
	e.MaxOverrides = 10
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	if kept := e.Kept(); len(kept) != 10 || kept[0].Vertex != "0" || e.Dropped() != 2 {
		t.Errorf("kept %v, dropped %d; want the first 10, 2 dropped", kept, e.Dropped())
	}
}
