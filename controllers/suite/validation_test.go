// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// parse reads a manifest as kubectl does: without the types of this module.
func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatalf("reading a manifest: %v", err)
	}
	return object
}

const header = "apiVersion: kolocate.io/v1alpha1\nkind: Store\nmetadata: {name: kv}\n"

func TestBadStoresAreRefused(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	for name, test := range map[string]struct{ manifest, want string }{
		"negative shards":       {header + "spec: {shards: -1}", "spec.shards"},
		"no shard":              {header + "spec: {shards: 0}", "greater than or equal to 1"},
		"too many shards":       {header + "spec: {shards: 65}", "less than or equal to 64"},
		"shards missing":        {header + "spec: {replicas: 1}", "spec.shards: Required"},
		"zero replicas":         {header + "spec: {shards: 1, replicas: 0}", `supported values: "1", "3", "5"`},
		"two replicas":          {header + "spec: {shards: 1, replicas: 2}", "spec.replicas"},
		"unknown field":         {header + "spec: {shards: 1, shardz: 2}", `unknown field "spec.shardz"`},
		"unknown nested field":  {header + "spec: {shards: 1, rebalancing: {mod: Auto}}", `unknown field "spec.rebalancing.mod"`},
		"placement on demand":   {header + "spec: {shards: 1, placement: {policy: OnDemand}}", "OnDemand does not exist yet: use Static"},
		"no storage":            {header + "spec: {shards: 1, storage: {size: '0'}}", "size must be greater than 0"},
		"share over 100 %":      {header + "spec: {shards: 1, rebalancing: {mpoShareThreshold: 101%}}", "mpoShareThreshold"},
		"share without percent": {header + "spec: {shards: 1, rebalancing: {minimumGain: '0.1'}}", "minimumGain"},
		"tolerance of nothing":  {header + "spec: {shards: 1, rebalancing: {imbalanceTolerance: 0.00%}}", "no plan balances better"},
		"negative window":       {header + "spec: {shards: 1, rebalancing: {window: -1s}}", "must be from 1s to 24h"},
		"no rate":               {header + "spec: {shards: 1, rebalancing: {rate: '0'}}", "must be greater than 0"},
		"preconfiguration":      {header + "spec: {shards: 1, rebalancing: {preconfiguration: best}}", "preconfiguration"},
		"two oracles":           {header + "spec: {shards: 1, oracle: {replicas: 2}}", "spec.oracle.replicas"},
		"long name":             {strings.Replace(header, "kv", "k"+strings.Repeat("v", 40), 1) + "spec: {shards: 1}", "must be 1 to 40 lower case letters"},
		"name with a digit":     {strings.Replace(header, "kv", "1kv", 1) + "spec: {shards: 1}", "beginning with a letter"},
		"rebalance of nothing":  {strings.Replace(header, "Store", "Rebalance", 1) + "spec: {}", "spec.storeRef: Required"},
		"rebalance tracing":     {strings.Replace(header, "Store", "Rebalance", 1) + "spec: {storeRef: {name: kv}, traceSeconds: -1}", "spec.traceSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := parse(t, test.manifest)
			object.SetNamespace(ns)
			err := kube.Create(t.Context(), object)
			if err == nil {
				t.Fatal("it was accepted")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the refusal does not say %q: %v", test.want, err)
			}
		})
	}
}

func TestChangesThatCannotBeMadeAreRefused(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	object := parse(t, header+"spec: {shards: 3, replicas: 1}")
	object.SetNamespace(ns)
	if err := kube.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ patch, want string }{
		"fewer shards":     {`{"spec":{"shards":2}}`, "spec.shards cannot shrink in this version"},
		"more replicas":    {`{"spec":{"replicas":3}}`, "spec.replicas cannot change in this version"},
		"more storage":     {`{"spec":{"storage":{"size":"20Gi"}}}`, "storage.size cannot change in this version"},
		"storage class":    {`{"spec":{"storage":{"storageClassName":"fast"}}}`, "storageClassName cannot change"},
		"oracle replicas":  {`{"spec":{"oracle":{"replicas":3}}}`, "oracle.replicas cannot change"},
		"oracle's storage": {`{"spec":{"oracle":{"storage":{"size":"2Gi"}}}}`, "storage.size cannot change in this version"},
	} {
		t.Run(name, func(t *testing.T) {
			err := kube.Patch(t.Context(), object.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(test.patch)))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want a refusal that says %q, got %v", test.want, err)
			}
		})
	}
	t.Run("fewer shards by kubectl scale", func(t *testing.T) {
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 1}}
		err := kube.SubResource("scale").Update(t.Context(), object.DeepCopy(), client.WithSubResourceBody(scale))
		if err == nil || !strings.Contains(err.Error(), "cannot shrink") {
			t.Errorf("want a refusal, got %v", err)
		}
	})
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	object := parse(t, header+"spec: {shards: 2}")
	object.SetNamespace(ns)
	if err := kube.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	store, err := get(t.Context(), ns, "kv", &v1alpha1.Store{})
	if err != nil {
		t.Fatal(err)
	}
	spec := store.Spec
	if spec.Replicas != 3 || spec.Oracle.Replicas != 1 || spec.Edge.Replicas != 1 || spec.Storage.Size.String() != "10Gi" ||
		spec.Storage.Retention != "Delete" || spec.Placement.Policy != "Optimized" || spec.Rebalancing.Mode != "Auto" ||
		spec.Rebalancing.MPOShareThreshold != "5%" || spec.Rebalancing.Rate.String() != "64Mi" || spec.Oracle.Storage.Size.String() != "1Gi" {
		t.Errorf("defaults: %+v", spec)
	}
}

// TestSamplesAreAccepted applies every manifest that users are pointed to.
func TestSamplesAreAccepted(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	files, err := filepath.Glob(filepath.Join("..", "..", "manifests", "samples", "*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("samples: %q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object := parse(t, string(text))
		object.SetNamespace(ns)
		if err := kube.Create(t.Context(), object); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
