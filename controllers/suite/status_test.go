// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
)

func TestStatusShowsTheStore(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	_, o := makeStore(t, ns)
	store := waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionFalse, "OracleStarting")
	if store.Status.Phase != "Starting" || store.Status.Ready != "0/2" {
		t.Errorf("status at the start: %+v", store.Status)
	}
	o.change(func() {
		o.status.Epoch, o.status.MpoShare, o.status.Imbalance, o.status.Overrides = 7, 0.1234, 0.5, 12
	})
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")
	store = waitCondition(t, ns, v1alpha1.ConditionProgressing, metav1.ConditionFalse, "")
	s := store.Status
	if s.Phase != "Ready" || s.Epoch != 7 || s.MPOShare != "12.3%" || s.Imbalance != "50.0%" || s.Overrides != 12 ||
		s.Shards != 2 || s.ReadyShards != 2 || s.Ready != "2/2" || s.Endpoint != "kv-edge."+ns+".svc:8080" {
		t.Errorf("status: %+v", s)
	}
	scale := &autoscalingv1.Scale{}
	if err := kube.SubResource("scale").Get(t.Context(), store, scale); err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 2 || scale.Status.Replicas != 2 || !strings.Contains(scale.Status.Selector, "app.kubernetes.io/component=shard") {
		t.Errorf("scale: %+v", scale)
	}
	if value := gauge(t, ns, "kv"); value != 1 {
		t.Errorf("kolocate_operator_store_ready is %v, want 1", value)
	}
}

