// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// installChart installs the chart as a user does, into a namespace that takes
// restricted pods alone.
func installChart(t *testing.T, k *cluster) {
	k.apply(t, "namespaces.yaml")
	k.must(t, 3*time.Minute, "", k.helm, "install", release, "charts/kolocate", "--namespace", operatorNamespace,
		"--values", "e2e/testdata/values.yaml", "--set", k.imageTags(), "--wait", "--timeout", "150s")
	k.say(t, "chart installed, operator ready")
	var dashboards corev1.ConfigMapList
	if err := k.kube.List(t.Context(), &dashboards, client.InNamespace(operatorNamespace), client.MatchingLabels{"grafana_dashboard": "1"}); err != nil {
		t.Fatal(err)
	}
	if len(dashboards.Items) == 0 {
		t.Error("the chart made no ConfigMap with the label grafana_dashboard=1: Grafana would find no dashboard")
	}
	for _, kind := range []string{"stores.kolocate.io", "rebalances.kolocate.io"} {
		k.must(t, time.Minute, "", k.kubectl, "wait", "--for", "condition=Established", "--timeout", "50s", "crd/"+kind)
	}
}

// imageTags sets the tag of every image of the chart.
func (k *cluster) imageTags() string {
	return fmt.Sprintf("images.kolocate.tag=%[1]s,images.partitioner.tag=%[1]s,images.envoy.tag=%[1]s", k.tag)
}

// uninstallChart removes the release. Helm never removes CRDs that lie in a
// chart's crds folder, for with them every Store would go.
func uninstallChart(t *testing.T, k *cluster) {
	k.must(t, 2*time.Minute, "", k.helm, "uninstall", release, "--namespace", operatorNamespace, "--wait", "--timeout", "100s")
	k.until(t, time.Minute, "the operator's namespace is empty", func(ctx context.Context) error {
		return k.empty(ctx, operatorNamespace)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, kinds := range []string{
		"clusterroles,clusterrolebindings,priorityclasses",
		"validatingwebhookconfigurations,mutatingwebhookconfigurations,apiservices",
	} {
		out, err := k.run(ctx, "", k.kubectl, "get", kinds, "--output", "name")
		if err != nil {
			t.Fatal(err)
		}
		for object := range strings.FieldsSeq(out) {
			if strings.Contains(object, "kolocate") && !strings.Contains(object, "apiservice") {
				t.Errorf("%s is still there after helm uninstall", object)
			}
		}
	}
	out, err := k.run(ctx, "", k.kubectl, "get", "crds", "--output", "name")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"stores.kolocate.io", "rebalances.kolocate.io"} {
		if !strings.Contains(out, kind) {
			t.Errorf("the CRD %s went with the release: all Stores would be deleted by helm uninstall", kind)
		}
	}
	k.say(t, "only the CRDs are left, as Helm keeps them: kubectl delete crd stores.kolocate.io rebalances.kolocate.io removes them")
}

// everyNamespace holds what Kubernetes itself puts into each namespace.
var everyNamespace = []string{"configmap/kube-root-ca.crt", "serviceaccount/default"}

// empty says what is in a namespace beyond what Kubernetes puts into each.
func (k *cluster) empty(ctx context.Context, namespace string) error {
	out, err := k.run(ctx, "", k.kubectl, "api-resources", "--verbs", "list", "--namespaced", "--output", "name")
	if err != nil {
		return err
	}
	var kinds []string
	for kind := range strings.FieldsSeq(out) {
		// Events tell what happened, and vanish by themselves.
		if !strings.HasPrefix(kind, "events") {
			kinds = append(kinds, kind)
		}
	}
	out, err = k.run(ctx, "", k.kubectl, "get", strings.Join(kinds, ","), "--namespace", namespace, "--output", "name", "--ignore-not-found")
	if err != nil {
		return err
	}
	var left []string
	for object := range strings.FieldsSeq(out) {
		if !slices.Contains(everyNamespace, object) {
			left = append(left, object)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("namespace %s still holds %s", namespace, strings.Join(left, ", "))
	}
	return nil
}
