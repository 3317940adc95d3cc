// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
	"github.com/kolocate/kolocate/services/oracle/directory"
)

// placementService implements oraclev1.PlacementServer.
type placementService struct {
	oraclev1.UnimplementedPlacementServer
	oracle *Oracle
}

// Get returns the whole placement and where the shards are.
func (s *placementService) Get(context.Context, *oraclev1.GetRequest) (*oraclev1.GetResponse, error) {
	if err := s.oracle.requireLeader(); err != nil {
		return nil, err
	}
	var response oraclev1.GetResponse
	s.oracle.machine.view(func(d *directory.Directory) {
		if d.Founded() {
			response.Placement = wire.EncodePlacement(d.Store(), d.Placement())
			response.Shards = s.oracle.registry.endpoints(d.Shards())
		}
	})
	if response.Placement == nil {
		return nil, status.Error(codes.Unavailable, "the store is not founded yet; try again in a moment")
	}
	return &response, nil
}

// Watch streams the placement: the whole first, then deltas, and the shards
// whenever an address or a leader changes. It ends when leadership is lost.
func (s *placementService) Watch(request *oraclev1.WatchRequest, stream oraclev1.Placement_WatchServer) error {
	known := keyspace.Epoch(request.GetKnownEpoch())
	first := true
	for {
		if err := s.oracle.requireLeader(); err != nil {
			return err
		}
		// Taken before the state is read, so that no change between is missed.
		placementChanged, shardsChanged := s.oracle.machine.changes(), s.oracle.registry.changes()
		responses, epoch := s.news(known)
		if first || responses == nil {
			responses = append(responses, &oraclev1.WatchResponse{})
		}
		last := responses[len(responses)-1]
		s.oracle.machine.view(func(d *directory.Directory) { last.Shards = s.oracle.registry.endpoints(d.Shards()) })
		for _, response := range responses {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		known, first = epoch, false
		select {
		case <-placementChanged:
		case <-shardsChanged:
		case <-s.oracle.demoted():
		case <-s.oracle.stopping:
			return status.Error(codes.Unavailable, "the oracle is stopping; connect again")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// news returns what leads a watcher from an epoch to the newest one. Deltas are
// sent one by one: merged, they could keep an override that a step took away.
func (s *placementService) news(known keyspace.Epoch) (responses []*oraclev1.WatchResponse, epoch keyspace.Epoch) {
	s.oracle.machine.view(func(d *directory.Directory) {
		if !d.Founded() {
			return
		}
		epoch = d.Placement().Epoch()
		deltas, ok := d.DeltasSince(known)
		if !ok {
			responses = []*oraclev1.WatchResponse{{Snapshot: wire.EncodePlacement(d.Store(), d.Placement())}}
			return
		}
		for _, delta := range deltas {
			responses = append(responses, &oraclev1.WatchResponse{Delta: wire.EncodeDelta(delta)})
		}
	})
	return responses, epoch
}
