// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// smallStore gives a store that nobody has applied yet.
func smallStore(namespace string) *v1alpha1.Store {
	return &v1alpha1.Store{
		ObjectMeta: metav1.ObjectMeta{Name: "kv", Namespace: namespace},
		Spec:       v1alpha1.StoreSpec{Shards: 2, Replicas: 3},
	}
}

// makeStore applies a store with an oracle that answers, and waits for its parts.
func makeStore(t *testing.T, namespace string, with ...func(*v1alpha1.Store)) (*v1alpha1.Store, *fakeOracle) {
	t.Helper()
	store := smallStore(namespace)
	for _, change := range with {
		change(store)
	}
	if err := kube.Create(t.Context(), store); err != nil {
		t.Fatalf("creating the store: %v", err)
	}
	o := startOracle(t, namespace, store.Name, uint32(store.Spec.Shards))
	eventually(t, "the parts of the store", func(ctx context.Context) error {
		_, err := get(ctx, namespace, store.Name+"-edge", &appsv1.Deployment{})
		return err
	})
	return store, o
}

// makeReady does what the controllers of a whole cluster do: it reports the pods
// of the store as ready.
func makeReady(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "reporting pods as ready", func(ctx context.Context) error {
		var sets appsv1.StatefulSetList
		if err := kube.List(ctx, &sets, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range sets.Items {
			set := &sets.Items[i]
			n := *set.Spec.Replicas
			set.Status = appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, Replicas: n, ReadyReplicas: n, UpdatedReplicas: n, AvailableReplicas: n}
			if err := kube.Status().Update(ctx, set); err != nil {
				return err
			}
		}
		var deployments appsv1.DeploymentList
		if err := kube.List(ctx, &deployments, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range deployments.Items {
			d := &deployments.Items[i]
			n := *d.Spec.Replicas
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, ReadyReplicas: n, UpdatedReplicas: n, AvailableReplicas: n}
			if err := kube.Status().Update(ctx, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitCondition waits until a condition of the store has this status.
func waitCondition(t *testing.T, namespace, kind string, is metav1.ConditionStatus, reason string) *v1alpha1.Store {
	t.Helper()
	store := &v1alpha1.Store{}
	eventually(t, fmt.Sprintf("condition %s=%s", kind, is), func(ctx context.Context) error {
		if _, err := get(ctx, namespace, "kv", store); err != nil {
			return err
		}
		c := meta.FindStatusCondition(store.Status.Conditions, kind)
		if c == nil || c.Status != is || (reason != "" && c.Reason != reason) || c.ObservedGeneration != store.Generation {
			return fmt.Errorf("phase %s, conditions %+v", store.Status.Phase, store.Status.Conditions)
		}
		return nil
	})
	return store
}

func TestStoreMakesItsParts(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, _ := makeStore(t, ns)
	for _, object := range []struct {
		name string
		kind client.Object
	}{
		{"kv", &corev1.ServiceAccount{}},
		{"kv-shard-1", &appsv1.StatefulSet{}},
		{"kv-shard-1", &corev1.Service{}},
		{"kv-shard-1", &policyv1.PodDisruptionBudget{}},
		{"kv-shard-2", &appsv1.StatefulSet{}},
		{"kv-shard-2", &corev1.Service{}},
		{"kv-shard-2", &policyv1.PodDisruptionBudget{}},
		{"kv-oracle", &appsv1.StatefulSet{}},
		{"kv-oracle", &corev1.Service{}},
		{"kv-oracle-client", &corev1.Service{}},
		{"kv-oracle", &policyv1.PodDisruptionBudget{}},
		{"kv-edge", &appsv1.Deployment{}},
		{"kv-edge", &corev1.Service{}},
		{"kv-edge", &corev1.ConfigMap{}},
		{"kv-edge", &policyv1.PodDisruptionBudget{}},
	} {
		found, err := get(t.Context(), ns, object.name, object.kind)
		if err != nil {
			t.Errorf("%T %s: %v", object.kind, object.name, err)
			continue
		}
		if !metav1.IsControlledBy(found, store) {
			t.Errorf("%T %s is not owned by the store: it would stay when the store is deleted", object.kind, object.name)
		}
	}
	shard, err := get(t.Context(), ns, "kv-shard-2", &appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	args := shard.Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{
		"shard", "--store=kv", "--shard=2", "--pod-name=$(POD_NAME)", "--advertise=$(POD_IP):7000", "--listen=:7000", "--metrics=:7001",
		"--peers=1=kv-shard-2-0.kv-shard-2." + ns + ".svc:7000,2=kv-shard-2-1.kv-shard-2." + ns + ".svc:7000,3=kv-shard-2-2.kv-shard-2." + ns + ".svc:7000",
		"--oracle=kv-oracle-0.kv-oracle." + ns + ".svc:7100",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("a shard runs without %s: %q", want, args)
		}
	}
	if retention := shard.Spec.PersistentVolumeClaimRetentionPolicy; retention == nil || retention.WhenDeleted != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		t.Errorf("the volumes of a shard would stay when the store is deleted: %+v", retention)
	}
	config, err := get(t.Context(), ns, "kv-edge", &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "kv-oracle-0.kv-oracle." + ns + ".svc"; !strings.Contains(config.Data["envoy.yaml"], want) {
		t.Errorf("Envoy's bootstrap does not name %s:\n%s", want, config.Data["envoy.yaml"])
	}
}

// TestPodsMeetTheRestrictedStandard hands the pod templates to the API server's
// own admission, which enforces the restricted profile in this namespace.
func TestPodsMeetTheRestrictedStandard(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	_, o := makeStore(t, ns)
	makeReady(t, ns)
	job := runToPartitioning(t, ns, o, "check")
	templates := map[string]corev1.PodTemplateSpec{"partitioner": job.Spec.Template}
	for name, kind := range map[string]client.Object{"kv-shard-1": &appsv1.StatefulSet{}, "kv-oracle": &appsv1.StatefulSet{}, "kv-edge": &appsv1.Deployment{}} {
		found, err := get(t.Context(), ns, name, kind)
		if err != nil {
			t.Fatal(err)
		}
		switch found := found.(type) {
		case *appsv1.StatefulSet:
			templates[name] = found.Spec.Template
		case *appsv1.Deployment:
			templates[name] = found.Spec.Template
		}
	}
	for name, template := range templates {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "probe-" + name, Namespace: ns, Labels: map[string]string{"probe": name}},
			Spec:       *template.Spec.DeepCopy(),
		}
		if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
			t.Errorf("%s mounts a token that it does not need", name)
		}
		if !*pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("%s may write to its root file system", name)
		}
		// The claim's volume is added by the StatefulSet controller.
		for _, mount := range pod.Spec.Containers[0].VolumeMounts {
			if mount.Name == "data" {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			}
		}
		if err := kube.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("a pod of %s is refused: %v", name, err)
		}
	}
}

