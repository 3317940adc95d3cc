// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/keyspace"
)

// pageSlots is the number of slots of a page. A page whose slots are all at one
// shard is one entry of the route table; the Lua filter computes the same pages.
const pageSlots = 128

// Retries of a request that was not run, spread over an election of a second.
const (
	retries       = 10
	retryPause    = 25 * time.Millisecond
	maxRetryPause = 250 * time.Millisecond
)

// routesFor returns one virtual host with one matcher tree: the vertex, else
// its slot, else the oracle's services, else the shard that is named, else any.
// The retry policy of the virtual host is safe for calls: a shard answers
// UNAVAILABLE only to what it has not run.
func routesFor(edge *ir.Edge) (*routev3.RouteConfiguration, error) {
	b, err := newRouteBuilder(edge)
	if err != nil {
		return nil, err
	}
	shard, err := b.shardMatcher()
	if err != nil {
		return nil, err
	}
	oracle, err := b.oracleMatcher(otherwise(shard))
	if err != nil {
		return nil, err
	}
	slots, err := b.slotMatcher(edge, otherwise(oracle))
	if err != nil {
		return nil, err
	}
	tree := slots
	if len(edge.Kept()) > 0 {
		if tree, err = b.vertexMatcher(edge, otherwise(slots)); err != nil {
			return nil, err
		}
	}
	return &routev3.RouteConfiguration{
		Name: RouteName,
		VirtualHosts: []*routev3.VirtualHost{{
			Name:                   "store",
			Domains:                []string{"*"},
			Matcher:                tree,
			RetryPolicy:            retryPolicy("connect-failure,refused-stream,reset-before-request,unavailable"),
			RequestHeadersToRemove: []string{headerVertex, headerPage, headerSlot},
		}},
	}, nil
}

func retryPolicy(on string) *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    on,
		NumRetries: wrapperspb.UInt32(retries),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(retryPause),
			MaxInterval:  durationpb.New(maxRetryPause),
		},
	}
}

type onMatch = xdsmatcherv3.Matcher_OnMatch

func otherwise(m *xdsmatcherv3.Matcher) *onMatch {
	return &onMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Matcher{Matcher: m}}
}

// routeBuilder shares one action among all entries of a shard.
type routeBuilder struct {
	shards map[keyspace.ShardID]*onMatch
}

func newRouteBuilder(edge *ir.Edge) (*routeBuilder, error) {
	b := &routeBuilder{shards: make(map[keyspace.ShardID]*onMatch, len(edge.Shards))}
	for _, shard := range edge.Shards {
		action, err := routeTo(toCluster(shard.ID.String()))
		if err != nil {
			return nil, err
		}
		b.shards[shard.ID] = action
	}
	return b, nil
}

func (b *routeBuilder) to(shard keyspace.ShardID) (*onMatch, error) {
	action, ok := b.shards[shard]
	if !ok {
		return nil, fmt.Errorf("%v is not among the edge's shards: validate the edge first", shard)
	}
	return action, nil
}

func toCluster(name string) *routev3.RouteAction {
	return &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}}
}

// routeTo has no time limit: the Lua filter sets one for calls, and streams have none.
func routeTo(action *routev3.RouteAction) (*onMatch, error) {
	action.Timeout = durationpb.New(0)
	packed, err := pack(&routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: action},
	})
	if err != nil {
		return nil, err
	}
	return &onMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
		Action: &xdscorev3.TypedExtensionConfig{Name: "route", TypedConfig: packed},
	}}, nil
}

func (b *routeBuilder) vertexMatcher(edge *ir.Edge, rest *onMatch) (*xdsmatcherv3.Matcher, error) {
	kept := edge.Kept()
	entries := make(map[string]*onMatch, len(kept))
	for _, override := range kept {
		action, err := b.to(override.Shard)
		if err != nil {
			return nil, err
		}
		entries[EncodeHeader(string(override.Vertex))] = action
	}
	return exact(headerVertex, entries, rest)
}

