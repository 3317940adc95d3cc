// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	planv1 "github.com/kolocate/kolocate/api/proto/plan/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
)

func newRebalance(namespace, name string) *v1alpha1.Rebalance {
	return &v1alpha1.Rebalance{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1alpha1.RebalanceSpec{StoreRef: v1alpha1.StoreReference{Name: "kv"}, Approval: v1alpha1.ApprovalManual, TraceSeconds: 5, Reason: "a test asked"},
	}
}

// waitPhase waits until a rebalance is in this phase.
func waitPhase(t *testing.T, namespace, name string, want v1alpha1.RebalancePhase) *v1alpha1.Rebalance {
	t.Helper()
	object := &v1alpha1.Rebalance{}
	eventually(t, fmt.Sprintf("rebalance %s to be %s", name, want), func(ctx context.Context) error {
		if _, err := get(ctx, namespace, name, object); err != nil {
			return err
		}
		if object.Status.Phase != want || object.Status.ObservedGeneration != object.Generation {
			return fmt.Errorf("it is %q: %s", object.Status.Phase, object.Status.Message)
		}
		return nil
	})
	return object
}

// enter moves the oracle's rebalance on.
func (o *fakeOracle) enter(name string, phase oraclev1.Phase, message string, with ...func(*oraclev1.Rebalance)) {
	o.change(func() {
		r := o.find(name)
		r.Phase, r.Message, r.PhaseSinceUnixMillis = phase, message, time.Now().UnixMilli()
		for _, f := range with {
			f(r)
		}
	})
}

// runToPartitioning makes a rebalance and brings it to where its Job runs.
func runToPartitioning(t *testing.T, namespace string, o *fakeOracle, name string) *batchv1.Job {
	t.Helper()
	waitCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	if err := kube.Create(t.Context(), newRebalance(namespace, name)); err != nil {
		t.Fatal(err)
	}
	waitPhase(t, namespace, name, v1alpha1.RebalanceTracing)
	o.enter(name, oraclev1.Phase_PHASE_PARTITIONING, "waiting for a plan")
	job := &batchv1.Job{}
	eventually(t, "the partitioner's Job", func(ctx context.Context) error {
		_, err := get(ctx, namespace, name+"-partition", job)
		return err
	})
	return job
}

