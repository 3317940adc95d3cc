// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/apply"
	"github.com/kolocate/kolocate/controllers/oracle"
	"github.com/kolocate/kolocate/controllers/phase"
	"github.com/kolocate/kolocate/controllers/workload"
)

// apply writes what differs from what the store says.
func (r *Reconciler) apply(ctx context.Context, g *gathered) phase.Result {
	objects, err := desired(g.store, inputs{images: r.Images, initialShards: g.initialShards(), bootstrap: r.Bootstrap})
	if err != nil {
		g.problem = &fault{reasonApplyFailed, err.Error()}
		return phase.Fail(err, "working out the objects of the store")
	}
	for _, object := range objects {
		reason, err := apply.Apply(ctx, r.client, g.store, object)
		if err != nil {
			g.problem = &fault{reasonApplyFailed, err.Error()}
			return phase.Fail(err, "applying the objects of the store")
		}
		if reason != apply.Unchanged {
			g.written++
			logr.FromContextOrDiscard(ctx).Info("applied", "kind", fmt.Sprintf("%T", object), "object", object.GetName(), "why", reason)
		}
	}
	return phase.Done("%d objects, %d written", len(objects), g.written)
}

// askOracle reads the oracle's state and tells it what differs from the spec.
func (r *Reconciler) askOracle(ctx context.Context, g *gathered) phase.Result {
	if !serving(g.oracle) {
		// The watch of the StatefulSet reports its pods; faults of pods and
		// volumes show by time alone.
		return phase.After(r.Interval, "the oracle has no quorum of ready replicas")
	}
	admin := r.Oracles.Admin(workload.OracleAddresses(g.store))
	answer, err := admin.Status(ctx)
	if err != nil {
		g.problem = &fault{reasonOracleUnreachable, oracle.Reason(err)}
		return phase.After(r.Interval, "the oracle does not answer: %v", err)
	}
	if shards := uint32(g.store.Spec.Shards); len(answer.GetShards()) < int(shards) { //nolint:gosec // validated: 1 to 64
		if answer, err = admin.SetShards(ctx, shards); err != nil {
			return r.refused(g, reasonShardsRefused, "setting the number of shards", err)
		}
		r.note(g.store, corev1.EventTypeNormal, "ShardsSet", "the oracle was told to use %d shards", shards)
	}
	wanted, err := policy(g.store)
	if err != nil {
		g.problem = &fault{reasonPolicyRefused, err.Error()}
		return phase.Fail(err, "reading the rebalancing policy")
	}
	if !samePolicy(wanted, answer.GetPolicy()) {
		if answer, err = admin.SetPolicy(ctx, wanted); err != nil {
			return r.refused(g, reasonPolicyRefused, "setting the rebalancing policy", err)
		}
		r.note(g.store, corev1.EventTypeNormal, "PolicySet", "the oracle was given the rebalancing policy: mode %s, approval %s", wanted.GetMode(), wanted.GetApproval())
	}
	g.status = answer
	return phase.Done("epoch %d", answer.GetEpoch())
}

// refused ends a phase by an answer of the oracle. A refusal stays until the
// spec changes, so it is not retried faster than the oracle is looked at.
func (r *Reconciler) refused(g *gathered, reason, doing string, err error) phase.Result {
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		reason = reasonOracleUnreachable
	}
	g.problem = &fault{reason, doing + ": " + oracle.Reason(err)}
	return phase.After(r.Interval, "%s: %v", doing, err)
}

// mirror makes an object for each rebalance of the oracle that has none: those
// that the oracle started by itself. One that has ended gets an object only if
// it is newer than all that had one, so that a deleted object stays deleted.
func (r *Reconciler) mirror(ctx context.Context, g *gathered) phase.Result {
	admin := r.Oracles.Admin(workload.OracleAddresses(g.store))
	known, err := admin.List(ctx)
	if err != nil {
		g.problem = &fault{reasonOracleUnreachable, oracle.Reason(err)}
		return phase.After(r.Interval, "listing the rebalances: %v", err)
	}
	slices.SortFunc(known, func(a, b *oraclev1.Rebalance) int {
		return cmp.Or(cmp.Compare(a.GetCreatedUnixMillis(), b.GetCreatedUnixMillis()), cmp.Compare(a.GetName(), b.GetName()))
	})
	made, newest := 0, g.newest
	for _, rebalance := range known {
		has := slices.ContainsFunc(g.rebalances, func(o v1alpha1.Rebalance) bool { return o.Name == rebalance.GetName() })
		if !has && (!Ended(rebalance.GetPhase()) || rebalance.GetCreatedUnixMillis() > newest) {
			if err := r.makeObject(ctx, g.store, rebalance); err != nil {
				return phase.Fail(err, "making an object for a rebalance of the oracle")
			}
			made++
		}
		g.newest = max(g.newest, rebalance.GetCreatedUnixMillis())
	}
	return phase.Done("%d rebalances, %d objects made", len(known), made)
}

