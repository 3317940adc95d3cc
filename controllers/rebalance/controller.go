// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rebalance owns the reconciliation of a Rebalance: it starts and steers
// the rebalance in the oracle, runs the partitioner's Job, and shows what
// happens. It never decides what moves. controllers.Setup registers it.
package rebalance

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/oracle"
	"github.com/kolocate/kolocate/controllers/phase"
	"github.com/kolocate/kolocate/controllers/workload"
)

// Config is what a Reconciler needs.
type Config struct {
	Images  workload.Images
	Oracles *oracle.Pool
	// Interval between looks at a rebalance that runs, which no watch reports on.
	Interval time.Duration
	// Workers is the number of rebalances reconciled at the same moment.
	Workers int
	// SkipNameValidation lets a process hold several managers, as tests do.
	SkipNameValidation bool
}

// Reconciler steers each rebalance as its object says.
type Reconciler struct {
	Config
	client client.Client
	events events.EventRecorder
}

// +kubebuilder:rbac:groups=kolocate.io,resources=rebalances,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=kolocate.io,resources=rebalances/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=kolocate.io,resources=rebalances/finalizers,verbs=update
// +kubebuilder:rbac:groups=kolocate.io,resources=stores,verbs=get;list;watch
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Setup registers a Reconciler with a manager.
func Setup(mgr ctrl.Manager, config Config) error {
	r := &Reconciler{Config: config, client: mgr.GetClient(), events: mgr.GetEventRecorder("kolocate-rebalance")}
	err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Rebalance{}).
		Owns(&batchv1.Job{}).
		Watches(&v1alpha1.Store{}, handler.EnqueueRequestsFromMapFunc(r.rebalancesOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(config.Workers, 1), SkipNameValidation: &config.SkipNameValidation}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("registering the controller of Rebalance: %w", err)
	}
	return nil
}

// rebalancesOf gives the rebalances of a store that have not ended.
func (r *Reconciler) rebalancesOf(ctx context.Context, store client.Object) []reconcile.Request {
	var list v1alpha1.RebalanceList
	if err := r.client.List(ctx, &list, client.InNamespace(store.GetNamespace())); err != nil {
		// The cache lists from memory; it fails only while it stops.
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if item := &list.Items[i]; item.Spec.StoreRef.Name == store.GetName() && !item.Status.Phase.Ended() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item)})
		}
	}
	return requests
}

// Reconcile brings one rebalance nearer to its end.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &v1alpha1.Rebalance{}
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if object.DeletionTimestamp != nil {
		// Its Job is owned. The oracle goes on unless spec.stop was set before.
		return ctrl.Result{}, nil
	}
	p := &pass{object: object, after: object.DeepCopy()}
	report := phase.Phase{Name: "status", Always: true, Run: func(ctx context.Context) phase.Result { return r.report(ctx, p) }}
	if object.Status.Phase.Ended() {
		// The oracle may have forgotten it by now: what it said last stands.
		return phase.Run(ctx, report)
	}
	return phase.Run(ctx,
		// The Store exists and owns the rebalance.
		phase.Phase{Name: "store", Run: func(ctx context.Context) phase.Result { return r.findStore(ctx, p) }},
		// The oracle runs the rebalance.
		phase.Phase{Name: "oracle", Run: func(ctx context.Context) phase.Result { return r.start(ctx, p) }},
		// Approval, pause and stop have reached the oracle.
		phase.Phase{Name: "steer", Run: func(ctx context.Context) phase.Result { return r.steer(ctx, p) }},
		// While the oracle waits for a plan, a Job makes it.
		phase.Phase{Name: "partition", Run: func(ctx context.Context) phase.Result { return r.partition(ctx, p) }},
		report,
		// No watch reports on the oracle.
		phase.Phase{Name: "again", Run: func(context.Context) phase.Result { return r.again(p) }},
	)
}

func (r *Reconciler) again(p *pass) phase.Result {
	if p.after.Status.Phase.Ended() {
		return phase.Done("ended")
	}
	return phase.After(r.Interval, "look at the oracle")
}
