// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxShareOf is how much of the share of multi-shard commands may be left after
// the rebalance, and nearPrediction how far it may be from what the plan said.
const (
	maxShareOf     = 0.4
	nearPrediction = 0.05
)

// startLoad starts the Job that drives the social workload through Envoy.
func startLoad(t *testing.T, k *cluster) {
	if err := k.kube.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "network", Namespace: clientNamespace},
		Data:       map[string]string{"friends.txt": network()},
	}); err != nil {
		t.Fatal(err)
	}
	k.watch = k.startWatch()
	k.apply(t, "load.yaml", "{{ADDRESS}}", fmt.Sprintf("%s-edge.%s.svc:8080", storeName, storeNamespace))
	k.until(t, time.Minute, "load flows", func(ctx context.Context) error {
		log, err := k.loadLog(ctx)
		if err != nil {
			return err
		}
		if !strings.Contains(log, "commands/s") {
			return fmt.Errorf("no line about commands in the log of the Job yet: %.300s", log)
		}
		return nil
	})
}

// The network: circles of friends, small enough to be learned within the window
// of the sample Store by a machine of two cores.
const (
	circles      = 40
	circleSize   = 25
	friendsOfOne = 4
	// acquaintances is the share of friendships beyond the circle.
	acquaintances = 0.02
)

// network gives the friendships, one a line. Each user names friendsOfOne
// others, and is named by about as many.
func network() string {
	random := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for user := range circles * circleSize {
		for range friendsOfOne {
			friend := user/circleSize*circleSize + random.IntN(circleSize)
			if random.Float64() < acquaintances {
				friend = random.IntN(circles * circleSize)
			}
			if friend != user {
				fmt.Fprintf(&text, "%d %d\n", user, friend)
			}
		}
	}
	return text.String()
}

func (k *cluster) loadLog(ctx context.Context) (string, error) {
	return k.run(ctx, "", k.kubectl, "logs", "--namespace", clientNamespace, "job/load", "--tail", "-1")
}

// loadRuns ends the check if the load is not there any more: what is done then
// is not done under load.
func (k *cluster) loadRuns(t *testing.T) {
	t.Helper()
	var job batchv1.Job
	if err := k.get(t.Context(), clientNamespace, "load", &job); err != nil {
		t.Fatal(err)
	}
	if job.Status.Active != 1 {
		log, _ := k.loadLog(t.Context())
		t.Fatalf("the load Job does not run (%d succeeded, %d failed), so this is not under load: %s", job.Status.Succeeded, job.Status.Failed, tail(log, 5))
	}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// finishLoad waits for the end of the load Job and judges what it saw.
func finishLoad(t *testing.T, k *cluster) {
	k.until(t, 4*time.Minute, "load Job ended", func(ctx context.Context) error {
		var job batchv1.Job
		if err := k.get(ctx, clientNamespace, "load", &job); err != nil {
			return err
		}
		if job.Status.Succeeded+job.Status.Failed == 0 {
			return fmt.Errorf("it still runs")
		}
		return nil
	})
	log, err := k.loadLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.output, "load.log"), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := k.kube.List(t.Context(), &pods, client.InNamespace(clientNamespace)); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && end.ExitCode != 0 {
				t.Errorf("pod %s ended with exit code %d:\n%s", pods.Items[i].Name, end.ExitCode, tail(log, 12))
			}
		}
	}
	k.judgeLoad(t, log)
	k.must(t, time.Minute, "", k.kubectl, "delete", "job", "load", "--namespace", clientNamespace, "--cascade=foreground", "--timeout", "50s")
}

// summary is the part of the Job's last line that is judged.
type summary struct {
	Commands      uint64  `json:"commands"`
	Errors        uint64  `json:"errors"`
	Lost          uint64  `json:"lost"`
	StaleReads    uint64  `json:"stale_reads"`
	Torn          uint64  `json:"torn_posts"`
	Damaged       uint64  `json:"damaged_values"`
	Acknowledged  uint64  `json:"acknowledged_posts"`
	Before        float64 `json:"mpo_share_before"`
	Predicted     float64 `json:"mpo_share_predicted"`
	After         float64 `json:"mpo_share_after"`
	MovedVertices uint64  `json:"moved_vertices"`
	PauseP99      float64 `json:"handoff_pause_p99_ms"`
}

func (k *cluster) judgeLoad(t *testing.T, log string) {
	t.Helper()
	// A fault is told of after the object.
	line := log[max(0, strings.LastIndex("\n"+log, "\n{")):]
	line, _, _ = strings.Cut(line, "\n")
	var s summary
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		t.Fatalf("the load Job printed no JSON object: %v: %q", err, tail(log, 12))
	}
	k.say(t, "%s", line)
	if s.Commands < 1000 || s.Acknowledged == 0 {
		t.Errorf("%d commands and %d acknowledged posts: that is no load", s.Commands, s.Acknowledged)
	}
	for what, count := range map[string]uint64{
		"failed commands": s.Errors, "lost places": s.Lost, "stale reads": s.StaleReads, "torn posts": s.Torn, "damaged values": s.Damaged,
	} {
		if count != 0 {
			t.Errorf("%d %s, expected none", count, what)
		}
	}
	if s.Before <= 0 || s.After > maxShareOf*s.Before {
		t.Errorf("share of multi-shard commands %.3f before and %.3f after, expected at most %.1f of it", s.Before, s.After, maxShareOf)
	}
	if d := s.After - s.Predicted; d > nearPrediction || d < -nearPrediction {
		t.Errorf("share of multi-shard commands %.3f after, predicted %.3f: further apart than %.2f", s.After, s.Predicted, nearPrediction)
	}
	if s.MovedVertices == 0 {
		t.Error("no vertex moved")
	}
}
