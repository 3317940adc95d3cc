// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	chart     = filepath.Join("..", "..", "charts", "kolocate")
	manifests = filepath.Join("..", "..", "manifests")
)

// TestTheChartHoldsWhatIsGenerated keeps the chart's copies, which Helm cannot
// read from elsewhere, equal to their sources.
func TestTheChartHoldsWhatIsGenerated(t *testing.T) {
	t.Parallel()
	crds, err := filepath.Glob(filepath.Join(manifests, "crds", "*.yaml"))
	if err != nil || len(crds) != 2 {
		t.Fatalf("definitions: %q, %v", crds, err)
	}
	copies := map[string]string{filepath.Join(manifests, "rbac", "role.yaml"): filepath.Join(chart, "files", "role.yaml")}
	for _, crd := range crds {
		copies[crd] = filepath.Join(chart, "crds", filepath.Base(crd))
	}
	for source, target := range copies {
		want, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%s differs from %s: copy it", target, source)
		}
	}
}

// TestTheChartIsAccepted hands what the chart renders to the API server, which
// refuses unknown fields, and the operator's pod to the restricted standard.
func TestTheChartIsAccepted(t *testing.T) {
	t.Parallel()
	const release = "kolocate-system"
	err := kube.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: release, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(chart, "testdata", "default.golden.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) == 0 {
			continue
		}
		kinds[object.GetKind()]++
		if err := kube.Create(t.Context(), object.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("%s %s is refused: %v", object.GetKind(), object.GetName(), err)
		}
		if object.GetKind() == "Deployment" {
			checkOperatorPod(t, object)
		}
	}
	for kind, want := range map[string]int{"Deployment": 1, "ServiceAccount": 1, "ClusterRole": 3, "ClusterRoleBinding": 1, "Role": 1, "ConfigMap": 2} {
		if kinds[kind] != want {
			t.Errorf("the chart renders %d of kind %s, want %d", kinds[kind], kind, want)
		}
	}
}

func checkOperatorPod(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: deployment.Spec.Template.Spec.ServiceAccountName, Namespace: deployment.Namespace}}
	if err := kube.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "operator", Namespace: deployment.Namespace},
		Spec:       deployment.Spec.Template.Spec,
	}
	if err := kube.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Errorf("the operator's pod is refused: %v", err)
	}
}
