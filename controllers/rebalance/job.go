// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/apply"
	"github.com/kolocate/kolocate/controllers/oracle"
	"github.com/kolocate/kolocate/controllers/phase"
	"github.com/kolocate/kolocate/controllers/workload"
)

const (
	// jobRetries is how often a partitioner that failed is started again.
	jobRetries = 2
	// jobDeadline bounds the Job with all its retries; the partitioner itself
	// works for seconds to minutes.
	jobDeadline = 30 * time.Minute
	// jobKept is how long an ended Job stays for its log to be read.
	jobKept = time.Hour
	// handIn is how long after the end of its Job a plan may still be under way.
	handIn = time.Minute
)

// partition runs the Job that makes the plan while the oracle waits for one.
func (r *Reconciler) partition(ctx context.Context, p *pass) phase.Result {
	if p.state == nil || p.state.GetPhase() != oraclev1.Phase_PHASE_PARTITIONING {
		return phase.Done("no plan is wanted")
	}
	name := types.NamespacedName{Namespace: p.object.Namespace, Name: workload.Job(p.object.Name)}
	job := &batchv1.Job{}
	err := r.client.Get(ctx, name, job)
	if apierrors.IsNotFound(err) {
		return r.createJob(ctx, p)
	}
	if err != nil {
		return phase.Fail(err, "reading job %s", name)
	}
	if !metav1.IsControlledBy(job, p.object) {
		return r.failPlan(ctx, p, fmt.Sprintf("a Job named %s exists and belongs to something else: delete it and make a new Rebalance", name.Name))
	}
	p.job = job
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type { //nolint:exhaustive // the other conditions are on the way to these
		case batchv1.JobFailed:
			return r.failPlan(ctx, p, r.whyFailed(ctx, job, c))
		case batchv1.JobComplete:
			if time.Since(c.LastTransitionTime.Time) > handIn {
				return r.failPlan(ctx, p, fmt.Sprintf("Job %s ended without handing in a plan: see its log", name.Name))
			}
			return phase.Done("job %s is complete", name.Name)
		}
	}
	return phase.Done("job %s runs", name.Name)
}

func (r *Reconciler) createJob(ctx context.Context, p *pass) phase.Result {
	job := jobFor(p.store, p.object, r.Images.For(p.store).Partitioner)
	if err := controllerutil.SetControllerReference(p.object, job, r.client.Scheme()); err != nil {
		return phase.Fail(err, "setting the owner of job %s", job.Name)
	}
	err := r.client.Create(ctx, job, client.FieldOwner(apply.FieldOwner))
	if apierrors.IsAlreadyExists(err) {
		// The cache is behind.
		return phase.Done("job %s exists", job.Name)
	}
	if err != nil {
		p.hold("the partitioner's Job cannot be created: " + err.Error())
		return phase.Fail(err, "creating job %s", job.Name)
	}
	p.job = job
	p.note(r, corev1.EventTypeNormal, "JobCreated", "Job %s makes the plan", job.Name)
	return phase.Done("job %s created", job.Name)
}

// failPlan tells the oracle that no plan will come.
func (r *Reconciler) failPlan(ctx context.Context, p *pass, why string) phase.Result {
	state, err := p.admin.Control(ctx, p.object.Name, oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL, why)
	if err != nil {
		return phase.After(r.Interval, "telling the oracle that the partitioner failed: %s", oracle.Reason(err))
	}
	p.state = state
	return phase.Done("%s", why)
}

// whyFailed gives the Job's own reason and what its last pod said.
func (r *Reconciler) whyFailed(ctx context.Context, job *batchv1.Job, failed batchv1.JobCondition) string {
	why := fmt.Sprintf("partitioner Job %s failed: %s: %s", job.Name, failed.Reason, failed.Message)
	var pods corev1.PodList
	// What a pod said is an addition: without it the reason stands.
	if err := r.client.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return why
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && strings.TrimSpace(end.Message) != "" {
				return why + "; pod " + pods.Items[i].Name + " said: " + strings.TrimSpace(end.Message)
			}
			if waiting := c.State.Waiting; waiting != nil && waiting.Message != "" {
				return why + "; pod " + pods.Items[i].Name + " waits: " + waiting.Reason + ": " + waiting.Message
			}
		}
	}
	return why
}

func jobFor(store *v1alpha1.Store, object *v1alpha1.Rebalance, image string) *batchv1.Job {
	selector := workload.Selector(store.Name, workload.ComponentPartitioner)
	selector[v1alpha1.LabelRebalance] = object.Name
	return &batchv1.Job{
		ObjectMeta: workload.Meta(store, workload.Job(object.Name), selector),
		Spec: batchv1.JobSpec{
			BackoffLimit:            ptr.To(int32(jobRetries)),
			ActiveDeadlineSeconds:   ptr.To(int64(jobDeadline.Seconds())),
			TTLSecondsAfterFinished: ptr.To(int32(jobKept.Seconds())),
			Template: workload.Template(store, workload.Pod{
				Selector:      selector,
				GraceSeconds:  5,
				RestartPolicy: corev1.RestartPolicyNever,
				Container: corev1.Container{
					Name:  "partitioner",
					Image: image,
					Args: []string{
						"--oracle=" + strings.Join(workload.OracleAddresses(store), ","),
						"--rebalance=" + object.Name,
					},
					Resources:    store.Spec.Partitioner.Resources,
					VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
				},
				Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			}),
		},
	}
}
