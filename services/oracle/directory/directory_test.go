// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

func founded(t *testing.T, shards uint32) *Directory {
	t.Helper()
	d := New()
	must(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StoreFounded{StoreFounded: &oraclev1.StoreFounded{Store: "s", Shards: shards}}})
	return d
}

func must(t *testing.T, d *Directory, e *oraclev1.LogEntry) {
	t.Helper()
	if err := d.Apply(e); err != nil {
		t.Fatalf("apply %v: %v", e, err)
	}
}

func created(name, approval string) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceCreated{RebalanceCreated: &oraclev1.RebalanceCreated{Name: name, Approval: approval}}}
}

func phase(name string, p oraclev1.Phase) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PhaseEntered{PhaseEntered: &oraclev1.PhaseEntered{Name: name, Phase: p}}}
}

func accepted(name string, plan *planv1.Plan) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PlanAccepted{PlanAccepted: &oraclev1.PlanAccepted{Name: name, Plan: plan}}}
}

func started(name string, step uint32) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StepStarted{StepStarted: &oraclev1.StepStarted{Name: name, Step: step}}}
}

func endedStep(name string, handoff uint64, done bool) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_StepEnded{StepEnded: &oraclev1.StepEnded{Name: name, Handoff: handoff, Done: done, Bytes: 10, PauseMicros: 5}}}
}

func controlled(name string, action oraclev1.RebalanceAction) *oraclev1.LogEntry {
	return &oraclev1.LogEntry{Body: &oraclev1.LogEntry_RebalanceControlled{RebalanceControlled: &oraclev1.RebalanceControlled{Name: name, Action: action}}}
}

// planOf plans the move of each vertex to the next shard, one step a vertex.
func planOf(d *Directory, vertices ...keyspace.Vertex) *planv1.Plan {
	plan := &planv1.Plan{Version: 1, Store: d.Store(), Epoch: uint64(d.Placement().Epoch()), Prediction: &planv1.Prediction{}}
	for i, v := range vertices {
		from := uint32(d.Placement().ShardOf(v))
		plan.Steps = append(plan.Steps, &planv1.Step{Number: uint32(i + 1), From: from, To: from%d.Shards() + 1, Vertices: [][]byte{[]byte(v)}})
	}
	return plan
}

// TestLifeOfARebalance leads one through approval, a failed try, pause and success.
func TestLifeOfARebalance(t *testing.T) {
	d := founded(t, 3)
	must(t, d, created("r1", ApprovalManual))
	must(t, d, created("r1", ApprovalManual)) // sent twice
	must(t, d, phase("r1", oraclev1.Phase_PHASE_PARTITIONING))
	plan := planOf(d, "a", "b")
	must(t, d, accepted("r1", plan))
	expectPhase(t, d, "r1", oraclev1.Phase_PHASE_PROPOSED)
	must(t, d, controlled("r1", oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE))
	must(t, d, started("r1", 0))
	must(t, d, controlled("r1", oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE))
	refused(t, d, started("r1", 1), "starts no step now")
	must(t, d, endedStep("r1", 1, false)) // taken back: it may be tried again
	must(t, d, controlled("r1", oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME))
	must(t, d, started("r1", 0))
	must(t, d, started("r1", 1))
	refused(t, d, phase("r1", oraclev1.Phase_PHASE_VERIFYING), "handoffs under way")
	must(t, d, endedStep("r1", 2, true))
	must(t, d, endedStep("r1", 3, true))
	refused(t, d, endedStep("r1", 3, true), "no handoff 3")
	if epoch := d.Placement().Epoch(); epoch != 3 {
		t.Errorf("epoch %d after two moves from 1, want 3", epoch)
	}
	for _, step := range plan.GetSteps() {
		if at := d.Placement().ShardOf(keyspace.Vertex(step.GetVertices()[0])); uint32(at) != step.GetTo() {
			t.Errorf("vertex %s is at %v, want shard %d", step.GetVertices()[0], at, step.GetTo())
		}
	}
	must(t, d, phase("r1", oraclev1.Phase_PHASE_VERIFYING))
	must(t, d, phase("r1", oraclev1.Phase_PHASE_SUCCEEDED))
	r, err := d.Rebalance("r1")
	if err != nil || r.GetStepsDone() != 2 || r.GetMovedBytes() != 20 || r.GetEpoch() != 3 || d.Active() != nil {
		t.Errorf("at the end: %v, %v", r, err)
	}
}

