// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trace owns the bounded sketches in which a shard gathers which
// vertices are used and which are used together. It does no I/O, has no clock
// and no goroutine. The shard's leader feeds it and sends its reports to the oracle.
package trace

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// CliqueLimit is the number of vertices up to which a command adds an edge
// between every two of them. A larger one adds a star: edges from its first
// vertex (the key declared first, by custom the one the command is about) to
// each other, so that a command of 4,096 vertices costs 4,095 edges and not 8
// million. Either way the edges of a command weigh 1 together.
const CliqueLimit = 8

// Config bounds a sketch. Zero values stand for the defaults.
type Config struct {
	// Store and Shard are written into the reports.
	Store string
	Shard keyspace.ShardID
	// Seed of the reservoir's draw.
	Seed uint64
	// Vertices held one by one (32,768) and Edges (262,144). Beyond, the lightest fall out.
	Vertices, Edges int
	// Commands of two vertices or more held in the reservoir (8,192), and the
	// vertices of all of them together (524,288).
	Commands, CommandVertices int
	// SizeOf returns the bytes that a vertex of this shard occupies, if it is
	// known. Without it the largest write seen stands for the size. It is called in Report.
	SizeOf func(keyspace.Vertex) (bytes uint64, known bool)
}

func (c Config) withDefaults() Config {
	for _, bound := range []struct {
		value *int
		usual int
	}{{&c.Vertices, 32768}, {&c.Edges, 262144}, {&c.Commands, 8192}, {&c.CommandVertices, 524288}} {
		if *bound.value <= 0 {
			*bound.value = bound.usual
		}
	}
	return c
}

// Sketch gathers the sampled commands of one window. One goroutine owns it.
type Sketch struct {
	config   Config
	random   *rand.Rand
	vertices *summary[keyspace.Vertex]
	edges    *summary[edge]
	commands *reservoir
	// Touches and written bytes of all vertices by slot, held one by one or not.
	slots [keyspace.Slots]slotUse
	// Weight of the commands of one vertex, and of more.
	single, multi float64
	observed      uint64
	seen          map[keyspace.Vertex]struct{}
	distinct      []keyspace.Vertex
}

type edge struct{ a, b keyspace.Vertex }

type slotUse struct {
	count float64
	bytes uint64
}

// NewSketch returns an empty sketch. At the default bounds it takes about
// 60 MB when full with vertices of 20 bytes.
func NewSketch(config Config) *Sketch {
	config = config.withDefaults()
	return &Sketch{
		config:   config,
		random:   rand.New(rand.NewPCG(config.Seed, 0x736b65746368)),
		vertices: newSummary[keyspace.Vertex](config.Vertices),
		edges:    newSummary[edge](config.Edges),
		commands: newReservoir(config.Commands, config.CommandVertices),
		seen:     make(map[keyspace.Vertex]struct{}),
	}
}

// Observe counts one executed command: the vertices it declared, the bytes it
// wrote in all, and its weight, the number of executed commands that it stands
// for (what Sampler.Next returned). A command that ran over several shards is
// observed by its coordinator alone, with the vertices of all shards. The
// arguments are not kept. A weight that is not above 0 counts nothing.
func (s *Sketch) Observe(vertices []keyspace.Vertex, written uint64, weight float64) {
	if len(vertices) == 0 || !(weight > 0) {
		return
	}
	s.observed++
	vertices = s.dedupe(vertices)
	each := written / uint64(len(vertices))
	for _, v := range vertices {
		slot := &s.slots[keyspace.SlotOf(v)]
		slot.count += weight
		slot.bytes = max(slot.bytes, each)
		s.vertices.add(v, weight, each, cloneVertex)
	}
	if len(vertices) == 1 {
		s.single += weight
		return
	}
	s.multi += weight
	s.addEdges(vertices, weight)
	s.commands.offer(s.random, vertices, weight, s.own)
}

// dedupe returns each vertex once, in the order of first mention.
func (s *Sketch) dedupe(vertices []keyspace.Vertex) []keyspace.Vertex {
	if len(vertices) == 1 {
		return vertices
	}
	clear(s.seen)
	s.distinct = s.distinct[:0]
	for _, v := range vertices {
		if _, again := s.seen[v]; !again {
			s.seen[v] = struct{}{}
			s.distinct = append(s.distinct, v)
		}
	}
	return s.distinct
}

