// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/keyspace"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; commit them only if you understand each change")

// scenario is an edge as the golden files spell it.
type scenario struct {
	Store     string
	Epoch     keyspace.Epoch
	Listener  string
	Oracle    []string
	AccessLog bool
	Slots     []struct {
		First, Last keyspace.Slot
		Shard       keyspace.ShardID
	}
	Overrides    []ir.Override
	MaxOverrides int
	Shards       []ir.Shard
}

func (s *scenario) edge() *ir.Edge {
	e := &ir.Edge{
		Store: s.Store, Epoch: s.Epoch, Listener: s.Listener, Oracle: s.Oracle, AccessLog: s.AccessLog,
		Overrides: s.Overrides, MaxOverrides: s.MaxOverrides, Shards: s.Shards,
	}
	for _, run := range s.Slots {
		for slot := run.First; slot <= run.Last; slot++ {
			e.Slots[slot] = run.Shard
		}
	}
	return e
}

func read(t *testing.T, path string) *ir.Edge {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s scenario
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	e := s.edge()
	if err := e.Validate(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return e
}

// golden leaves the text of the Lua filter to its own file, and writes a plain
// route to a cluster as one line.
func golden(t *testing.T, r *Resources) []byte {
	t.Helper()
	var out bytes.Buffer
	write := func(kind string, m proto.Message) {
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(text, &tree); err != nil {
			t.Fatal(err)
		}
		text, err = yaml.Marshal(fold(tree))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "--- # %s\n%s", kind, text)
	}
	for _, m := range r.Listeners {
		write("listener", m)
	}
	for _, m := range r.Routes {
		write("route", m)
	}
	for _, m := range r.Clusters {
		write("cluster", m)
	}
	for _, m := range r.Endpoints {
		write("endpoints", m)
	}
	return out.Bytes()
}

func fold(tree any) any {
	switch node := tree.(type) {
	case []any:
		for i := range node {
			node[i] = fold(node[i])
		}
	case map[string]any:
		if text, err := json.Marshal(node); err == nil {
			if found := plainRoute.FindSubmatch(text); found != nil {
				return "-> " + string(found[1])
			}
		}
		for name, child := range node {
			if text, ok := child.(string); ok && text == filterSource {
				child = "(filter.lua)"
			}
			node[name] = fold(child)
		}
	}
	return tree
}

var plainRoute = regexp.MustCompile(`^\{"action":\{"name":"route","typedConfig":\{"@type":"type\.googleapis\.com/envoy\.config\.route\.v3\.Route",` +
	`"match":\{"prefix":"/"\},"route":\{"cluster":"([a-z0-9-]+)","timeout":"0s"\}\}\}\}$`)

func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no golden inputs in testdata: %v", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in.yaml"), func(t *testing.T) {
			r, err := Translate(read(t, input))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, strings.TrimSuffix(input, ".in.yaml")+".out.yaml", golden(t, r))
		})
	}
}

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./services/edge/translate -rewrite", err)
	}
	if bytes.Equal(got, want) {
		return
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			t.Fatalf("%s:%d: got %q, want %q; if that is meant: go test ./services/edge/translate -rewrite", path, i+1, gotLines[i], wantLines[i])
		}
	}
	t.Fatalf("%s: got %d lines, want %d", path, len(gotLines), len(wantLines))
}

// Equal edges encode equally, whatever order their maps and lists came in.
func TestEncodingIsDeterministic(t *testing.T) {
	e := read(t, "testdata/overrides.in.yaml")
	encode := func() []byte {
		r, err := Translate(e)
		if err != nil {
			t.Fatal(err)
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Routes[0])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := encode()
	e.Shards[0], e.Shards[1] = e.Shards[1], e.Shards[0]
	for range 10 {
		if !bytes.Equal(first, encode()) {
			t.Fatal("two translations of one edge differ")
		}
	}
}

func TestEncodeHeader(t *testing.T) {
	for text, want := range map[string]string{
		"user/17": "user/17", "a b": "a%20b", "50%": "50%25", "\x00\xff\x7f": "%00%FF%7F", "{é}~!": "{%C3%A9}~!",
	} {
		if got := EncodeHeader(text); got != want {
			t.Errorf("EncodeHeader(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestBootstrap(t *testing.T) {
	text, err := Bootstrap(BootstrapConfig{
		Store: "social", NodeID: "edge-0", ControlPlane: []string{"social-oracle.default.svc:7100"}, Admin: "0.0.0.0:9901",
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/bootstrap.out.yaml", text)
	for _, bad := range []BootstrapConfig{
		{},
		{Store: "s", NodeID: "n", Admin: "0.0.0.0:1"},
		{Store: "s", NodeID: "n", Admin: "0.0.0.0", ControlPlane: []string{"h:1"}},
		{Store: "s", NodeID: "n", Admin: "0.0.0.0:1", ControlPlane: []string{"h"}},
	} {
		if _, err := Bootstrap(bad); err == nil {
			t.Errorf("Bootstrap(%+v) succeeded, want an error", bad)
		}
	}
}