func expectPhase(t *testing.T, d *Directory, name string, want oraclev1.Phase) {
	t.Helper()
	r, err := d.Rebalance(name)
	if err != nil {
		t.Fatal(err)
	}
	if r.GetPhase() != want {
		t.Fatalf("rebalance %s is %s, want %s", name, PhaseName(r.GetPhase()), PhaseName(want))
	}
}

func refused(t *testing.T, d *Directory, e *oraclev1.LogEntry, text string) {
	t.Helper()
	before := d.State()
	err := d.Apply(e)
	var refusal *RefusalError
	if !errors.As(err, &refusal) || !strings.Contains(err.Error(), text) {
		t.Fatalf("apply %v: %v, want a refusal with %q", e, err, text)
	}
	if !proto.Equal(before, d.State()) {
		t.Fatalf("the refused entry %v changed the state", e)
	}
}

// TestRevertTakesTheMovesBack shows that a reverted rebalance leaves every vertex where it was.
func TestRevertTakesTheMovesBack(t *testing.T) {
	d := founded(t, 4)
	before := d.Placement()
	must(t, d, created("r", ApprovalAutomatic))
	must(t, d, phase("r", oraclev1.Phase_PHASE_PARTITIONING))
	must(t, d, accepted("r", planOf(d, "a", "b", "c")))
	for i := range uint32(3) {
		must(t, d, started("r", i))
		must(t, d, endedStep("r", uint64(i)+1, true))
	}
	must(t, d, phase("r", oraclev1.Phase_PHASE_VERIFYING))
	must(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PhaseEntered{PhaseEntered: &oraclev1.PhaseEntered{Name: "r", Phase: oraclev1.Phase_PHASE_MIGRATING, Revert: true}}})
	for i := range uint32(3) {
		must(t, d, started("r", i))
		must(t, d, endedStep("r", uint64(i)+4, true))
	}
	must(t, d, phase("r", oraclev1.Phase_PHASE_REVERTED))
	if delta := keyspace.Diff(before, d.Placement()); len(delta.Overrides)+len(delta.Slots) > 0 || d.Placement().Overrides() != 0 {
		t.Errorf("after the revert the placement differs by %+v", delta)
	}
}

func TestRefusals(t *testing.T) {
	d := New()
	refused(t, d, created("r", ""), "not founded")
	d = founded(t, 3)
	refused(t, d, created("Not A Label", ""), "DNS label")
	refused(t, d, created("r", "Perhaps"), "approval")
	refused(t, d, controlled("nobody", oraclev1.RebalanceAction_REBALANCE_ACTION_STOP), "unknown to store")
	refused(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_ShardsSet{ShardsSet: &oraclev1.ShardsSet{Count: 2}}}, "cannot shrink")
	refused(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_ShardsSet{ShardsSet: &oraclev1.ShardsSet{Count: 65}}}, "limit")
	refused(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_PolicySet{PolicySet: &oraclev1.PolicySet{Policy: &oraclev1.Policy{Mode: "Sometimes"}}}}, "mode")
	refused(t, d, &oraclev1.LogEntry{Body: &oraclev1.LogEntry_ShardInitialised{ShardInitialised: &oraclev1.ShardInitialised{Shard: 4}}}, "store of 3 shards")
	must(t, d, created("r", ApprovalManual))
	refused(t, d, created("second", ""), "wait for it to end")
	refused(t, d, controlled("r", oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE), "no plan")
	refused(t, d, accepted("r", planOf(d, "a")), "only while Partitioning")
	must(t, d, phase("r", oraclev1.Phase_PHASE_PARTITIONING))
	for text, change := range map[string]func(*planv1.Plan){
		"version 2":         func(p *planv1.Plan) { p.Version = 2 },
		"is for store":      func(p *planv1.Plan) { p.Store = "other" },
		"made for epoch 7":  func(p *planv1.Plan) { p.Epoch = 7 },
		"two different":     func(p *planv1.Plan) { p.Steps[0].To = 9 },
		"names nothing":     func(p *planv1.Plan) { p.Steps[0].Vertices = nil },
		"once":              func(p *planv1.Plan) { p.Steps = append(p.Steps, p.Steps[0]) },
		"slot 99999 is not": func(p *planv1.Plan) { p.Steps[0].Slots = []uint32{99999} },
	} {
		plan := planOf(d, "a")
		change(plan)
		refused(t, d, accepted("r", plan), text)
	}
}

