// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// State returns a copy of the whole state, for a snapshot. The recent deltas
// are left out: a watcher that lags gets the whole placement.
func (d *Directory) State() *oraclev1.DirectoryState {
	s := &oraclev1.DirectoryState{
		Store: d.store, GenesisShards: d.genesisShards, Shards: d.shards, NextHandoff: d.nextHandoff, TimeMillis: d.timeMillis,
		Policy: proto.CloneOf(d.policy), Initialised: slices.Sorted(maps.Keys(d.initialised)),
	}
	if d.placement != nil {
		s.Placement = wire.EncodePlacement(d.store, d.placement)
	}
	for _, r := range d.rebalances {
		s.Rebalances = append(s.Rebalances, proto.CloneOf(r))
	}
	return s
}

// FromState returns the Directory of a state that State returned.
func FromState(s *oraclev1.DirectoryState) (*Directory, error) {
	d := New()
	d.store, d.genesisShards, d.shards = s.GetStore(), s.GetGenesisShards(), s.GetShards()
	d.nextHandoff, d.timeMillis, d.policy = max(1, s.GetNextHandoff()), s.GetTimeMillis(), s.GetPolicy()
	for _, shard := range s.GetInitialised() {
		d.initialised[shard] = true
	}
	d.rebalances = s.GetRebalances()
	if s.GetPlacement() != nil {
		placement, err := wire.DecodePlacement(s.GetPlacement())
		if err != nil {
			return nil, err
		}
		d.placement = placement
	}
	return d, nil
}