func (s *Sketch) addEdges(vertices []keyspace.Vertex, weight float64) {
	n := len(vertices)
	if n > CliqueLimit {
		each := weight / float64(n-1)
		for _, v := range vertices[1:] {
			s.addEdge(vertices[0], v, each)
		}
		return
	}
	each := weight / float64(n*(n-1)/2)
	for i, a := range vertices {
		for _, b := range vertices[i+1:] {
			s.addEdge(a, b, each)
		}
	}
}

func (s *Sketch) addEdge(a, b keyspace.Vertex, weight float64) {
	if b < a {
		a, b = b, a
	}
	s.edges.add(edge{a, b}, weight, 0, func(e edge) edge { return edge{s.own(e.a), s.own(e.b)} })
}

// own returns the vertex in memory of the sketch's own: a vertex given to
// Observe may share memory with a whole command of megabytes.
func (s *Sketch) own(v keyspace.Vertex) keyspace.Vertex {
	if at, held := s.vertices.index[v]; held {
		return s.vertices.entries[at].key
	}
	return cloneVertex(v)
}

func cloneVertex(v keyspace.Vertex) keyspace.Vertex { return keyspace.Vertex(strings.Clone(string(v))) }

// Observed returns the number of commands observed since the last report.
func (s *Sketch) Observed() uint64 { return s.observed }

// Report returns what was gathered over the window that ends now, and empties
// the sketch. rate is the sampling rate in force, for the record: the weights
// carry it already. The order of the parts is the same for the same input.
// A full sketch takes some 100 ms to report: a busy caller observes into a
// second sketch meanwhile and reports the first from another goroutine.
//
// The slots carry what the vertices do not: over any slot, the counts less
// errors of its vertices and the count of its rest add up to all its touches.
func (s *Sketch) Report(window time.Duration, rate float64) *oraclev1.ReportRequest {
	r := &oraclev1.ReportRequest{
		Store: s.config.Store, Shard: uint32(s.config.Shard), SampleRate: rate,
		SingleVertexCommands: s.single, MultiVertexCommands: s.multi, WindowSeconds: window.Seconds(),
	}
	s.reportVertices(r)
	slices.SortFunc(s.edges.entries, func(x, y entry[edge]) int {
		return cmp.Or(cmp.Compare(x.key.a, y.key.a), cmp.Compare(x.key.b, y.key.b))
	})
	for _, e := range s.edges.entries {
		r.Edges = append(r.Edges, &oraclev1.TracedEdge{A: []byte(e.key.a), B: []byte(e.key.b), Weight: e.count, Error: e.error})
	}
	s.reportCommands(r)
	s.reset()
	return r
}

func (s *Sketch) reportVertices(r *oraclev1.ReportRequest) {
	slices.SortFunc(s.vertices.entries, func(x, y entry[keyspace.Vertex]) int { return cmp.Compare(x.key, y.key) })
	for _, e := range s.vertices.entries {
		bytes := e.bytes
		if s.config.SizeOf != nil {
			if size, known := s.config.SizeOf(e.key); known {
				bytes = size
			}
		}
		r.Vertices = append(r.Vertices, &oraclev1.TracedVertex{Vertex: []byte(e.key), Count: e.count, Error: e.error, Bytes: bytes})
		s.slots[keyspace.SlotOf(e.key)].count -= e.count - e.error
	}
	if !s.vertices.heaped {
		return // nothing fell out: what is left in the slots is rounding
	}
	for slot, use := range &s.slots {
		if use.count > 1e-6 {
			r.Slots = append(r.Slots, &oraclev1.TracedSlot{Slot: uint32(slot), Count: use.count, Bytes: use.bytes})
		}
	}
}

func (s *Sketch) reportCommands(r *oraclev1.ReportRequest) {
	slices.SortFunc(s.commands.held, func(x, y heldCommand) int { return cmp.Compare(x.order, y.order) })
	scale := s.commands.scale()
	for _, held := range s.commands.held {
		c := &oraclev1.TracedCommand{Weight: held.weight * scale}
		for _, v := range held.vertices {
			c.Vertices = append(c.Vertices, []byte(v))
		}
		r.Commands = append(r.Commands, c)
	}
}

func (s *Sketch) reset() {
	s.vertices.reset()
	s.edges.reset()
	s.commands.reset()
	clear(s.slots[:])
	s.single, s.multi, s.observed = 0, 0, 0
}

// String describes how full the sketch is.
func (s *Sketch) String() string {
	return fmt.Sprintf("%d vertices, %d edges and %d commands of %d observed",
		len(s.vertices.entries), len(s.edges.entries), len(s.commands.held), s.observed)
}