// slotMatcher matches pages, and inside a page of several shards its slots.
func (b *routeBuilder) slotMatcher(edge *ir.Edge, rest *onMatch) (*xdsmatcherv3.Matcher, error) {
	pages := make(map[string]*onMatch, keyspace.Slots/pageSlots)
	for first := 0; first < keyspace.Slots; first += pageSlots {
		page, err := b.page(edge, first)
		if err != nil {
			return nil, err
		}
		pages[strconv.Itoa(first/pageSlots)] = page
	}
	return exact(headerPage, pages, rest)
}

func (b *routeBuilder) page(edge *ir.Edge, first int) (*onMatch, error) {
	slots := edge.Slots[first : first+pageSlots]
	home := slots[0]
	if !slices.ContainsFunc(slots, func(shard keyspace.ShardID) bool { return shard != home }) {
		return b.to(home)
	}
	entries := make(map[string]*onMatch, pageSlots)
	for i, shard := range slots {
		action, err := b.to(shard)
		if err != nil {
			return nil, err
		}
		entries[strconv.Itoa(first+i)] = action
	}
	m, err := exact(headerSlot, entries, nil)
	if err != nil {
		return nil, err
	}
	return otherwise(m), nil
}

func (b *routeBuilder) oracleMatcher(rest *onMatch) (*xdsmatcherv3.Matcher, error) {
	oracle, err := routeTo(toCluster(OracleCluster))
	if err != nil {
		return nil, err
	}
	input, err := headerInput(":path")
	if err != nil {
		return nil, err
	}
	return &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: &xdsmatcherv3.Matcher_MatcherTree{
			Input: input,
			TreeType: &xdsmatcherv3.Matcher_MatcherTree_PrefixMatchMap{PrefixMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{
				Map: map[string]*onMatch{
					"/kolocate.oracle.v1.Placement/": oracle,
					"/kolocate.oracle.v1.Admin/":     oracle,
				},
			}},
		}},
		OnNoMatch: rest,
	}, nil
}

// shardMatcher sends to the shard that is named, or else to any. The Lua filter
// has refused names that are not of a shard. Streams are not repeated once
// they carried something: only their client knows what was answered.
func (b *routeBuilder) shardMatcher() (*xdsmatcherv3.Matcher, error) {
	named, err := routeTo(&routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: HeaderShard},
		RetryPolicy:      retryPolicy("connect-failure,refused-stream,reset-before-request"),
	})
	if err != nil {
		return nil, err
	}
	anyShard, err := routeTo(toCluster(AnyShardCluster))
	if err != nil {
		return nil, err
	}
	input, err := headerInput(HeaderShard)
	if err != nil {
		return nil, err
	}
	return &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: &xdsmatcherv3.Matcher_MatcherTree{
			Input: input,
			TreeType: &xdsmatcherv3.Matcher_MatcherTree_PrefixMatchMap{PrefixMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{
				Map: map[string]*onMatch{"shard-": named},
			}},
		}},
		OnNoMatch: anyShard,
	}, nil
}

func exact(header string, entries map[string]*onMatch, rest *onMatch) (*xdsmatcherv3.Matcher, error) {
	input, err := headerInput(header)
	if err != nil {
		return nil, err
	}
	return &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: &xdsmatcherv3.Matcher_MatcherTree{
			Input: input,
			TreeType: &xdsmatcherv3.Matcher_MatcherTree_ExactMatchMap{
				ExactMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{Map: entries},
			},
		}},
		OnNoMatch: rest,
	}, nil
}

func headerInput(name string) (*xdscorev3.TypedExtensionConfig, error) {
	packed, err := pack(&matcherv3.HttpRequestHeaderMatchInput{HeaderName: name})
	if err != nil {
		return nil, err
	}
	return &xdscorev3.TypedExtensionConfig{Name: strings.TrimPrefix(name, ":"), TypedConfig: packed}, nil
}

// EncodeHeader percent-encodes a key or vertex for a header: % itself and every
// byte outside visible ASCII.
func EncodeHeader(text string) string {
	const digits = "0123456789ABCDEF"
	encoded := make([]byte, 0, len(text))
	for i := range len(text) {
		c := text[i]
		if c > ' ' && c <= '~' && c != '%' {
			encoded = append(encoded, c)
			continue
		}
		encoded = append(encoded, '%', digits[c>>4], digits[c&15])
	}
	return string(encoded)
}