// gauge gives the value of kolocate_operator_store_ready.
func gauge(t *testing.T, namespace, store string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if family.GetName() == "kolocate_operator_store_ready" && labels["namespace"] == namespace && labels["store"] == store {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// TestTheDashboardsMetricsExist holds that the metrics of controller-runtime
// which the dashboards show have the names and labels that they go by.
func TestTheDashboardsMetricsExist(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	makeStore(t, ns)
	eventually(t, "the metrics", func(context.Context) error {
		families, err := metrics.Registry.Gather()
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					found[family.GetName()+" "+label.GetName()+"="+label.GetValue()] = true
				}
			}
		}
		for _, want := range []string{
			"controller_runtime_reconcile_total controller=store", "controller_runtime_reconcile_total result=success",
			"controller_runtime_reconcile_time_seconds controller=store", "controller_runtime_reconcile_errors_total controller=store",
			"workqueue_depth controller=store", "workqueue_depth controller=rebalance",
		} {
			if !found[want] {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
}

func TestPolicyReachesTheOracle(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, o := makeStore(t, ns)
	makeReady(t, ns)
	policyIs := func(want func(*oraclev1.Policy) bool) func(context.Context) error {
		return func(context.Context) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			if !want(o.status.GetPolicy()) {
				return fmt.Errorf("policy is %v", o.status.GetPolicy())
			}
			return nil
		}
	}
	eventually(t, "the policy", policyIs(func(p *oraclev1.Policy) bool {
		return p.GetMode() == "Auto" && p.GetMpoShareThreshold() == 0.05 && p.GetRateBytesPerSecond() == 64<<20 && p.GetWindowSeconds() == 30
	}))
	base := store.DeepCopy()
	store.Spec.Placement.Policy = v1alpha1.PlacementStatic
	if err := kube.Patch(t.Context(), store, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a static placement turns rebalancing off", policyIs(func(p *oraclev1.Policy) bool { return p.GetMode() == "Off" }))
	// A policy that someone else set is replaced.
	o.change(func() { o.status.Policy.Mode = "Auto" })
	eventually(t, "the policy to come back", policyIs(func(p *oraclev1.Policy) bool { return p.GetMode() == "Off" }))
}

func TestScalingUpLeavesTheOracleAlone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, o := makeStore(t, ns)
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	before, err := get(t.Context(), ns, "kv-oracle", &appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	if err := kube.SubResource("scale").Update(t.Context(), store, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the third shard", func(ctx context.Context) error {
		_, err := get(ctx, ns, "kv-shard-3", &appsv1.StatefulSet{})
		return err
	})
	eventually(t, "the oracle to know it", func(context.Context) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if n := len(o.status.GetShards()); n != 3 {
			return fmt.Errorf("it knows %d shards", n)
		}
		return nil
	})
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	after, err := get(t.Context(), ns, "kv-oracle", &appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != before.Generation {
		t.Error("the oracle is restarted when a shard is added")
	}
}

func TestFaultsAreShown(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	_, o := makeStore(t, ns)
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "")

	o.change(func() { o.refusal = status.Error(codes.Unavailable, "this replica does not lead; try again") })
	waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "OracleUnreachable")
	o.change(func() { o.refusal = nil })
	waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "NoFault")

	set, err := get(t.Context(), ns, "kv-shard-1", &appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kv-shard-1-0", Namespace: ns, Labels: set.Spec.Template.Labels},
		Spec:       *set.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	if err := kube.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:  "kolocate",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "kolocate:test"`}},
	}}
	if err := kube.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	store := waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ImagePullFailed")
	if c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, "kv-shard-1-0") || !strings.Contains(c.Message, "pulling image") {
		t.Errorf("the condition names neither pod nor cause: %s", c.Message)
	}
	if store.Status.Phase != "Degraded" {
		t.Errorf("phase is %s", store.Status.Phase)
	}
	if err := kube.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "NoFault")
}

// TestNothingOutlivesTheStore checks what the garbage collector goes by, because
// none runs here: every object in the namespace leads to the store through its
// owners. The volumes follow their StatefulSet by its retention policy.
func TestNothingOutlivesTheStore(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, o := makeStore(t, ns)
	makeReady(t, ns)
	job := runToPartitioning(t, ns, o, "last")
	owners := map[string]string{}
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{}, &v1alpha1.RebalanceList{},
	} {
		if err := kube.List(t.Context(), list, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelStore: "kv"}); err != nil {
			t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil || len(items) == 0 {
			t.Fatalf("%T: %d items, %v", list, len(items), err)
		}
		for _, item := range items {
			object, err := meta.Accessor(item)
			if err != nil {
				t.Fatal(err)
			}
			if !metav1.IsControlledBy(object, store) {
				t.Errorf("%T %s has owners %v", item, object.GetName(), object.GetOwnerReferences())
			}
			if len(object.GetFinalizers()) > 0 {
				t.Errorf("%T %s waits for finalizers %v", item, object.GetName(), object.GetFinalizers())
			}
			owners[object.GetName()] = string(object.GetUID())
		}
	}
	if c := metav1.GetControllerOf(job); c == nil || c.Kind != "Rebalance" || string(c.UID) != owners["last"] {
		t.Errorf("the Job's owner is %+v", c)
	}
	if err := kube.Delete(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store to go", func(ctx context.Context) error {
		_, err := get(ctx, ns, "kv", &v1alpha1.Store{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
	eventually(t, "its metric to go", func(context.Context) error {
		if value := gauge(t, ns, "kv"); value != -1 {
			return fmt.Errorf("kolocate_operator_store_ready is %v", value)
		}
		return nil
	})
}

func TestAForeignObjectIsLeftAlone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: ns}}
	if err := kube.Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	yes := true
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kv-edge", Namespace: ns, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes},
	}}, Data: map[string]string{"mine": "yes"}}
	if err := kube.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	if err := kube.Create(t.Context(), smallStore(ns)); err != nil {
		t.Fatal(err)
	}
	store := waitCondition(t, ns, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ApplyFailed")
	if c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, "kv-edge") {
		t.Errorf("the condition does not name the object: %s", c.Message)
	}
	found, err := get(t.Context(), ns, "kv-edge", &corev1.ConfigMap{})
	if err != nil || found.Data["mine"] != "yes" || len(found.Data) != 1 {
		t.Errorf("the foreign object was changed: %v, %v", found.Data, err)
	}
}
