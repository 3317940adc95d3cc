// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kolocate "github.com/kolocate/kolocate/api/client"
	"github.com/kolocate/kolocate/services/keyspace"
)

// longestGap is how long clients may wait for a shard that lost its leader. An
// election takes one to two seconds; the rest is for a machine that is busy.
const longestGap = 20 * time.Second

// killLeaderProcess ends the process of a shard's leader without a word. Its
// container starts again in the same pod and recovers from its disk.
func killLeaderProcess(t *testing.T, k *cluster) {
	const shard = keyspace.ShardID(1)
	k.loadRuns(t)
	address := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 8080)
	leader := k.leaderPod(t, address, shard)
	p := startProbe(t, k, address, shard)
	find := `for p in /proc/[0-9]*; do if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q -- "^[^ ]*kolocate shard .*--pod-name=$0 "; then echo ${p#/proc/}; fi; done`
	out := k.must(t, time.Minute, "", "docker", "exec", k.node, "sh", "-c", find, leader.Name)
	var pid int
	if n, err := fmt.Sscan(out, &pid); err != nil || n != 1 {
		t.Fatalf("finding the process of %s on its node: %q, %v", leader.Name, out, err)
	}
	k.must(t, time.Minute, "", "docker", "exec", k.node, "kill", "-9", fmt.Sprint(pid))
	k.say(t, "killed process %d of %s, leader of %v", pid, leader.Name, shard)
	k.until(t, 2*time.Minute, leader.Name+" runs again", func(ctx context.Context) error {
		var pod corev1.Pod
		if err := k.get(ctx, storeNamespace, leader.Name, &pod); err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) != 1 || pod.Status.ContainerStatuses[0].RestartCount == restarts(leader) || !podReady(&pod) {
			return fmt.Errorf("pod %s is %s", pod.Name, podState(&pod))
		}
		return nil
	})
	k.recovered(t, address, shard, leader.Name)
	p.finish(t, k)
	k.loadRuns(t)
}

// deleteLeaderPod deletes the pod of another shard's leader by force. Its
// successor has another address and finds its volume.
func deleteLeaderPod(t *testing.T, k *cluster) {
	const shard = keyspace.ShardID(2)
	k.loadRuns(t)
	address := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 8080)
	leader := k.leaderPod(t, address, shard)
	p := startProbe(t, k, address, shard)
	k.must(t, time.Minute, "", k.kubectl, "delete", "pod", leader.Name, "--namespace", storeNamespace, "--grace-period", "0", "--force")
	k.say(t, "deleted %s, leader of %v, by force", leader.Name, shard)
	k.until(t, 2*time.Minute, leader.Name+" runs again", func(ctx context.Context) error {
		var pod corev1.Pod
		if err := k.get(ctx, storeNamespace, leader.Name, &pod); err != nil {
			return err
		}
		if pod.UID == leader.UID || !podReady(&pod) {
			return fmt.Errorf("pod %s is %s", pod.Name, podState(&pod))
		}
		return nil
	})
	k.recovered(t, address, shard, leader.Name)
	p.finish(t, k)
	k.loadRuns(t)
}

