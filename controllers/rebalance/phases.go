// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/apply"
	"github.com/kolocate/kolocate/controllers/oracle"
	"github.com/kolocate/kolocate/controllers/phase"
	"github.com/kolocate/kolocate/controllers/workload"
)

// pass is what one reconcile knows.
type pass struct {
	object *v1alpha1.Rebalance
	// after is the object with the status to write.
	after *v1alpha1.Rebalance
	store *v1alpha1.Store
	admin *oracle.Admin
	// state is the oracle's; nil while it does not know the rebalance.
	state *oraclev1.Rebalance
	job   *batchv1.Job
}

// hold ends a pass that cannot go on: the phase stays, the message says why.
func (p *pass) hold(message string) {
	if p.after.Status.Phase == "" {
		p.after.Status.Phase = v1alpha1.RebalancePending
	}
	p.after.Status.Message = clip(message)
}

// end puts the rebalance at an end without the oracle.
func (p *pass) end(at v1alpha1.RebalancePhase, message string) {
	p.after.Status.Phase, p.after.Status.Message = at, clip(message)
	p.after.Status.CompletionTime = new(metav1.Now())
}

func (r *Reconciler) findStore(ctx context.Context, p *pass) phase.Result {
	name := types.NamespacedName{Namespace: p.object.Namespace, Name: p.object.Spec.StoreRef.Name}
	store := &v1alpha1.Store{}
	err := r.client.Get(ctx, name, store)
	if apierrors.IsNotFound(err) || (err == nil && store.DeletionTimestamp != nil) {
		p.hold("store " + name.Name + " does not exist: create it, or delete this rebalance")
		return phase.Wait("store %s does not exist", name)
	}
	if err != nil {
		return phase.Fail(err, "reading store %s", name)
	}
	p.store = store
	p.admin = r.Oracles.Admin(workload.OracleAddresses(store))
	if metav1.IsControlledBy(p.object, store) {
		return phase.Done("%s", name)
	}
	// A person made it. With the store as its owner it goes away with the store.
	owned := p.object.DeepCopy()
	if err := controllerutil.SetControllerReference(store, owned, r.client.Scheme()); err != nil {
		p.hold("the rebalance belongs to another object: " + err.Error())
		return phase.Wait("it has another owner")
	}
	if owned.Labels == nil {
		owned.Labels = map[string]string{}
	}
	owned.Labels[v1alpha1.LabelStore] = store.Name
	if err := r.client.Patch(ctx, owned, client.MergeFrom(p.object), client.FieldOwner(apply.FieldOwner)); err != nil {
		return phase.Fail(err, "making store %s the owner", name)
	}
	p.object = owned
	statusBefore := p.after.Status
	p.after = owned.DeepCopy()
	p.after.Status = statusBefore
	return phase.Done("%s now owns it", name)
}

// start finds the rebalance in the oracle, or starts it there.
func (r *Reconciler) start(ctx context.Context, p *pass) phase.Result {
	state, err := p.admin.Get(ctx, p.object.Name)
	if err == nil {
		p.state = state
		return phase.Done("%s", phaseOf(state))
	}
	if status.Code(err) != codes.NotFound {
		p.hold("the oracle does not answer: " + oracle.Reason(err))
		return phase.After(r.Interval, "asking the oracle: %v", err)
	}
	switch known := p.object.Status.Phase; {
	case p.object.Spec.Stop:
		p.end(v1alpha1.RebalanceStopped, "stopped before it started")
		return phase.Done("stopped before it started")
	case known != "" && known != v1alpha1.RebalancePending:
		p.end(v1alpha1.RebalanceFailed, "the oracle no longer knows this rebalance: its data may have been lost; make a new Rebalance")
		return phase.Done("the oracle forgot it")
	case p.store.Spec.Placement.Policy == v1alpha1.PlacementStatic:
		p.hold("store " + p.store.Name + " has placement.policy Static, with which keys never move: set it to Optimized, or delete this rebalance")
		return phase.Wait("placement is static")
	}
	state, err = p.admin.Create(ctx, &oraclev1.CreateRebalanceRequest{
		Name:         p.object.Name,
		Approval:     string(p.object.Spec.Approval),
		TraceSeconds: float64(p.object.Spec.TraceSeconds),
		Reason:       p.object.Spec.Reason,
	})
	if status.Code(err) == codes.InvalidArgument {
		p.end(v1alpha1.RebalanceFailed, "the oracle refuses this rebalance: "+oracle.Reason(err))
		return phase.Done("refused")
	}
	if err != nil {
		// Most often another rebalance runs: this one waits for its end.
		p.hold("not started yet: " + oracle.Reason(err))
		return phase.After(r.Interval, "starting it: %v", err)
	}
	p.state = state
	return phase.Done("started")
}

// steer tells the oracle what the spec says and the oracle does not yet do.
func (r *Reconciler) steer(ctx context.Context, p *pass) phase.Result {
	if p.state == nil || ended(p.state) {
		return phase.Done("nothing to steer")
	}
	spec := p.object.Spec
	var action oraclev1.RebalanceAction
	switch {
	case spec.Stop:
		action = oraclev1.RebalanceAction_REBALANCE_ACTION_STOP
	case spec.Paused && !p.state.GetPaused():
		action = oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE
	case !spec.Paused && p.state.GetPaused():
		action = oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME
	case spec.Approved && p.state.GetPhase() == oraclev1.Phase_PHASE_PROPOSED:
		action = oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE
	default:
		return phase.Done("as wanted")
	}
	state, err := p.admin.Control(ctx, p.object.Name, action, "by spec of the Rebalance object")
	if err != nil {
		p.note(r, corev1.EventTypeWarning, "SteeringRefused", "%s: %s", actionName(action), oracle.Reason(err))
		// What the oracle says of itself is still shown.
		return phase.Done("%s is refused: %v", actionName(action), err)
	}
	p.state = state
	return phase.Done("%s", actionName(action))
}

func actionName(action oraclev1.RebalanceAction) string {
	switch action {
	case oraclev1.RebalanceAction_REBALANCE_ACTION_STOP:
		return "stop"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_PAUSE:
		return "pause"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_RESUME:
		return "resume"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_APPROVE:
		return "approve"
	case oraclev1.RebalanceAction_REBALANCE_ACTION_FAIL:
		return "fail"
	default:
		return action.String()
	}
}

// report writes the status if it changed, and an event if the phase did.
func (r *Reconciler) report(ctx context.Context, p *pass) phase.Result {
	fill(p)
	wrote, err := apply.Status(ctx, r.client, p.object, p.after)
	if apierrors.IsNotFound(errors.Unwrap(err)) {
		return phase.Done("the rebalance was deleted meanwhile")
	}
	if err != nil {
		return phase.Fail(err, "reporting")
	}
	now := p.after.Status.Phase
	if wrote && now != p.object.Status.Phase {
		kind := corev1.EventTypeNormal
		if now == v1alpha1.RebalanceFailed || now == v1alpha1.RebalanceReverted {
			kind = corev1.EventTypeWarning
		}
		p.note(r, kind, string(now), "%s", eventText(p.after))
	}
	return phase.Done("%s", now)
}

func eventText(object *v1alpha1.Rebalance) string {
	if object.Status.Message == "" {
		return "the rebalance is " + string(object.Status.Phase)
	}
	return object.Status.Message
}

func (p *pass) note(r *Reconciler, kind, reason, format string, args ...any) {
	r.events.Eventf(p.object, nil, kind, reason, "Reconcile", format, args...)
}
