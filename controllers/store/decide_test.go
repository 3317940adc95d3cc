// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
)

func TestPolicy(t *testing.T) {
	store := &v1alpha1.Store{Spec: v1alpha1.StoreSpec{
		Placement: v1alpha1.Placement{Policy: v1alpha1.PlacementOptimized},
		Rebalancing: v1alpha1.Rebalancing{
			Mode: v1alpha1.RebalancingAuto, Approval: v1alpha1.ApprovalManual,
			MPOShareThreshold: "12.5%", ImbalanceThreshold: "150%", MinimumGain: "0%", ImbalanceTolerance: "5%",
			Cooldown: &metav1.Duration{Duration: time.Minute}, Rate: quantity("64Mi"), MaxBytes: quantity("1Gi"), MaxMoves: 7,
		},
	}}
	p, err := policy(store)
	if err != nil {
		t.Fatal(err)
	}
	if p.GetMode() != "Auto" || p.GetApproval() != "Manual" || p.GetMpoShareThreshold() != 0.125 || p.GetImbalanceThreshold() != 1.5 ||
		p.GetCooldownSeconds() != 60 || p.GetRateBytesPerSecond() != 64<<20 || p.GetMaxBytes() != 1<<30 || p.GetMaxMoves() != 7 {
		t.Errorf("policy: %v", p)
	}
	if p.GetMinimumGain() <= 0 || p.GetMinimumGain() > 1e-6 {
		t.Errorf("0%% became %v: the oracle takes 0 for unset", p.GetMinimumGain())
	}
	store.Spec.Placement.Policy = v1alpha1.PlacementStatic
	if p, err = policy(store); err != nil || p.GetMode() != "Off" {
		t.Errorf("a static placement gives mode %s, %v", p.GetMode(), err)
	}
	store.Spec.Rebalancing.MinimumGain = "much"
	if _, err = policy(store); err == nil || !strings.Contains(err.Error(), "spec.rebalancing.minimumGain") {
		t.Errorf("the error does not name the field: %v", err)
	}
}

func quantity(text string) *resource.Quantity {
	return new(resource.MustParse(text))
}

func TestSamePolicyLeavesUnsetFieldsToTheOracle(t *testing.T) {
	actual := &oraclev1.Policy{Mode: "Auto", MaxMoves: 100, StepVertices: 64}
	for _, test := range []struct {
		wanted *oraclev1.Policy
		want   bool
	}{
		{&oraclev1.Policy{Mode: "Auto"}, true},
		{&oraclev1.Policy{Mode: "Auto", MaxMoves: 100}, true},
		{&oraclev1.Policy{Mode: "Auto", MaxMoves: 99}, false},
		{&oraclev1.Policy{Mode: "Off"}, false},
	} {
		if got := samePolicy(test.wanted, actual); got != test.want {
			t.Errorf("samePolicy(%v, %v) = %t", test.wanted, actual, got)
		}
	}
	if samePolicy(&oraclev1.Policy{Mode: "Auto"}, nil) {
		t.Error("an oracle without a policy is taken to have the wanted one")
	}
}

func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{0: "0.0%", 0.12345: "12.3%", 1: "100.0%", math.Inf(1): ""} {
		if got := v1alpha1.FormatPercent(share); got != want {
			t.Errorf("FormatPercent(%v) = %q, want %q", share, got, want)
		}
	}
	for _, text := range []string{"", "5", "%", "x%"} {
		if _, err := v1alpha1.ParsePercent(text); err == nil {
			t.Errorf("ParsePercent(%q) gave no error", text)
		}
	}
}

func TestFindFault(t *testing.T) {
	now := time.Now()
	young, old := metav1.NewTime(now.Add(-patience/2)), metav1.NewTime(now.Add(-2*patience))
	waiting := func(name, reason, last string) corev1.Pod {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: old}}
		status := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "back-off"}}}
		if last != "" {
			status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Message: last}
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
		return pod
	}
	unschedulable := func(since metav1.Time) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", CreationTimestamp: since}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"},
		}}}
	}
	claim := func(phase corev1.PersistentVolumeClaimPhase, since metav1.Time) corev1.PersistentVolumeClaim {
		return corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data-kv-shard-1-0", CreationTimestamp: since},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: phase},
		}
	}
	leaving := waiting("p", "CrashLoopBackOff", "")
	leaving.DeletionTimestamp = &young
	for name, test := range map[string]struct {
		pods    []corev1.Pod
		claims  []corev1.PersistentVolumeClaim
		reason  string
		message string
	}{
		"healthy":               {},
		"starting":              {pods: []corev1.Pod{waiting("p", "ContainerCreating", "")}},
		"image":                 {pods: []corev1.Pod{waiting("p", "ErrImagePull", "")}, reason: "ImagePullFailed", message: "back-off"},
		"crash says why":        {pods: []corev1.Pod{waiting("p", "CrashLoopBackOff", "wal: record 7 is corrupt")}, reason: "ContainerCrashes", message: "record 7 is corrupt"},
		"the first by name":     {pods: []corev1.Pod{waiting("z", "ErrImagePull", ""), waiting("a", "CrashLoopBackOff", "")}, reason: "ContainerCrashes", message: "pod a"},
		"a pod that leaves":     {pods: []corev1.Pod{leaving}},
		"no node":               {pods: []corev1.Pod{unschedulable(old)}, reason: "PodUnschedulable", message: "0/1 nodes"},
		"no node yet":           {pods: []corev1.Pod{unschedulable(young)}},
		"no volume":             {claims: []corev1.PersistentVolumeClaim{claim(corev1.ClaimPending, old)}, reason: "VolumePending", message: "storage class"},
		"no volume yet":         {claims: []corev1.PersistentVolumeClaim{claim(corev1.ClaimPending, young)}},
		"volume lost":           {claims: []corev1.PersistentVolumeClaim{claim(corev1.ClaimLost, young)}, reason: "VolumePending", message: "Lost"},
		"pods come before them": {pods: []corev1.Pod{waiting("p", "ErrImagePull", "")}, claims: []corev1.PersistentVolumeClaim{claim(corev1.ClaimLost, old)}, reason: "ImagePullFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := findFault(test.pods, test.claims, now)
			if f == nil {
				f = &fault{}
			}
			if f.reason != test.reason || !strings.Contains(f.message, test.message) {
				t.Errorf("got %+v, want %s with %q", f, test.reason, test.message)
			}
		})
	}
}
