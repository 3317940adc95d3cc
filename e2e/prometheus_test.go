// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// startPrometheus starts a Prometheus with the chart's scrape configuration and
// alert rules, and waits until it scrapes every part.
func startPrometheus(t *testing.T, k *cluster) {
	rules := k.alertRules(t)
	if err := os.WriteFile(filepath.Join(k.output, "rules.yaml"), rules, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := k.kube.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus", Namespace: monitorNamespace},
		Data:       map[string]string{"rules.yaml": string(rules), "prometheus.yml": string(k.scrapeConfig(t))},
	}); err != nil {
		t.Fatal(err)
	}
	k.apply(t, "prometheus.yaml")
	k.until(t, 2*time.Minute, "Prometheus is ready", func(ctx context.Context) error {
		var deployment appsv1.Deployment
		if err := k.get(ctx, monitorNamespace, "prometheus", &deployment); err != nil {
			return err
		}
		if deployment.Status.AvailableReplicas != 1 {
			return fmt.Errorf("no pod of it is available: %v", k.podsReady(ctx, monitorNamespace))
		}
		return nil
	})
	address := k.forward(t, monitorNamespace, "deployment/prometheus", 9090)
	k.until(t, time.Minute, "Prometheus scrapes every part", func(ctx context.Context) error {
		return k.scraped(ctx, t, address)
	})
}

// scrapeConfig is the chart's scrape configuration with the pods as they are
// now in the place of Kubernetes service discovery, which Debian's Prometheus is
// built without: one target for each port of a container, with the same labels.
func (k *cluster) scrapeConfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(k.root, "charts", "kolocate", "files", "scrape-config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := k.kube.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	var targets []map[string]any
	for i := range pods.Items {
		targets = append(targets, discovered(&pods.Items[i])...)
	}
	jobs, ok := config["scrape_configs"].([]any)
	if !ok || len(jobs) != 1 {
		t.Fatalf("charts/kolocate/files/scrape-config.yaml has the jobs %v, expected one", config["scrape_configs"])
	}
	job, ok := jobs[0].(map[string]any)
	if !ok || job["kubernetes_sd_configs"] == nil {
		t.Fatalf("the job of charts/kolocate/files/scrape-config.yaml has no kubernetes_sd_configs: %v", jobs[0])
	}
	delete(job, "kubernetes_sd_configs")
	job["static_configs"] = targets
	config["global"] = map[string]any{"evaluation_interval": "5s"}
	config["rule_files"] = []string{"rules.yaml"}
	text, err = yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// discovered gives the targets that service discovery would find in a pod
// (Prometheus documentation, kubernetes_sd_config, role pod).
func discovered(pod *corev1.Pod) (targets []map[string]any) {
	labels := map[string]string{
		"__meta_kubernetes_namespace": pod.Namespace, "__meta_kubernetes_pod_name": pod.Name,
		"__meta_kubernetes_pod_ip": pod.Status.PodIP, "__meta_kubernetes_pod_phase": string(pod.Status.Phase),
	}
	for name, value := range pod.Labels {
		labels["__meta_kubernetes_pod_label_"+labelName.ReplaceAllString(name, "_")] = value
	}
	for name, value := range pod.Annotations {
		labels["__meta_kubernetes_pod_annotation_"+labelName.ReplaceAllString(name, "_")] = value
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			own := maps.Clone(labels)
			own["__meta_kubernetes_pod_container_name"] = container.Name
			own["__meta_kubernetes_pod_container_port_name"] = port.Name
			own["__meta_kubernetes_pod_container_port_number"] = strconv.Itoa(int(port.ContainerPort))
			targets = append(targets, map[string]any{
				"targets": []string{net.JoinHostPort(pod.Status.PodIP, own["__meta_kubernetes_pod_container_port_number"])}, "labels": own,
			})
		}
	}
	return targets
}