func (r *Reconciler) makeObject(ctx context.Context, store *v1alpha1.Store, rebalance *oraclev1.Rebalance) error {
	reason := "started by the oracle"
	if reasons := rebalance.GetReasons(); len(reasons) > 0 {
		reason = reasons[0]
	}
	object := &v1alpha1.Rebalance{
		ObjectMeta: metav1.ObjectMeta{
			Name: rebalance.GetName(), Namespace: store.Namespace, Labels: workload.Labels(store.Name, nil),
		},
		Spec: v1alpha1.RebalanceSpec{
			StoreRef: v1alpha1.StoreReference{Name: store.Name},
			Approval: v1alpha1.Approval(rebalance.GetApproval()),
			Paused:   rebalance.GetPaused(),
			Reason:   reason,
		},
	}
	if err := controllerutil.SetControllerReference(store, object, r.client.Scheme()); err != nil {
		return fmt.Errorf("setting the owner of rebalance %s: %w", object.Name, err)
	}
	err := r.client.Create(ctx, object, client.FieldOwner(apply.FieldOwner))
	if apierrors.IsAlreadyExists(err) {
		return r.checkTaken(ctx, store, object)
	}
	if err != nil {
		return fmt.Errorf("creating rebalance %s/%s: %w", object.Namespace, object.Name, err)
	}
	r.note(store, corev1.EventTypeNormal, "RebalanceStarted", "the oracle started rebalance %s: %s", object.Name, reason)
	return nil
}

// checkTaken tells apart a cache that is behind, and a name that a rebalance of
// another store has.
func (r *Reconciler) checkTaken(ctx context.Context, store *v1alpha1.Store, wanted *v1alpha1.Rebalance) error {
	found := &v1alpha1.Rebalance{}
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(wanted), found); err != nil {
		return client.IgnoreNotFound(err)
	}
	if found.Spec.StoreRef.Name != store.Name {
		r.note(store, corev1.EventTypeWarning, "RebalanceNameTaken",
			"rebalance %s of the oracle runs without an object: the name belongs to a rebalance of store %s; delete that one", wanted.Name, found.Spec.StoreRef.Name)
	}
	return nil
}

// Ended says whether a phase of the oracle is an end.
func Ended(p oraclev1.Phase) bool {
	switch p {
	case oraclev1.Phase_PHASE_SUCCEEDED, oraclev1.Phase_PHASE_REVERTED, oraclev1.Phase_PHASE_FAILED, oraclev1.Phase_PHASE_STOPPED:
		return true
	default:
		return false
	}
}

// trim deletes the oldest ended rebalances beyond the limit.
func (r *Reconciler) trim(ctx context.Context, g *gathered) phase.Result {
	var ended []*v1alpha1.Rebalance
	for i := range g.rebalances {
		if g.rebalances[i].Status.Phase.Ended() {
			ended = append(ended, &g.rebalances[i])
		}
	}
	if len(ended) <= r.History {
		return phase.Done("%d ended", len(ended))
	}
	slices.SortFunc(ended, func(a, b *v1alpha1.Rebalance) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	surplus := ended[:len(ended)-r.History]
	for _, old := range surplus {
		err := r.client.Delete(ctx, old, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil && !apierrors.IsNotFound(err) {
			return phase.Fail(err, "deleting the old rebalance %s", old.Name)
		}
	}
	return phase.Done("%d ended, %d deleted", len(ended), len(surplus))
}

// report writes the status if it changed.
func (r *Reconciler) report(ctx context.Context, g *gathered) phase.Result {
	after := g.store.DeepCopy()
	after.Status = observe(g, time.Now())
	ready := isReady(after)
	value := 0.0
	if ready {
		value = 1
	}
	r.Ready.WithLabelValues(after.Namespace, after.Name).Set(value)
	wasReady := isReady(g.store)
	wrote, err := apply.Status(ctx, r.client, g.store, after)
	if apierrors.IsNotFound(errors.Unwrap(err)) {
		return phase.Done("the store was deleted meanwhile")
	}
	if err != nil {
		return phase.Fail(err, "reporting")
	}
	if ready != wasReady && wrote {
		message, _ := readyMessage(after)
		kind, reason := corev1.EventTypeNormal, "Ready"
		if !ready {
			kind, reason = corev1.EventTypeWarning, "NotReady"
		}
		r.note(g.store, kind, reason, "%s", message)
	}
	return phase.Done("%s", after.Status.Phase)
}

func isReady(store *v1alpha1.Store) bool {
	_, ready := readyMessage(store)
	return ready
}

func readyMessage(store *v1alpha1.Store) (message string, ready bool) {
	for _, c := range store.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return c.Message, c.Status == metav1.ConditionTrue
		}
	}
	return "", false
}

func (r *Reconciler) note(store *v1alpha1.Store, kind, reason, format string, args ...any) {
	r.events.Eventf(store, nil, kind, reason, "Reconcile", format, args...)
}
