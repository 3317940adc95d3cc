// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// phaseWatch notes every phase that a watch on the first Rebalance showed.
type phaseWatch struct {
	stop func()

	mu     sync.Mutex
	object *v1alpha1.Rebalance
	phases []v1alpha1.RebalancePhase
	at     []time.Time
	job    *batchv1.Job
	// trouble is why the API server last refused the watch.
	trouble string
}

// startWatch watches the Rebalances and Jobs of the store until stop is called.
func (k *cluster) startWatch() *phaseWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &phaseWatch{}
	var group sync.WaitGroup
	group.Go(func() { w.follow(ctx, k.kube, &v1alpha1.RebalanceList{}) })
	group.Go(func() { w.follow(ctx, k.kube, &batchv1.JobList{}) })
	w.stop = func() {
		cancel()
		group.Wait()
	}
	return w
}

// follow opens the watch again whenever the API server ends it, which it does
// from time to time.
func (w *phaseWatch) follow(ctx context.Context, kube client.WithWatch, list client.ObjectList) {
	for ctx.Err() == nil {
		stream, err := kube.Watch(ctx, list, client.InNamespace(storeNamespace))
		if err != nil {
			w.mu.Lock()
			w.trouble = err.Error()
			w.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		for event := range stream.ResultChan() {
			w.note(event)
		}
		stream.Stop()
	}
}

func (w *phaseWatch) note(event watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch object := event.Object.(type) {
	case *v1alpha1.Rebalance:
		if w.object != nil && w.object.Name != object.Name {
			return // a later rebalance
		}
		w.object = object
		phase := object.Status.Phase
		if phase != "" && (len(w.phases) == 0 || w.phases[len(w.phases)-1] != phase) {
			w.phases, w.at = append(w.phases, phase), append(w.at, time.Now())
		}
	case *batchv1.Job:
		w.job = object
	}
}

// state gives what has been seen.
func (w *phaseWatch) state() (object *v1alpha1.Rebalance, phases []v1alpha1.RebalancePhase, job *batchv1.Job, trouble string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.object, slices.Clone(w.phases), w.job, w.trouble
}

// watchRebalance follows the rebalance that the oracle starts by itself, as the
// Store's policy says, to its end.
func watchRebalance(t *testing.T, k *cluster) {
	w := k.watch
	defer w.stop()
	said := 0
	k.until(t, 4*time.Minute, "rebalance ended", func(ctx context.Context) error {
		object, phases, _, trouble := w.state()
		for ; said < len(phases); said++ {
			k.say(t, "rebalance %s: %s: %s", object.Name, phases[said], object.Status.Message)
		}
		switch {
		case object == nil:
			var store v1alpha1.Store
			if err := k.get(ctx, storeNamespace, storeName, &store); err != nil {
				return err
			}
			return fmt.Errorf("no Rebalance yet %s: multi-shard commands %s, trigger: %s", trouble, store.Status.MPOShare, store.Status.Trigger)
		case !object.Status.Phase.Ended():
			return fmt.Errorf("rebalance %s is %s: %s", object.Name, object.Status.Phase, object.Status.Message)
		}
		return nil
	})
	object, phases, job, _ := w.state()
	k.rebalance = object
	k.say(t, "\n%s", k.must(t, time.Minute, "", k.kubectl, "get", "rebalances", "--namespace", storeNamespace))
	wanted := []v1alpha1.RebalancePhase{
		v1alpha1.RebalanceTracing, v1alpha1.RebalancePartitioning, v1alpha1.RebalanceMigrating, v1alpha1.RebalanceVerifying, v1alpha1.RebalanceSucceeded,
	}
	if seen := slices.DeleteFunc(slices.Clone(phases), func(p v1alpha1.RebalancePhase) bool { return !slices.Contains(wanted, p) }); !slices.Equal(seen, wanted) {
		t.Errorf("the watch saw phases %v, expected %v in this order: %s", phases, wanted, object.Status.Message)
	}
	if job == nil || job.Name != object.Name+"-partition" || job.Status.Succeeded != 1 {
		t.Errorf("the partitioner did not run as Job %s-partition: %+v", object.Name, job)
	}
	judgeStatus(t, &object.Status)
}

// judgeStatus holds what the Rebalance object says against what was wanted.
func judgeStatus(t *testing.T, status *v1alpha1.RebalanceStatus) {
	t.Helper()
	effect := status.Effect
	if effect == nil || effect.Before == nil || effect.Predicted == nil || effect.After == nil {
		t.Fatalf("the status of the rebalance has no complete effect: %+v", effect)
	}
	share := func(m *v1alpha1.Measures) float64 {
		value, err := v1alpha1.ParsePercent(m.MPOShare)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	before, predicted, after := share(effect.Before), share(effect.Predicted), share(effect.After)
	if before <= 0 || after > maxShareOf*before {
		t.Errorf("by the status, multi-shard commands were %.3f before and %.3f after, expected at most %.1f of it", before, after, maxShareOf)
	}
	if d := after - predicted; d > nearPrediction || d < -nearPrediction {
		t.Errorf("by the status, multi-shard commands are %.3f after, predicted %.3f: further apart than %.2f", after, predicted, nearPrediction)
	}
	if status.Steps == nil || status.Steps.Total == 0 || status.Steps.Done != status.Steps.Total || status.Steps.Aborted != 0 {
		t.Errorf("steps %+v, expected all done and none aborted", status.Steps)
	}
	if status.Moved == nil || status.Moved.Vertices == 0 || status.Epoch <= status.FromEpoch || len(status.Reasons) == 0 {
		t.Errorf("moved %+v from epoch %d to %d for %d reasons, expected some of each", status.Moved, status.FromEpoch, status.Epoch, len(status.Reasons))
	}
}
