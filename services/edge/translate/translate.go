// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package translate owns the form of Envoy's configuration: it turns an
// ir.Edge into xDS resources, and writes the bootstrap file that finds them.
// It is pure: no I/O, no state. snapshot, the operator and the demo call it.
package translate

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/kolocate/kolocate/services/edge/ir"
)

// Names of resources that do not depend on the store.
const (
	ListenerName = "store"
	RouteName    = "placement"
	// OracleCluster is the oracle's replicas; AnyShardCluster every shard leader.
	OracleCluster   = "oracle"
	AnyShardCluster = "any-shard"
)

// Headers that clients send.
const (
	// HeaderKey carries a thin request's key, percent-encoded outside visible ASCII.
	HeaderKey = "x-kolocate-key"
	// HeaderShard carries the name of the shard that a stream is for.
	HeaderShard = "x-kolocate-shard"
)

// Headers that the Lua filter sets for the route table, and clients can't.
const (
	headerVertex = "x-kolocate-vertex"
	headerPage   = "x-kolocate-page"
	headerSlot   = "x-kolocate-slot"
)

// Resources are the xDS resources of one edge, each kind in a fixed order.
type Resources struct {
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
	Endpoints []*endpointv3.ClusterLoadAssignment
}

// Translate returns the resources for a validated edge. Equal edges give
// resources of equal deterministic encoding, whatever their epoch.
func Translate(edge *ir.Edge) (*Resources, error) {
	listener, err := listenerFor(edge)
	if err != nil {
		return nil, fmt.Errorf("translate edge of store %q at epoch %d: %w", edge.Store, edge.Epoch, err)
	}
	routes, err := routesFor(edge)
	if err != nil {
		return nil, fmt.Errorf("translate edge of store %q at epoch %d: %w", edge.Store, edge.Epoch, err)
	}
	r := &Resources{
		Listeners: []*listenerv3.Listener{listener},
		Routes:    []*routev3.RouteConfiguration{routes},
	}
	if err := r.addClusters(edge); err != nil {
		return nil, fmt.Errorf("translate edge of store %q at epoch %d: %w", edge.Store, edge.Epoch, err)
	}
	return r, nil
}

// pack checks a message by its own rules and encodes it deterministically, so
// that equal configurations hash equally.
func pack(m proto.Message) (*anypb.Any, error) {
	if checked, ok := m.(interface{ ValidateAll() error }); ok {
		if err := checked.ValidateAll(); err != nil {
			return nil, fmt.Errorf("check %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
	}
	packed := new(anypb.Any)
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return packed, nil
}
