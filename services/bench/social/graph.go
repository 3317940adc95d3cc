// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package social owns the social-network workload: its graph, its timelines in
// a store, and the model that every reply is checked against.
// It starts no servers and prints nothing. The demo and the load Job call it.
package social

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Graph is a network of users with symmetric friendships: each friend of a user
// follows the user. Users are numbered from 0. A Graph is immutable.
type Graph struct {
	names   []uint64 // as in the file it was read from
	offsets []uint32 // friends[offsets[u]:offsets[u+1]] are those of u, ascending
	friends []uint32
}

// Users returns the number of users.
func (g *Graph) Users() int { return len(g.names) }

// Edges returns the number of friendships.
func (g *Graph) Edges() int { return len(g.friends) / 2 }

// Friends returns a user's friends, ascending. The caller must not change it.
func (g *Graph) Friends(user int) []uint32 {
	return g.friends[g.offsets[user]:g.offsets[user+1]]
}

// Name returns the number that a user has in keys: the one in the file.
func (g *Graph) Name(user int) uint64 { return g.names[user] }

type edge struct{ a, b uint32 }

// newGraph drops loops and repeated edges. It keeps edges.
func newGraph(names []uint64, edges []edge) *Graph {
	for i, e := range edges {
		if e.a > e.b {
			edges[i] = edge{e.b, e.a}
		}
	}
	slices.SortFunc(edges, func(x, y edge) int { return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b)) })
	edges = slices.Compact(edges)
	edges = slices.DeleteFunc(edges, func(e edge) bool { return e.a == e.b })
	g := &Graph{names: names, offsets: make([]uint32, len(names)+1), friends: make([]uint32, 2*len(edges))}
	for _, e := range edges {
		g.offsets[e.a+1]++
		g.offsets[e.b+1]++
	}
	for u := range names {
		g.offsets[u+1] += g.offsets[u]
	}
	next := slices.Clone(g.offsets)
	// In the order of the edges, each user gets first the lower friends, then the higher.
	for _, e := range edges {
		g.friends[next[e.b]] = e.a
		next[e.b]++
	}
	for _, e := range edges {
		g.friends[next[e.a]] = e.b
		next[e.a]++
	}
	return g
}

// GenerateConfig describes a generated network. A zero field takes its default.
type GenerateConfig struct {
	// Users, 2 to 10,000,000; default 10,000.
	Users int
	// Communities, 1 to Users; default one for 125 users.
	Communities int
	// MeanFriends is about the mean number of friends; default 20.
	MeanFriends float64
	// Mixing is the share of friendships that ignore communities, 0 to 1; default 0.02.
	Mixing float64
	// Seed makes the same network again.
	Seed uint64
}

const (
	defaultUsers       = 10_000
	maxUsers           = 10_000_000
	usersPerCommunity  = 125
	defaultMeanFriends = 20
	defaultMixing      = 0.02
	// Degrees follow a power law of this exponent, as measured in social networks.
	degreeExponent = 2.5
	// A user has at most this many times the mean number of friends.
	maxDegreeFactor = 10
)

func (c GenerateConfig) withDefaults() (GenerateConfig, error) {
	c.Users = cmp.Or(c.Users, defaultUsers)
	c.Communities = cmp.Or(c.Communities, max(1, c.Users/usersPerCommunity))
	c.MeanFriends = cmp.Or(c.MeanFriends, defaultMeanFriends)
	c.Mixing = cmp.Or(c.Mixing, defaultMixing)
	switch {
	case c.Users < 2 || c.Users > maxUsers:
		return c, fmt.Errorf("generate network: %d users, expected 2 to %d", c.Users, maxUsers)
	case c.Communities < 1 || c.Communities > c.Users:
		return c, fmt.Errorf("generate network: %d communities, expected 1 to the number of users, %d", c.Communities, c.Users)
	case c.MeanFriends < 1 || c.MeanFriends > float64(c.Users-1):
		return c, fmt.Errorf("generate network: %v friends on average, expected 1 to %d", c.MeanFriends, c.Users-1)
	case c.Mixing < 0 || c.Mixing > 1:
		return c, fmt.Errorf("generate network: mixing of %v, expected 0 to 1", c.Mixing)
	}
	return c, nil
}

// Generate draws a network with planted communities (A. Condon and R. Karp,
// "Algorithms for graph partitioning on the planted partition model", 2001) and
// power-law degrees, by pairing stubs inside each community and over all.
func Generate(config GenerateConfig) (*Graph, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(config.Seed, 0x50c1a1))
	names := make([]uint64, config.Users)
	inside := make([][]uint32, config.Communities)
	var outside []uint32
	// Communities are drawn, so that a user's number does not tell the community.
	for position, user := range random.Perm(config.Users) {
		community := position % config.Communities
		stub := uint32(user) //nolint:gosec // below maxUsers
		names[user] = uint64(stub)
		for range drawDegree(random, config) {
			if random.Float64() < config.Mixing {
				outside = append(outside, stub)
			} else {
				inside[community] = append(inside[community], stub)
			}
		}
	}
	edges := pair(random, outside, nil)
	for _, stubs := range inside {
		edges = pair(random, stubs, edges)
	}
	return newGraph(names, edges), nil
}

// drawDegree draws from a Pareto distribution of the configured mean, cut at its top.
func drawDegree(random *rand.Rand, config GenerateConfig) int {
	lowest := config.MeanFriends * (degreeExponent - 2) / (degreeExponent - 1)
	degree := lowest * math.Pow(1-random.Float64(), -1/(degreeExponent-1))
	return int(min(degree, maxDegreeFactor*config.MeanFriends) + random.Float64())
}

func pair(random *rand.Rand, stubs []uint32, edges []edge) []edge {
	random.Shuffle(len(stubs), func(i, j int) { stubs[i], stubs[j] = stubs[j], stubs[i] })
	for i := 0; i+1 < len(stubs); i += 2 {
		edges = append(edges, edge{stubs[i], stubs[i+1]})
	}
	return edges
}