func TestIdleStoreWritesNothing(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	_, o := makeStore(t, ns)
	makeReady(t, ns)
	waitCondition(t, ns, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	waitCondition(t, ns, v1alpha1.ConditionProgressing, metav1.ConditionFalse, "")
	settle := o.lookCount() + 3
	looked := func(times int) func(context.Context) error {
		return func(context.Context) error {
			if n := o.lookCount(); n < times {
				return fmt.Errorf("%d looks at the oracle, waiting for %d", n, times)
			}
			return nil
		}
	}
	eventually(t, "the store to settle", looked(settle))
	before := writes.in(ns)
	if len(before) == 0 {
		t.Fatal("no write was recorded at all: the recorder sees nothing")
	}
	versions := resourceVersions(t, ns)
	eventually(t, "ten more reconciles", looked(settle+10))
	if after := writes.in(ns); len(after) != len(before) {
		t.Errorf("an idle store was written to: %q", after[len(before):])
	}
	if now := resourceVersions(t, ns); fmt.Sprint(now) != fmt.Sprint(versions) {
		t.Errorf("objects changed while the store was idle:\n%v\n%v", versions, now)
	}
}

func resourceVersions(t *testing.T, namespace string) []string {
	t.Helper()
	var all []string
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{},
		&corev1.ServiceAccountList{}, &policyv1.PodDisruptionBudgetList{}, &batchv1.JobList{}, &v1alpha1.StoreList{}, &v1alpha1.RebalanceList{},
	} {
		if err := kube.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err != nil {
				return err
			}
			all = append(all, fmt.Sprintf("%T %s %s", item, object.GetName(), object.GetResourceVersion()))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestDriftIsCorrected(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	store, _ := makeStore(t, ns)
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: ns, Name: name} }

	set := &appsv1.StatefulSet{}
	if err := kube.Get(t.Context(), key("kv-shard-1"), set); err != nil {
		t.Fatal(err)
	}
	edit := set.DeepCopy()
	edit.Spec.Template.Spec.Containers[0].Image = "someone/else:latest"
	if err := kube.Patch(t.Context(), edit, client.MergeFrom(set)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image to come back", func(ctx context.Context) error {
		if err := kube.Get(ctx, key("kv-shard-1"), set); err != nil {
			return err
		}
		if image := set.Spec.Template.Spec.Containers[0].Image; image != "kolocate:test" {
			return fmt.Errorf("image is %s", image)
		}
		return nil
	})

	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kv-edge"}}
	if err := kube.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ConfigMap to come back", func(ctx context.Context) error { return kube.Get(ctx, key("kv-edge"), config) })

	// What is no longer wanted goes away, and what others added stays.
	base := store.DeepCopy()
	store.Spec.PodTemplate.NodeSelector = map[string]string{"disk": "fast"}
	if err := kube.Patch(t.Context(), store, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	selector := func(want int) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := kube.Get(ctx, key("kv-shard-1"), set); err != nil {
				return err
			}
			if n := len(set.Spec.Template.Spec.NodeSelector); n != want {
				return fmt.Errorf("%d node selectors, want %d", n, want)
			}
			return nil
		}
	}
	eventually(t, "the node selector to appear", selector(1))
	labelled := set.DeepCopy()
	labelled.Labels["team"] = "someone"
	if err := kube.Patch(t.Context(), labelled, client.MergeFrom(set)); err != nil {
		t.Fatal(err)
	}
	base = store.DeepCopy()
	store.Spec.PodTemplate.NodeSelector = nil
	if err := kube.Patch(t.Context(), store, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node selector to go", selector(0))
	if set.Labels["team"] != "someone" {
		t.Error("the label that someone else set is gone")
	}
}
