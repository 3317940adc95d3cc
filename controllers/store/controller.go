// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package store owns the reconciliation of a Store: its shards, oracle and
// Envoy, the policy the oracle runs by, and an object for each rebalance. It
// never touches data and never moves a key. controllers.Setup registers it.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
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
	Images    workload.Images
	Bootstrap Bootstrap
	Oracles   *oracle.Pool
	// Interval between looks at the oracle, which no watch reports on.
	Interval time.Duration
	// History is the number of ended rebalances whose objects are kept for each store.
	History int
	// Ready is the gauge that says for each store (namespace, store) whether it serves.
	Ready *prometheus.GaugeVec
	// Workers is the number of stores reconciled at the same moment.
	Workers int
	// SkipNameValidation lets a process hold several managers, as tests do.
	SkipNameValidation bool
}

// Reconciler makes the cluster hold what each Store says.
type Reconciler struct {
	Config
	client client.Client
	events events.EventRecorder
}

// +kubebuilder:rbac:groups=kolocate.io,resources=stores,verbs=get;list;watch
// +kubebuilder:rbac:groups=kolocate.io,resources=stores/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=kolocate.io,resources=stores/finalizers,verbs=update
// +kubebuilder:rbac:groups=kolocate.io,resources=rebalances,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=apps,resources=statefulsets;deployments,verbs=get;list;watch;create;patch;update
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;update
// +kubebuilder:rbac:groups="",resources=services;configmaps;serviceaccounts,verbs=get;list;watch;create;patch;update
// +kubebuilder:rbac:groups="",resources=pods;persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Setup registers a Reconciler with a manager.
func Setup(mgr ctrl.Manager, config Config) error {
	r := &Reconciler{Config: config, client: mgr.GetClient(), events: mgr.GetEventRecorder("kolocate-store")}
	err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Store{}).
		Owns(&appsv1.StatefulSet{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&v1alpha1.Rebalance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(storeOf), builder.WithPredicates()).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(storeOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(config.Workers, 1), SkipNameValidation: &config.SkipNameValidation}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("registering the controller of Store: %w", err)
	}
	return nil
}

func storeOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[v1alpha1.LabelStore]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// Reconcile brings one Store nearer to what it says.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	store := &v1alpha1.Store{}
	err := r.client.Get(ctx, request.NamespacedName, store)
	if apierrors.IsNotFound(err) {
		r.Ready.DeleteLabelValues(request.Namespace, request.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading store %s: %w", request, err)
	}
	if store.DeletionTimestamp != nil {
		// All parts are owned: the garbage collector takes them away.
		r.Oracles.Forget(workload.OracleAddresses(store))
		return ctrl.Result{}, nil
	}
	g, err := r.gather(ctx, store)
	if err != nil {
		return ctrl.Result{}, err
	}
	return phase.Run(ctx,
		// Every object the store needs exists as wanted.
		phase.Phase{Name: "apply", Run: func(ctx context.Context) phase.Result { return r.apply(ctx, g) }},
		// The oracle answers, and knows the wanted shards and policy.
		phase.Phase{Name: "oracle", Run: func(ctx context.Context) phase.Result { return r.askOracle(ctx, g) }},
		// Every rebalance that the oracle started has an object.
		phase.Phase{Name: "mirror", Run: func(ctx context.Context) phase.Result { return r.mirror(ctx, g) }},
		// Ended rebalances beyond the limit have none.
		phase.Phase{Name: "history", Run: func(ctx context.Context) phase.Result { return r.trim(ctx, g) }},
		phase.Phase{Name: "status", Always: true, Run: func(ctx context.Context) phase.Result { return r.report(ctx, g) }},
		// No watch reports on the oracle.
		phase.Phase{Name: "again", Run: func(context.Context) phase.Result { return phase.After(r.Interval, "look at the oracle") }},
	)
}
