// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package directory owns the oracle's replicated state: which shards there
// are, the placement and its epochs, and the rebalances with their handoffs.
// It never talks to a shard, a clock or a disk: it only applies log entries.
// The oracle's server replicates it and acts on what it says.
package directory

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

const (
	// maxDeltas bounds how many epochs a watcher may lag before it gets the whole placement.
	maxDeltas = 1024
	// maxRebalances bounds the ended rebalances that are kept.
	maxRebalances = 20
	// maxStepTries bounds how often a step's handoff is tried before the step fails.
	maxStepTries = 3
)

// Directory is the oracle's state machine. It is not safe for concurrent use.
type Directory struct {
	store         string
	genesisShards uint32
	shards        uint32
	initialised   map[uint32]bool
	policy        *oraclev1.Policy
	placement     *keyspace.Placement
	deltas        []keyspace.Delta
	nextHandoff   uint64
	// rebalances in the order of their creation; at most the last one is active.
	rebalances []*oraclev1.RebalanceState
	timeMillis int64
}

// New returns the state before the first entry: no store is founded.
func New() *Directory {
	return &Directory{initialised: map[uint32]bool{}, nextHandoff: 1}
}

// RefusalError says that an entry or a request does not fit the state.
type RefusalError struct {
	// NotFound is set when what was named does not exist.
	NotFound bool
	// Reason says what was wrong and what to do.
	Reason string
}

func (r *RefusalError) Error() string { return r.Reason }

func refuse(format string, args ...any) error {
	return &RefusalError{Reason: fmt.Sprintf(format, args...)}
}

// Apply applies one entry of the log. A *RefusalError means that the entry changed
// nothing; every replica comes to the same answer.
func (d *Directory) Apply(e *oraclev1.LogEntry) error {
	d.timeMillis = max(d.timeMillis, e.GetTimeMillis())
	if founded := e.GetStoreFounded(); founded != nil {
		return d.found(founded)
	}
	if d.placement == nil {
		return refuse("the store is not founded yet; wait for the oracle's first leader")
	}
	switch body := e.GetBody().(type) {
	case *oraclev1.LogEntry_ShardsSet:
		return d.setShards(body.ShardsSet.GetCount())
	case *oraclev1.LogEntry_ShardInitialised:
		return d.shardInitialised(body.ShardInitialised.GetShard())
	case *oraclev1.LogEntry_PolicySet:
		return d.setPolicy(body.PolicySet.GetPolicy())
	case *oraclev1.LogEntry_RebalanceCreated:
		return d.createRebalance(body.RebalanceCreated)
	case *oraclev1.LogEntry_PhaseEntered:
		return d.enterPhase(body.PhaseEntered)
	case *oraclev1.LogEntry_PlanAccepted:
		return d.acceptPlan(body.PlanAccepted)
	case *oraclev1.LogEntry_StepStarted:
		return d.startStep(body.StepStarted)
	case *oraclev1.LogEntry_StepEnded:
		return d.endStep(body.StepEnded)
	case *oraclev1.LogEntry_RebalanceControlled:
		return d.control(body.RebalanceControlled)
	default:
		return refuse("log entry of kind %T is unknown to this version; upgrade this replica of the oracle", e.GetBody())
	}
}

func (d *Directory) found(f *oraclev1.StoreFounded) error {
	if d.placement != nil {
		return refuse("the store %q is founded already", d.store)
	}
	placement, err := keyspace.EvenPlacement(int(f.GetShards()))
	if err != nil {
		return refuse("found store %q: %v", f.GetStore(), err)
	}
	policy := WithDefaults(f.GetPolicy())
	if err := CheckPolicy(policy); err != nil {
		return err
	}
	d.store, d.genesisShards, d.shards = f.GetStore(), f.GetShards(), f.GetShards()
	d.policy, d.placement = policy, placement
	return nil
}

func (d *Directory) setShards(count uint32) error {
	switch {
	case count == d.shards:
		return nil
	case count > keyspace.MaxShards:
		return refuse("set shards: %d is over the limit of %d", count, keyspace.MaxShards)
	case count < d.shards:
		return refuse("set shards: the store has %d shards and cannot shrink to %d in this version; keep %d", d.shards, count, d.shards)
	}
	d.shards = count
	return nil
}

func (d *Directory) shardInitialised(shard uint32) error {
	if shard == 0 || shard > d.shards {
		return refuse("shard %d reports to a store of %d shards; raise the number of shards or stop it", shard, d.shards)
	}
	d.initialised[shard] = true
	return nil
}

func (d *Directory) setPolicy(p *oraclev1.Policy) error {
	p = WithDefaults(p)
	if err := CheckPolicy(p); err != nil {
		return err
	}
	d.policy = p
	return nil
}

// Founded says whether the store has been founded.
func (d *Directory) Founded() bool { return d.placement != nil }

// Store returns the name of the store.
func (d *Directory) Store() string { return d.store }

// Shards returns the number of shards; their ids are 1 to that number.
func (d *Directory) Shards() uint32 { return d.shards }

// Policy returns a copy of the rebalancing policy.
func (d *Directory) Policy() *oraclev1.Policy { return proto.CloneOf(d.policy) }

// Placement returns the placement of the newest epoch; nil before the store is founded.
func (d *Directory) Placement() *keyspace.Placement { return d.placement }

// DeltasSince returns the deltas that lead from an epoch to the newest one, and
// false if the epoch is too old (or unknown) for that.
func (d *Directory) DeltasSince(epoch keyspace.Epoch) ([]keyspace.Delta, bool) {
	if d.placement == nil {
		return nil, false
	}
	if epoch == d.placement.Epoch() {
		return nil, true
	}
	for i, delta := range d.deltas {
		if delta.From == epoch {
			return slices.Clone(d.deltas[i:]), true
		}
	}
	return nil, false
}

// Initialised says whether a shard is known to have its Genesis entry.
func (d *Directory) Initialised(shard uint32) bool { return d.initialised[shard] }

// Genesis returns what a shard owns from the start: its part of the even
// placement, or nothing if it joined later.
func (d *Directory) Genesis(shard uint32) (*oraclev1.Genesis, error) {
	if shard == 0 || shard > d.shards {
		return nil, refuse("shard %d is not one of the %d shards of store %q", shard, d.shards, d.store)
	}
	genesis := &oraclev1.Genesis{}
	if shard > d.genesisShards {
		return genesis, nil
	}
	placement, err := keyspace.EvenPlacement(int(d.genesisShards))
	if err != nil {
		return nil, err
	}
	var slots keyspace.SlotSet
	for slot := range keyspace.Slots {
		if placement.ShardOfSlot(keyspace.Slot(slot)) == keyspace.ShardID(shard) {
			slots.Add(keyspace.Slot(slot))
		}
	}
	for _, run := range slots.Ranges() {
		genesis.Slots = append(genesis.Slots, &oraclev1.SlotRange{First: uint32(run.First), Last: uint32(run.Last), Shard: shard})
	}
	return genesis, nil
}
