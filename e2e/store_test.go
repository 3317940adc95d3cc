// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// applyStore applies the sample Store as it is, but for what makes nine shard
// replicas fit on a machine of two cores.
func applyStore(t *testing.T, k *cluster) {
	small := k.must(t, time.Minute, "", k.kubectl, "patch", "--local", "--filename", "manifests/samples/store.yaml",
		"--type", "merge", "--patch-file", "e2e/testdata/store-patch.yaml", "--output", "yaml")
	k.must(t, time.Minute, small, k.kubectl, "apply", "--namespace", storeNamespace, "--filename", "-")
	for _, sample := range []string{"store-single.yaml", "rebalance.yaml"} {
		k.must(t, time.Minute, "", k.kubectl, "apply", "--namespace", storeNamespace, "--dry-run=server", "--filename", "manifests/samples/"+sample)
	}
	var store v1alpha1.Store
	k.until(t, 3*time.Minute, "store is Ready", func(ctx context.Context) error {
		if err := k.get(ctx, storeNamespace, storeName, &store); err != nil {
			return err
		}
		return readyError(&store)
	})
	k.until(t, time.Minute, "every pod of the store is ready", func(ctx context.Context) error {
		return k.podsReady(ctx, storeNamespace)
	})
	k.say(t, "%d shards of %d replicas, epoch %d, endpoint %s", store.Status.ReadyShards, store.Spec.Replicas, store.Status.Epoch, store.Status.Endpoint)
	k.say(t, "\n%s", k.must(t, time.Minute, "", k.kubectl, "get", "kolocate", "--namespace", storeNamespace))
}

func readyError(store *v1alpha1.Store) error {
	c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return fmt.Errorf("the operator has not reported on store %s", store.Name)
	case c.Status != metav1.ConditionTrue:
		return fmt.Errorf("store %s is not ready: %s: %s", store.Name, c.Reason, c.Message)
	case c.ObservedGeneration != store.Generation:
		return fmt.Errorf("the operator has not seen generation %d of store %s", store.Generation, store.Name)
	}
	return nil
}

// podsReady says which pod of a namespace is not ready; pods that ended well are.
func (k *cluster) podsReady(ctx context.Context, namespace string) error {
	var pods corev1.PodList
	if err := k.kube.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase != corev1.PodSucceeded && !podReady(pod) {
			return fmt.Errorf("pod %s is %s", pod.Name, podState(pod))
		}
	}
	return nil
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// podState is the phase of a pod and why its container waits or ended.
func podState(pod *corev1.Pod) string {
	text := string(pod.Status.Phase)
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			text += fmt.Sprintf(", %s waits: %s %s", c.Name, w.Reason, w.Message)
		}
		if e := c.LastTerminationState.Terminated; e != nil {
			text += fmt.Sprintf(", %s ended before: %s (exit code %d) %s", c.Name, e.Reason, e.ExitCode, e.Message)
		}
	}
	return text
}

// rejectBadInput sends what a user may get wrong to the real API server.
func rejectBadInput(t *testing.T, k *cluster) {
	sample, err := os.ReadFile("../manifests/samples/store.yaml")
	if err != nil {
		t.Fatal(err)
	}
	change := func(from, to string) string {
		if !strings.Contains(string(sample), from) {
			t.Fatalf("manifests/samples/store.yaml does not hold %q", from)
		}
		return strings.Replace(string(sample), from, to, 1)
	}
	// fresh is a change of a store that does not exist yet.
	fresh := func(from, to string) string {
		return strings.Replace(change(from, to), "name: social", "name: wrong", 1)
	}
	for _, c := range []struct{ name, manifest, want string }{
		{"negative shards", fresh("shards: 3", "shards: -1"), "spec.shards in body should be greater than or equal to 1"},
		{"too many shards", fresh("shards: 3", "shards: 65"), "spec.shards in body should be less than or equal to 64"},
		{"no replicas", fresh("replicas: 3", "replicas: 0"), "spec.replicas: Unsupported value: 0"},
		{"even replicas", fresh("replicas: 3", "replicas: 2"), `supported values: "1", "3", "5"`},
		{"unknown field", fresh("shards: 3", "shards: 3\n  shardz: 3"), `unknown field "spec.shardz"`},
		{"fewer shards than before", change("shards: 3", "shards: 2"), "spec.shards cannot shrink in this version"},
		{"other replicas than before", change("replicas: 3", "replicas: 5"), "spec.replicas cannot change in this version"},
		{"a name that no Service can have", change("name: social", "name: 7-social"), "the name of a Store must be 1 to 40 lower case letters"},
		{"an unknown policy", fresh("policy: Optimized", "policy: Fastest"), `spec.placement.policy: Unsupported value: "Fastest"`},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := k.run(ctx, c.manifest, k.kubectl, "apply", "--namespace", storeNamespace, "--filename", "-")
			if err == nil {
				t.Fatal("kubectl apply accepted it")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("rejected, but without the words %q: %v", c.want, err)
			}
			_, why, _ := strings.Cut(err.Error(), "exit status 1: ")
			k.say(t, "%.400s", why)
		})
	}
	var store v1alpha1.Store
	if err := k.get(t.Context(), storeNamespace, storeName, &store); err != nil {
		t.Fatal(err)
	}
	if store.Spec.Shards != 3 || store.Spec.Replicas != 3 {
		t.Errorf("the store has %d shards of %d replicas, expected 3 of 3 as before", store.Spec.Shards, store.Spec.Replicas)
	}
}

// deleteStore deletes the Store and waits until its namespace holds nothing but
// what Kubernetes puts into each, and no volume was claimed from it.
func deleteStore(t *testing.T, k *cluster) {
	k.must(t, 2*time.Minute, "", k.kubectl, "delete", "store", storeName, "--namespace", storeNamespace, "--timeout", "100s")
	k.until(t, 2*time.Minute, "namespace of the store is empty", func(ctx context.Context) error {
		return k.empty(ctx, storeNamespace)
	})
	k.until(t, time.Minute, "volumes of the store are gone", func(ctx context.Context) error {
		var volumes corev1.PersistentVolumeList
		if err := k.kube.List(ctx, &volumes); err != nil {
			return err
		}
		for i := range volumes.Items {
			if v := &volumes.Items[i]; v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == storeNamespace {
				return fmt.Errorf("volume %s of claim %s is %s", v.Name, v.Spec.ClaimRef.Name, v.Status.Phase)
			}
		}
		return nil
	})
}
