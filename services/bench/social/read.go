// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

const (
	// maxEdges bounds what a file may hold: 8 bytes of memory for each.
	maxEdges = 50_000_000
	// maxLineBytes bounds a line, so that a file of another kind is told soon.
	maxLineBytes = 4096
)

// ReadFile reads a network from an edge list: a line "a b" for each friendship,
// a and b being numbers; lines that start with # are left out. The file may be
// gzipped. Repeated edges, in either direction, count once, loops not at all.
func ReadFile(path string) (_ *Graph, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read graph: %w: name an edge list, one \"a b\" a line, plain or gzipped", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return Read(path, file)
}

// Read reads what ReadFile reads. Errors call the source by name.
func Read(name string, source io.Reader) (*Graph, error) {
	buffered := bufio.NewReader(source)
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read graph %q: %w", name, err)
	}
	var text io.Reader = buffered
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if text, err = gzip.NewReader(buffered); err != nil {
			return nil, fmt.Errorf("read graph %q: it starts as a gzip file, but is none: %w", name, err)
		}
	}
	return readEdges(name, text)
}

func readEdges(name string, text io.Reader) (*Graph, error) {
	var (
		edges []edge
		names []uint64
		index = make(map[uint64]uint32)
	)
	number := func(n uint64) uint32 {
		u, ok := index[n]
		if !ok {
			u = uint32(len(names)) //nolint:gosec // at most twice maxEdges
			index[n] = u
			names = append(names, n)
		}
		return u
	}
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, maxLineBytes), maxLineBytes)
	line := 0
	for lines.Scan() {
		line++
		content := bytes.TrimSpace(lines.Bytes())
		if len(content) == 0 || content[0] == '#' {
			continue
		}
		a, b, err := parseEdge(content)
		if err != nil {
			return nil, fmt.Errorf("read graph %q: line %d: %w", name, line, err)
		}
		if len(edges) == maxEdges {
			return nil, fmt.Errorf("read graph %q: line %d: more than %d edges: use a part of it", name, line, maxEdges)
		}
		edges = append(edges, edge{number(a), number(b)})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read graph %q: after line %d: %w; expected a line \"a b\" with two numbers for each edge", name, line, err)
	}
	g := newGraph(names, edges)
	if g.Edges() == 0 {
		return nil, fmt.Errorf("read graph %q: no edge in %d lines: expected a line \"a b\" with two different numbers for each edge", name, line)
	}
	return g, nil
}

func parseEdge(line []byte) (a, b uint64, err error) {
	fields := bytes.Fields(line)
	if len(fields) == 2 {
		a, errA := strconv.ParseUint(string(fields[0]), 10, 64)
		b, errB := strconv.ParseUint(string(fields[1]), 10, 64)
		if errA == nil && errB == nil {
			return a, b, nil
		}
	}
	return 0, 0, fmt.Errorf("%.40q: expected two numbers from 0 on, separated by a space", line)
}