func patchSpec(t *testing.T, namespace, name, spec string) {
	t.Helper()
	object := &v1alpha1.Rebalance{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if err := kube.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`))); err != nil {
		t.Fatalf("patching %s: %v", spec, err)
	}
}

func TestRebalanceGoesThroughItsPhases(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, o := makeStore(t, ns)
	makeReady(t, ns)
	job := runToPartitioning(t, ns, o, "wanted")
	if args := job.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--rebalance=wanted") || !slices.Contains(args, "--oracle=kv-oracle-0.kv-oracle."+ns+".svc:7100") {
		t.Errorf("the Job runs with %q", args)
	}
	if image := job.Spec.Template.Spec.Containers[0].Image; image != "partitioner:test" {
		t.Errorf("the Job runs image %s", image)
	}
	if job.Spec.BackoffLimit == nil || job.Spec.ActiveDeadlineSeconds == nil || job.Spec.TTLSecondsAfterFinished == nil {
		t.Error("the Job has no bounds")
	}

	o.enter("wanted", oraclev1.Phase_PHASE_PROPOSED, "the plan waits for approval", func(r *oraclev1.Rebalance) {
		r.Prediction = &planv1.Prediction{MpoShareAfter: 0.15, ImbalanceAfter: 0.04}
		r.Before = &oraclev1.Measurement{MpoShare: 0.9, Imbalance: 0.3}
		r.StepsTotal, r.GraphVertices, r.GraphEdges, r.PartitionSeconds = 4, 4039, 88234, 0.25
		r.Reasons = []string{"user/17 and 212 others: 31 % of the multi-shard commands cross shard-1 and shard-3"}
	})
	object := waitPhase(t, ns, "wanted", v1alpha1.RebalanceProposed)
	if c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionApproved); c == nil || c.Reason != "WaitsForPerson" {
		t.Errorf("condition Approved: %+v", c)
	}
	if !metav1.IsControlledBy(object, store) {
		t.Error("a rebalance that a person made is not owned by its store")
	}
	patchSpec(t, ns, "wanted", `{"approved":true}`)
	waitPhase(t, ns, "wanted", v1alpha1.RebalanceMigrating)

	patchSpec(t, ns, "wanted", `{"paused":true}`)
	eventually(t, "the pause", func(ctx context.Context) error {
		if _, err := get(ctx, ns, "wanted", object); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionProgressing); c == nil || c.Reason != "Paused" {
			return fmt.Errorf("condition Progressing: %+v", c)
		}
		return nil
	})
	patchSpec(t, ns, "wanted", `{"paused":false}`)
	eventually(t, "the oracle to go on", func(context.Context) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.find("wanted").GetPaused() {
			return fmt.Errorf("paused")
		}
		return nil
	})

	o.enter("wanted", oraclev1.Phase_PHASE_SUCCEEDED, "multi-shard commands fell from 90.0 % to 14.2 %", func(r *oraclev1.Rebalance) {
		r.After = &oraclev1.Measurement{MpoShare: 0.142, Imbalance: 0.05}
		r.StepsDone, r.MovedVertices, r.MovedBytes, r.Epoch = 4, 2011, 1<<20, 5
		r.PauseP50Micros, r.PauseP99Micros, r.PauseMaxMicros = 900, 4200, 8000
	})
	object = waitPhase(t, ns, "wanted", v1alpha1.RebalanceSucceeded)
	s := object.Status
	if s.Effect.Before.MPOShare != "90.0%" || s.Effect.Predicted.MPOShare != "15.0%" || s.Effect.After.MPOShare != "14.2%" ||
		s.Steps.Summary != "4/4" || s.Moved.Vertices != 2011 || s.Moved.Bytes.String() != "1Mi" || s.Pauses.P99.Duration != 4200*time.Microsecond ||
		s.Epoch != 5 || s.GraphVertices != 4039 || s.PartitionTime.Duration != 250*time.Millisecond || s.CompletionTime == nil || len(s.Reasons) != 1 {
		t.Errorf("status: %+v", s)
	}
	if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionComplete) {
		t.Errorf("conditions: %+v", s.Conditions)
	}
	var asked []oraclev1.RebalanceAction
	o.change(func() {
		for _, a := range o.actions {
			asked = append(asked, a.GetAction())
		}
	})
	want := []oraclev1.RebalanceAction{oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE, oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE, oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME}
	if !slices.Equal(asked, want) {
		t.Errorf("the oracle was asked %v, want each once: %v", asked, want)
	}
	checkEvents(t, ns, "wanted", "Tracing", "Partitioning", "JobCreated", "Proposed", "Migrating", "Succeeded")
}

func checkEvents(t *testing.T, namespace, name string, reasons ...string) {
	t.Helper()
	eventually(t, "the events", func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := kube.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, reason := range reasons {
			if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.Name == name && e.Reason == reason }) {
				return fmt.Errorf("no event %s", reason)
			}
		}
		return nil
	})
}

func TestAFailedJobFailsTheRebalance(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	_, o := makeStore(t, ns)
	makeReady(t, ns)
	job := runToPartitioning(t, ns, o, "broken")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "broken-partition-x", Namespace: ns, Labels: map[string]string{batchv1.JobNameLabel: job.Name, v1alpha1.LabelStore: "kv"}},
		Spec:       *job.Spec.Template.Spec.DeepCopy(),
	}
	if err := kube.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "partitioner", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "reading the graph: checksum differs"}},
	}}
	if err := kube.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	job.Status.StartTime, job.Status.Failed = &now, 3
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", Message: "Job has reached the specified backoff limit", LastTransitionTime: now,
		})
	}
	if err := kube.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	object := waitPhase(t, ns, "broken", v1alpha1.RebalanceFailed)
	for _, want := range []string{"broken-partition", "BackoffLimitExceeded", "checksum differs"} {
		if !strings.Contains(object.Status.Message, want) {
			t.Errorf("the message lacks %q: %s", want, object.Status.Message)
		}
	}
	checkEvents(t, ns, "broken", "Failed")
}

func TestRebalancesOfTheOracleGetObjects(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, o := makeStore(t, ns)
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	begin := time.Now().UnixMilli()
	o.change(func() {
		o.rebalances = append(o.rebalances, &oraclev1.Rebalance{
			Name: "auto-1", Phase: oraclev1.Phase_PHASE_TRACING, Approval: "Automatic", CreatedUnixMillis: begin, Reasons: []string{"42 % of the commands are multi-shard"},
		})
		o.status.ActiveRebalance = "auto-1"
	})
	object := waitPhase(t, ns, "auto-1", v1alpha1.RebalanceTracing)
	if !metav1.IsControlledBy(object, store) || object.Spec.Reason != "42 % of the commands are multi-shard" || object.Spec.Approval != v1alpha1.ApprovalAutomatic {
		t.Errorf("the object: %+v", object)
	}
	waitCondition(t, ns, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Rebalancing")
	o.enter("auto-1", oraclev1.Phase_PHASE_REVERTED, "it made things worse")
	o.change(func() { o.status.ActiveRebalance = "" })
	waitPhase(t, ns, "auto-1", v1alpha1.RebalanceReverted)

	// A deleted object of an ended rebalance stays deleted.
	if err := kube.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	// Ended ones beyond the limit (3 in this suite) go, the oldest first.
	for i := int64(2); i <= 6; i++ {
		name := fmt.Sprintf("auto-%d", i)
		o.change(func() {
			o.rebalances = append(o.rebalances, &oraclev1.Rebalance{
				Name: name, Phase: oraclev1.Phase_PHASE_SUCCEEDED, CreatedUnixMillis: begin + i, PhaseSinceUnixMillis: begin + i,
			})
		})
		eventually(t, "object "+name, func(ctx context.Context) error {
			_, err := get(ctx, ns, name, &v1alpha1.Rebalance{})
			return err
		})
	}
	eventually(t, "the history to be trimmed", func(ctx context.Context) error {
		var list v1alpha1.RebalanceList
		if err := kube.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return err
		}
		if len(list.Items) != 3 {
			return fmt.Errorf("%d objects", len(list.Items))
		}
		return nil
	})
	settled := o.lookCount() + 5
	eventually(t, "five more reconciles", func(context.Context) error {
		if o.lookCount() < settled {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if _, err := get(t.Context(), ns, "auto-1", &v1alpha1.Rebalance{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted object came back: %v", err)
	}
	if _, err := get(t.Context(), ns, "auto-6", &v1alpha1.Rebalance{}); err != nil {
		t.Errorf("the newest object is gone: %v", err)
	}
}

func TestRebalancesWaitTheirTurnAndCanBeStopped(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	orphan := newRebalance(ns, "early")
	if err := kube.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	object := waitPhase(t, ns, "early", v1alpha1.RebalancePending)
	if !strings.Contains(object.Status.Message, "store kv does not exist") {
		t.Errorf("message: %s", object.Status.Message)
	}
	makeStore(t, ns)
	makeReady(t, ns)
	waitPhase(t, ns, "early", v1alpha1.RebalanceTracing)
	if err := kube.Create(t.Context(), newRebalance(ns, "second")); err != nil {
		t.Fatal(err)
	}
	object = waitPhase(t, ns, "second", v1alpha1.RebalancePending)
	if !strings.Contains(object.Status.Message, "rebalance early is under way") {
		t.Errorf("message: %s", object.Status.Message)
	}
	patchSpec(t, ns, "early", `{"stop":true}`)
	waitPhase(t, ns, "early", v1alpha1.RebalanceStopped)
	waitPhase(t, ns, "second", v1alpha1.RebalanceTracing)
	err := kube.Patch(t.Context(), &v1alpha1.Rebalance{ObjectMeta: metav1.ObjectMeta{Name: "early", Namespace: ns}},
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"stop":false}}`)))
	if err == nil || !strings.Contains(err.Error(), "make a new Rebalance") {
		t.Errorf("a stopped rebalance was started again: %v", err)
	}
}
