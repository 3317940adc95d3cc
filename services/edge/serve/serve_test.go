// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kolocate/kolocate/services/edge/ir"
	"github.com/kolocate/kolocate/services/edge/snapshot"
	"github.com/kolocate/kolocate/services/edge/translate"
)

func TestInvalidUpdateIsRefusedAndTheOldRoutesStay(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	spoilt := w.ir
	spoilt.Epoch = 2
	spoilt.Slots[77] = 9
	if err := w.edge.Update(spoilt); err == nil || !strings.Contains(err.Error(), "slot 77 is at shard-9") {
		t.Errorf("got %v, want an error about slot 77", err)
	}
	older := w.ir
	older.Epoch = 0
	if err := w.edge.Update(older); err == nil {
		t.Error("an edge of epoch 0 was accepted")
	}
	w.checkKeys("after refused updates")
	if got := w.edge.AcknowledgedEpoch(); got != 1 {
		t.Errorf("acknowledged epoch is %d, want 1", got)
	}
}

// What passes every check here and not Envoy's own leaves Envoy as it was, and
// is told in Envoy's words.
func TestEnvoysRefusalIsTold(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	next := w.ir
	next.Epoch = 2
	resources, err := translate.Translate(&next)
	if err != nil {
		t.Fatal(err)
	}
	spoilLua(t, resources)
	built, err := snapshot.FromResources(next.Epoch, resources)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.edge.publish(built); err != nil {
		t.Fatal(err)
	}
	err = w.edge.Await(within(t), 2)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "script load error") {
		t.Errorf("got %v, want ErrRefused with the script error", err)
	}
	if got := valueOf(t, w.edge.metrics.nacks); got != 1 {
		t.Errorf("kolocate_edge_nacks_total is %v, want 1", got)
	}
	if got := w.edge.AcknowledgedEpoch(); got != 1 {
		t.Errorf("acknowledged epoch is %d, want 1", got)
	}
	w.checkKeys("after a refusal")

	w.ir.Epoch = 2
	w.update(func(*ir.Edge) {}) // the good configuration again
	w.await(3)
	if envoys := w.edge.Envoys(); len(envoys) != 1 || envoys[0].Refused != "" || envoys[0].Node != "envoy-0" {
		t.Errorf("envoys are %+v, want envoy-0 without a refusal", envoys)
	}
}

// spoilLua breaks the filter's text in the encoded listener, keeping its length.
func spoilLua(t *testing.T, r *translate.Resources) {
	t.Helper()
	packed := r.Listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig()
	text := string(packed.GetValue())
	spoilt := strings.Replace(text, "function envoy_on_request", "functiom envoy_on_request", 1)
	if spoilt == text {
		t.Fatal("the listener has no Lua filter")
	}
	packed.Value = []byte(spoilt)
}

func TestEqualContentOnlyRaisesTheEpoch(t *testing.T) {
	var e ir.Edge
	registry := prometheus.NewRegistry()
	s, err := New(Config{Registerer: registry, Settle: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for e = smallEdge(); e.Epoch <= 5; e.Epoch++ {
		if err := s.Update(e); err != nil {
			t.Fatal(err)
		}
	}
	if got := valueOf(t, s.metrics.snapshots); got != 1 {
		t.Errorf("%v snapshots were published, want 1", got)
	}
	if got := valueOf(t, s.metrics.epoch); got != 5 {
		t.Errorf("placement epoch is %v, want 5", got)
	}
	if s.AcknowledgedEpoch() != 0 {
		t.Error("an epoch counts as acknowledged without any Envoy")
	}
	e.Epoch = 4
	if err := s.Update(e); err == nil || !strings.Contains(err.Error(), "epochs only grow") {
		t.Errorf("got %v, want an error about an older epoch", err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 8 {
		t.Errorf("gathered %d metric families (error %v), want 8", len(families), err)
	}
	if _, err := New(Config{Registerer: registry}); err == nil {
		t.Error("a second edge registered the same metrics")
	}
}

// An oracle that forgot the replicas, because it started anew, takes nothing away.
func TestForgottenReplicasStay(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	complete := slices.Clone(w.ir.Shards)
	forget := func(e *ir.Edge) {
		e.Shards = slices.Clone(complete)
		for i := range e.Shards {
			e.Shards[i].Replicas = nil
		}
	}
	w.update(forget)
	w.await(2)
	w.checkKeys("after the oracle forgot")

	again, err := New(Config{Settle: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	w.swap(again)
	w.update(forget)
	w.update(func(e *ir.Edge) { e.Shards[1] = complete[1] })
	if len(again.published) != 0 {
		t.Error("an edge was published before every shard was heard of")
	}
	w.checkKeys("while nothing is published")
	w.update(func(e *ir.Edge) { e.Shards = complete })
	w.await(w.ir.Epoch)
	w.checkKeys("when all were heard of")
}

// A shard that is never heard of does not hold up the others for ever.
func TestFirstPublicationWaitsOnlySoLong(t *testing.T) {
	s, err := New(Config{Settle: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Update(smallEdge()); err != nil {
		t.Fatal(err)
	}
	for ctx := within(t); valueOf(t, s.metrics.snapshots) == 0; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the first edge was never published")
		}
	}
}

// Addresses with host names are resolved by Envoy.
func TestHostNamesAreResolved(t *testing.T) {
	a := newReplica(t, "a", true)
	_, port, err := net.SplitHostPort(a.address)
	if err != nil {
		t.Fatal(err)
	}
	a.address = net.JoinHostPort("localhost", port)
	w := newWorld(t, []*replica{a})
	if got, err := w.thin(within(t), "k"); err != nil || got != "a" {
		t.Errorf("served by %q (error %v), want a", got, err)
	}
}

// An Envoy that comes to a new control plane with what it has is known to have it.
func TestRestartedControlPlaneLearnsWhatEnvoyHolds(t *testing.T) {
	w := newWorld(t, threeShards(t)...)
	again, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	w.ir.Epoch = 9
	if err := again.Update(w.ir); err != nil {
		t.Fatal(err)
	}
	w.swap(again)
	w.await(9)
	w.checkKeys("with another control plane")
}

// smallEdge has one shard of which no replica is known.
func smallEdge() ir.Edge {
	e := ir.Edge{Epoch: 1, Store: "s", Listener: "127.0.0.1:1", Oracle: []string{"127.0.0.1:2"}, Shards: []ir.Shard{{ID: 1}}}
	for slot := range e.Slots {
		e.Slots[slot] = 1
	}
	return e
}

func valueOf(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := metric.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}
