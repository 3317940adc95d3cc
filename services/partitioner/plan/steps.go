// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

func (m *model) slotOf(vertex []byte) keyspace.Slot { return keyspace.SlotOf(keyspace.Vertex(vertex)) }

// steps groups an order of moves into handoffs of at most size vertices, each
// from one shard to another. A group goes out when it is full; what is left at
// the end goes out in the order in which the groups were begun. Vertices go
// before slots.
func (m *model) steps(order []int32, shard []int32, size int) []*planv1.Step {
	type pair struct {
		from, to int32
		slots    bool
	}
	var steps []*planv1.Step
	before := m.crossing()
	open := make(map[pair][]int32)
	var begun []pair
	flush := func(p pair) {
		steps = append(steps, m.step(len(steps)+1, p.from, p.to, open[p], before))
		delete(open, p)
	}
	for _, slots := range []bool{false, true} {
		begun = begun[:0]
		for _, v := range order {
			if m.vertices[v].GetIsSlot() != slots {
				continue
			}
			p := pair{from: m.start[v], to: shard[v], slots: slots}
			if len(open[p]) == 0 {
				begun = append(begun, p)
			}
			open[p] = append(open[p], v)
			if len(open[p]) == size {
				flush(p)
			}
		}
		for _, p := range begun {
			if len(open[p]) > 0 {
				flush(p)
			}
		}
	}
	return steps
}

// crossings tells how the commands cross shards today.
type crossings struct {
	total float64 // weight of all that cross
	// By vertex, the commands that touch it.
	of       [][]int32
	commands []command
}

func (m *model) crossing() crossings {
	x := crossings{of: make([][]int32, len(m.vertices)), commands: merged(m.commands)}
	for i, c := range x.commands {
		if !crosses(c, m.start) {
			continue
		}
		x.total += c.weight
		for _, v := range c.vertices {
			x.of[v] = append(x.of[v], int32(i))
		}
	}
	return x
}

// step describes the handoff of some vertices, or of some slots.
func (m *model) step(number int, from, to int32, vertices []int32, x crossings) *planv1.Step {
	s := &planv1.Step{Number: uint32(number), From: m.shards[from], To: m.shards[to]} //nolint:gosec // bounded by the vertices
	touched := make(map[int32]bool)
	var weight, most float64
	lead := ""
	for _, v := range vertices {
		vertex := m.vertices[v]
		s.Bytes += vertex.GetBytes()
		s.Load += vertex.GetLoad()
		name := string(vertex.GetName())
		if vertex.GetIsSlot() {
			s.Slots = append(s.Slots, vertex.GetSlot())
			name = fmt.Sprintf("slot %d", vertex.GetSlot())
		} else {
			s.Vertices = append(s.Vertices, vertex.GetName())
		}
		if lead == "" || vertex.GetLoad() > most {
			lead, most = name, vertex.GetLoad()
		}
		for _, c := range x.of[v] {
			if !touched[c] && m.spans(x.commands[c], from, to) {
				touched[c] = true
				weight += x.commands[c].weight
			}
		}
	}
	s.Reason = m.reason(lead, len(vertices)-1, from, to, weight, x.total)
	return s
}

// spans says whether a command touches both shards today.
func (m *model) spans(c command, one, other int32) bool {
	var a, b bool
	for _, v := range c.vertices {
		a = a || m.start[v] == one
		b = b || m.start[v] == other
	}
	return a && b
}

func (m *model) reason(lead string, others int, from, to int32, weight, total float64) string {
	who := lead
	switch {
	case others == 1:
		who += " and 1 other"
	case others > 1:
		who += fmt.Sprintf(" and %d others", others)
	}
	pair := fmt.Sprintf("s%d–s%d", m.shards[from], m.shards[to])
	switch {
	case int(from) >= m.targets:
		return fmt.Sprintf("%s: s%d is to be emptied", who, m.shards[from])
	case weight > 0:
		return fmt.Sprintf("%s: %s of the multi-shard commands touch them and cross %s", who, percent(weight, total), pair)
	default:
		return fmt.Sprintf("%s: evens the load of %s", who, pair)
	}
}
