// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// history is what a run did, key by key.
type history struct {
	writers map[string][]writer // ascending by version
	reads   []readOf
}

type writer struct {
	op      int
	version uint64
	deletes bool
}

type readOf struct {
	op      int
	key     string
	found   bool
	value   string
	version uint64
}

// check finds out whether the run was strictly serializable: a total order of
// all operations must exist that respects the order of writes to each key, what
// each read saw, and real time.
func (w *world) check() error {
	h, err := w.history()
	if err != nil {
		return err
	}
	if err := w.checkCounters(h); err != nil {
		return err
	}
	edges := make([][]int, len(w.ops)+1)
	for _, key := range sortedKeys(h.writers) {
		list := h.writers[key]
		for i := 1; i < len(list); i++ {
			edges[list[i-1].op] = append(edges[list[i-1].op], list[i].op)
		}
	}
	for _, r := range h.reads {
		next := 0 // position of the writer that follows what was read
		if r.found {
			at := slices.IndexFunc(h.writers[r.key], func(x writer) bool { return x.version == r.version })
			if at < 0 || strconv.Itoa(h.writers[r.key][at].op) != r.value {
				return fmt.Errorf("operation %d read %q of key %q at version %d, which no operation wrote then", r.op, r.value, r.key, r.version)
			}
			edges[h.writers[r.key][at].op] = append(edges[h.writers[r.key][at].op], r.op)
			next = at + 1
		} else if slices.ContainsFunc(h.writers[r.key], func(x writer) bool { return x.deletes }) {
			continue // before the first writer or after some delete: who knows
		}
		if next < len(h.writers[r.key]) && h.writers[r.key][next].op != r.op {
			edges[r.op] = append(edges[r.op], h.writers[r.key][next].op)
		}
	}
	for _, a := range w.ops {
		for _, b := range w.ops {
			if a.returned < b.called {
				edges[a.number] = append(edges[a.number], b.number)
			}
		}
	}
	for i := range edges { // an operation that reads its own key's writer twice is no cycle
		edges[i] = slices.DeleteFunc(edges[i], func(to int) bool { return to == i })
	}
	if cycle := findCycle(edges); cycle != nil {
		return fmt.Errorf("not strictly serializable: the operations %v form a cycle:%s", cycle, w.describe(cycle))
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (w *world) history() (*history, error) {
	h := &history{writers: map[string][]writer{}}
	for _, op := range w.ops {
		for i, o := range op.command.ThenOps {
			result := op.result.Ops[i]
			key := string(op.command.Keys[o.Key])
			switch o.Kind {
			case kvv1.OpKind_OP_KIND_GET:
				h.reads = append(h.reads, readOf{op: op.number, key: key, found: result.Found, value: string(result.Value), version: result.Version})
			case kvv1.OpKind_OP_KIND_PUT:
				h.writers[key] = append(h.writers[key], writer{op: op.number, version: result.Version})
			case kvv1.OpKind_OP_KIND_DELETE:
				if result.Found {
					h.writers[key] = append(h.writers[key], writer{op: op.number, version: result.Version, deletes: true})
				}
			case kvv1.OpKind_OP_KIND_SCAN_VERTEX:
				h.addScan(w, op, result, keyspace.VertexOf(key))
			case kvv1.OpKind_OP_KIND_SCAN_RANGE:
				h.addScan(w, op, result, "")
			}
		}
	}
	for key, list := range h.writers {
		slices.SortFunc(list, func(a, b writer) int { return cmp.Compare(a.version, b.version) })
		for i := 1; i < len(list); i++ {
			if list[i].version == list[i-1].version {
				return nil, fmt.Errorf("operations %d and %d wrote key %q at the same version %d", list[i-1].op, list[i].op, key, list[i].version)
			}
		}
	}
	return h, nil
}

// addScan turns a scan into a read of every key there could be in its range.
func (h *history) addScan(w *world, op *operation, result *kvv1.OpResult, only keyspace.Vertex) {
	seen := map[string]*kvv1.KeyValue{}
	last := ""
	for _, e := range result.Entries {
		if string(e.Key) <= last {
			w.fail("operation %d scanned key %q after %q", op.number, e.Key, last)
		}
		last = string(e.Key)
		seen[last] = e
	}
	for _, v := range w.vertices {
		if only != "" && v != only {
			continue
		}
		for _, suffix := range []string{"a", "b", "d"} {
			key := "{" + string(v) + "}" + suffix
			e := seen[key]
			h.reads = append(h.reads, readOf{op: op.number, key: key, found: e != nil, value: string(e.GetValue()), version: e.GetVersion()})
		}
	}
}

// checkCounters makes sure that every update ran exactly once: each one counted
// in its vertices, no count was given twice and none is missing at the end.
func (w *world) checkCounters(h *history) error {
	counts := map[string][]int64{}
	for _, op := range w.ops {
		for i, o := range op.command.ThenOps {
			if o.Kind == kvv1.OpKind_OP_KIND_INCREMENT {
				key := string(op.command.Keys[o.Key])
				counts[key] = append(counts[key], op.result.Ops[i].Number)
			}
		}
	}
	for _, v := range w.vertices {
		key := "{" + string(v) + "}n"
		list := counts[key]
		slices.Sort(list)
		for i, n := range list {
			if n != int64(i+1) {
				return fmt.Errorf("counter %q gave %v: an update ran twice or got lost", key, list)
			}
		}
		if err := w.checkEnd(v, key, int64(len(list)), h); err != nil {
			return err
		}
	}
	return nil
}

// checkEnd looks at what the vertex's owner holds at the end.
func (w *world) checkEnd(v keyspace.Vertex, counter string, count int64, h *history) error {
	var owner *node
	for _, n := range w.nodes {
		if owned, _, _ := n.core.Owns(v); owned {
			if owner != nil {
				return fmt.Errorf("vertex %q is owned by %v and %v", v, owner.id, n.id)
			}
			owner = n
		}
	}
	if owner == nil {
		return fmt.Errorf("vertex %q is owned by no shard", v)
	}
	held, found := owner.core.keys.get(counter)
	if found && string(held.value) != fmt.Sprint(count) || !found && count != 0 {
		return fmt.Errorf("counter %q ends at %q, but %d updates were acknowledged", counter, held.value, count)
	}
	for _, suffix := range []string{"a", "b", "d"} {
		key := "{" + string(v) + "}" + suffix
		held, found := owner.core.keys.get(key)
		list := h.writers[key]
		if found != (len(list) > 0 && !list[len(list)-1].deletes) || found && held.version != list[len(list)-1].version {
			return fmt.Errorf("key %q ends at version %d, the writers were %v", key, held.version, list)
		}
	}
	return nil
}

// findCycle returns a cycle of the graph, or nil if there is none.
func findCycle(edges [][]int) []int {
	const (
		fresh = iota
		open
		closed
	)
	state := make([]int, len(edges))
	var path []int
	var visit func(n int) []int
	visit = func(n int) []int {
		state[n] = open
		path = append(path, n)
		for _, to := range edges[n] {
			switch state[to] {
			case open:
				return path[slices.Index(path, to):]
			case fresh:
				if cycle := visit(to); cycle != nil {
					return cycle
				}
			}
		}
		path = path[:len(path)-1]
		state[n] = closed
		return nil
	}
	for n := range edges {
		if state[n] == fresh {
			if cycle := visit(n); cycle != nil {
				return cycle
			}
		}
	}
	return nil
}