// labelName matches what a label of Prometheus may not hold.
var labelName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// scraped says which part Prometheus does not scrape. Nine shard replicas, the
// oracle, Envoy and the operator make twelve.
func (k *cluster) scraped(ctx context.Context, t *testing.T, address string) error {
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				Labels    map[string]string `json:"labels"`
				Health    string            `json:"health"`
				LastError string            `json:"lastError"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if err := getJSON(ctx, "http://"+address+"/api/v1/targets?state=active", &answer); err != nil {
		return err
	}
	up := map[string]int{}
	var down []string
	for _, target := range answer.Data.ActiveTargets {
		if target.Health != "up" {
			down = append(down, fmt.Sprintf("%s is %s %s", target.Labels["pod"], target.Health, target.LastError))
			continue
		}
		part := "operator"
		for _, component := range []string{"shard", "oracle", "edge"} {
			if strings.HasPrefix(target.Labels["pod"], storeName+"-"+component+"-") && target.Labels["store"] == storeName {
				part = component
			}
		}
		up[part]++
	}
	found := fmt.Sprintf("%d operator, %d shard replicas, %d oracle, %d edge", up["operator"], up["shard"], up["oracle"], up["edge"])
	if len(down) > 0 || up["operator"] != 1 || up["shard"] != 9 || up["oracle"] != 1 || up["edge"] != 1 {
		return fmt.Errorf("expected 1 operator, 9 shard replicas, 1 oracle and 1 edge, found %s; %s", found, strings.Join(down, ", "))
	}
	k.say(t, "scraped: %s", found)
	return nil
}

// alertRules renders the chart's PrometheusRule and gives the groups in it as a
// rule file of Prometheus.
func (k *cluster) alertRules(t *testing.T) []byte {
	t.Helper()
	out := k.must(t, time.Minute, "", k.helm, "template", release, "charts/kolocate", "--namespace", operatorNamespace,
		"--values", "e2e/testdata/values.yaml", "--set", "metrics.prometheusRule.enabled=true")
	for document := range strings.SplitSeq(out, "\n---") {
		var object struct {
			Kind string         `json:"kind"`
			Spec map[string]any `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("reading what helm template rendered: %v", err)
		}
		if object.Kind == "PrometheusRule" {
			rules, err := yaml.Marshal(object.Spec)
			if err != nil {
				t.Fatal(err)
			}
			return rules
		}
	}
	t.Fatal("the chart renders no PrometheusRule with prometheusRule.enabled=true")
	return nil
}

// checkDashboards asks Prometheus every query of every dashboard; one without
// data, or none at all, is a fault.
func checkDashboards(t *testing.T, k *cluster) {
	address := k.forward(t, monitorNamespace, "deployment/prometheus", 9090)
	// A rate needs two scrapes after the thing it is about has happened.
	deadline := time.Now().Add(45 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := k.run(ctx, "", k.promcheck, "--url", "http://"+address, "--namespace", storeNamespace, "--store", storeName,
			"charts/kolocate/dashboards", "charts/kolocate/files/alerts.yaml")
		cancel()
		if err == nil {
			lines := strings.Split(strings.TrimSpace(out), "\n")
			k.say(t, "promcheck: %s", lines[len(lines)-1])
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("dashboards: %v\n%s", err, out)
		}
		select {
		case <-time.After(5 * time.Second):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// checkRules has the alert rules checked by promtool, if it is there, and sees
// that Prometheus evaluates each without an error.
func checkRules(t *testing.T, k *cluster) {
	if k.promtool != "" {
		out := k.must(t, time.Minute, "", k.promtool, "check", "rules", filepath.Join(k.output, "rules.yaml"))
		k.say(t, "promtool: %s", strings.Join(strings.Fields(out), " "))
	}
	address := k.forward(t, monitorNamespace, "deployment/prometheus", 9090)
	k.until(t, 30*time.Second, "every alert rule is evaluated", func(ctx context.Context) error {
		var answer struct {
			Data struct {
				Groups []struct {
					Rules []struct {
						Name      string `json:"name"`
						Health    string `json:"health"`
						LastError string `json:"lastError"`
						State     string `json:"state"`
					} `json:"rules"`
				} `json:"groups"`
			} `json:"data"`
		}
		if err := getJSON(ctx, "http://"+address+"/api/v1/rules", &answer); err != nil {
			return err
		}
		count := 0
		var firing []string
		for _, group := range answer.Data.Groups {
			for _, rule := range group.Rules {
				count++
				if rule.Health != "ok" {
					return fmt.Errorf("rule %s is %s: %s", rule.Name, rule.Health, rule.LastError)
				}
				if rule.State == "firing" {
					firing = append(firing, rule.Name)
				}
			}
		}
		if count == 0 {
			return fmt.Errorf("Prometheus has loaded no rule")
		}
		k.say(t, "%d rules, firing: %v", count, firing)
		return nil
	})
}

// getJSON reads an HTTP answer into a value.
func getJSON(ctx context.Context, url string, into any) error {
	body, err := getBody(ctx, url)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	return nil
}

func getBody(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %.200s", url, response.Status, body)
	}
	return body, nil
}