// TestRandomEntries applies random entries, sensible and not, and checks after
// each: epochs grow by one a done step, deltas lead where the placement is, at
// most one rebalance is active, and a copy made from the state goes on alike.
func TestRandomEntries(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 4))
			d := founded(t, uint32(2+r.IntN(4)))
			start := d.Placement()
			for step := range 400 {
				before := d.Placement()
				e := randomEntry(r, d)
				compare := r.IntN(20) == 0
				copied := copyOf(t, d, compare)
				err := d.Apply(e)
				if compare {
					if again := copied.Apply(e); (err == nil) != (again == nil) || !proto.Equal(copied.State(), d.State()) {
						t.Fatalf("step %d: %v led to different states: %v, %v", step, e, err, again)
					}
				}
				checkEpoch(t, before, d, e, err)
			}
			deltas, ok := d.DeltasSince(start.Epoch())
			p := start
			for _, delta := range deltas {
				var err error
				if p, err = p.Apply(delta); err != nil {
					t.Fatal(err)
				}
			}
			if diff := keyspace.Diff(p, d.Placement()); !ok || len(diff.Overrides)+len(diff.Slots) > 0 {
				t.Fatalf("the deltas lead elsewhere: %+v", diff)
			}
		})
	}
}

func copyOf(t *testing.T, d *Directory, wanted bool) *Directory {
	t.Helper()
	if !wanted {
		return nil
	}
	copied, err := FromState(d.State())
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

func checkEpoch(t *testing.T, before *keyspace.Placement, d *Directory, e *oraclev1.LogEntry, err error) {
	t.Helper()
	want := before.Epoch()
	if err == nil && e.GetStepEnded().GetDone() {
		want++
	}
	if got := d.Placement().Epoch(); got != want {
		t.Fatalf("epoch %d after %v, want %d", got, e, want)
	}
	active := 0
	for _, r := range d.Rebalances() {
		if !Ended(r.GetPhase()) {
			active++
		}
	}
	if active > 1 {
		t.Fatalf("%d rebalances are active at once", active)
	}
}

func randomEntry(r *rand.Rand, d *Directory) *oraclev1.LogEntry {
	name := fmt.Sprintf("r%d", len(d.Rebalances()))
	switch r.IntN(8) {
	case 0:
		return created(fmt.Sprintf("r%d", len(d.Rebalances())+1), []string{"", ApprovalManual}[r.IntN(2)])
	case 1:
		return phase(name, oraclev1.Phase(1+r.IntN(9)))
	case 2:
		return accepted(name, planOf(d, "a", "b", keyspace.Vertex(fmt.Sprintf("c%d", r.IntN(50)))))
	case 3, 4:
		return started(name, uint32(r.IntN(4)))
	case 5, 6:
		return endedStep(name, d.nextHandoff-1-min(uint64(r.IntN(3)), d.nextHandoff-1), r.IntN(3) > 0)
	default:
		return controlled(name, oraclev1.RebalanceAction(1+r.IntN(5)))
	}
}