func restarts(pod *corev1.Pod) int32 {
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

// leaderPod waits until the oracle knows a shard's leader, and gives its pod.
func (k *cluster) leaderPod(t *testing.T, address string, shard keyspace.ShardID) (leader *corev1.Pod) {
	t.Helper()
	k.until(t, time.Minute, fmt.Sprintf("%v has a leader", shard), func(ctx context.Context) (err error) {
		leader, err = k.findLeader(ctx, address, shard)
		return err
	})
	return leader
}

func (k *cluster) findLeader(ctx context.Context, address string, shard keyspace.ShardID) (*corev1.Pod, error) {
	status, err := k.status(ctx, address)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := k.kube.List(ctx, &pods, client.InNamespace(storeNamespace)); err != nil {
		return nil, err
	}
	for _, s := range status.GetShards() {
		for _, r := range s.GetReplicas() {
			if keyspace.ShardID(s.GetShard()) != shard || !r.GetLeader() {
				continue
			}
			for i := range pods.Items {
				if pods.Items[i].Status.PodIP == hostOf(r.GetAddress()) {
					return &pods.Items[i], nil
				}
			}
			return nil, fmt.Errorf("the leader of %v is at %s, where no pod is", shard, r.GetAddress())
		}
	}
	return nil, fmt.Errorf("the oracle knows no leader of %v: %v", shard, status.GetShards())
}

// recovered waits until every pod is ready, a shard serves with three replicas,
// and says who leads now.
func (k *cluster) recovered(t *testing.T, address string, shard keyspace.ShardID, former string) {
	t.Helper()
	k.until(t, time.Minute, fmt.Sprintf("every pod is ready and %v has three replicas", shard), func(ctx context.Context) error {
		if err := k.podsReady(ctx, storeNamespace); err != nil {
			return err
		}
		status, err := k.status(ctx, address)
		if err != nil {
			return err
		}
		for _, s := range status.GetShards() {
			if keyspace.ShardID(s.GetShard()) == shard && (!s.GetReady() || len(s.GetReplicas()) != 3) {
				return fmt.Errorf("%v: ready %v, %d replicas report: %s", shard, s.GetReady(), len(s.GetReplicas()), s.GetMessage())
			}
		}
		return nil
	})
	k.say(t, "%v is led by %s, before by %s", shard, k.leaderPod(t, address, shard).Name, former)
}

// probe counts in one key of a shard, one increment after the other. That the
// sum equals the acknowledged increments shows that none was lost and none ran
// twice; the longest time between two is what a client notices of a failure.
type probe struct {
	shard  keyspace.ShardID
	key    []byte
	client *kolocate.Client
	stop   context.CancelFunc
	done   sync.WaitGroup

	acknowledged int64
	gap          time.Duration
	err          error
}

func startProbe(t *testing.T, k *cluster, address string, shard keyspace.ShardID) *probe {
	t.Helper()
	c, err := kolocate.Dial(t.Context(), kolocate.Config{Target: address, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := &probe{shard: shard, client: c}
	for i := 0; p.key == nil; i++ {
		if key := fmt.Appendf(nil, "probe-%s-%d", t.Name(), i); c.ShardOf(key) == shard {
			p.key = key
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	p.done.Go(func() { p.run(ctx) })
	k.until(t, 30*time.Second, "probe counts", func(ctx context.Context) error {
		v, err := c.Get(ctx, p.key)
		if err == nil && !v.Found {
			err = fmt.Errorf("key %s is absent", p.key)
		}
		return err
	})
	return p
}

func (p *probe) run(ctx context.Context) {
	last := time.Now()
	for ctx.Err() == nil {
		// What was begun is finished, so that its outcome is known.
		if _, err := p.client.Increment(context.WithoutCancel(ctx), p.key, 1); err != nil {
			p.err = err
			return
		}
		p.acknowledged++
		p.gap = max(p.gap, time.Since(last))
		last = time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// finish ends the probe and judges what it saw.
func (p *probe) finish(t *testing.T, k *cluster) {
	t.Helper()
	p.stop()
	p.done.Wait()
	if p.err != nil {
		t.Fatalf("increment of %s at %v after %d acknowledged ones: %v", p.key, p.shard, p.acknowledged, p.err)
	}
	value, err := p.client.Get(t.Context(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	if string(value.Data) != fmt.Sprint(p.acknowledged) {
		t.Errorf("%d increments were acknowledged and the sum is %s: some were lost or ran twice", p.acknowledged, value.Data)
	}
	if p.gap > longestGap {
		t.Errorf("a client waited %v for %v, expected at most %v", p.gap, p.shard, longestGap)
	}
	k.say(t, "%d increments acknowledged, sum %s, longest gap for a client %v", p.acknowledged, value.Data, p.gap.Round(time.Millisecond))
}
