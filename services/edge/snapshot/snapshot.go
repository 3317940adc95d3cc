// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshot owns what is published to Envoys at once: checked xDS
// resources with a version for each kind and each resource.
// It does no I/O and publishes nothing itself; serve does.
package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/translate"
	"github.com/kolocate/kolocate/services/keyspace"
)

// Kinds are the types of resources in a snapshot, in the order in which ADS
// should send them (xDS protocol, "Eventual consistency considerations").
var Kinds = []resourcev3.Type{
	resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType, resourcev3.RouteType,
}

// Snapshot is immutable. It implements cache.ResourceSnapshot.
type Snapshot struct {
	*cachev3.Snapshot
	// Epoch is that of the placement it was built from.
	Epoch keyspace.Epoch
	// Hash is that of the content, whatever the epoch.
	Hash string
}

// Build checks and translates an edge. Every resource is checked by its own
// rules and the references between them are followed, so that what Envoy would
// refuse is refused here.
func Build(edge *ir.Edge) (*Snapshot, error) {
	if err := edge.Validate(); err != nil {
		return nil, err
	}
	resources, err := translate.Translate(edge)
	if err != nil {
		return nil, err
	}
	return FromResources(edge.Epoch, resources)
}

// FromResources checks resources and gives them versions.
func FromResources(epoch keyspace.Epoch, r *translate.Resources) (*Snapshot, error) {
	byKind := map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType:  list(r.Clusters),
		resourcev3.EndpointType: list(r.Endpoints),
		resourcev3.ListenerType: list(r.Listeners),
		resourcev3.RouteType:    list(r.Routes),
	}
	for _, kind := range Kinds {
		for _, resource := range byKind[kind] {
			if err := check(resource); err != nil {
				return nil, fmt.Errorf("check edge snapshot of epoch %d: %s %q: %w", epoch, kind, cachev3.GetResourceName(resource), err)
			}
		}
	}
	built, err := cachev3.NewSnapshot("", byKind)
	if err != nil {
		return nil, fmt.Errorf("build edge snapshot of epoch %d: %w", epoch, err)
	}
	if err := built.Consistent(); err != nil {
		return nil, fmt.Errorf("check edge snapshot of epoch %d: a resource is missing or unused: %w", epoch, err)
	}
	if err := built.ConstructVersionMap(); err != nil {
		return nil, fmt.Errorf("build edge snapshot of epoch %d: %w", epoch, err)
	}
	s := &Snapshot{Snapshot: built, Epoch: epoch}
	s.setVersions()
	return s, nil
}

// setVersions names each kind's version by the epoch and its content.
func (s *Snapshot) setVersions() {
	all := sha256.New()
	for _, kind := range Kinds {
		one := sha256.New()
		versions := s.GetVersionMap(kind)
		for _, name := range slices.Sorted(maps.Keys(versions)) {
			fmt.Fprintf(one, "%q=%s\n", name, versions[name])
		}
		sum := one.Sum(nil)
		all.Write(sum)
		s.Resources[cachev3.GetResponseType(kind)].Version = fmt.Sprintf("%d-%s", s.Epoch, hex.EncodeToString(sum[:8]))
	}
	s.Hash = hex.EncodeToString(all.Sum(nil)[:8])
}

// Version is the epoch and the content's hash.
func (s *Snapshot) Version() string { return fmt.Sprintf("%d-%s", s.Epoch, s.Hash) }

func check(resource types.Resource) error {
	if checked, ok := resource.(interface{ ValidateAll() error }); ok {
		return checked.ValidateAll()
	}
	return nil
}

func list[R types.Resource](resources []R) []types.Resource {
	out := make([]types.Resource, 0, len(resources))
	for _, r := range resources {
		out = append(out, r)
	}
	return out
}
