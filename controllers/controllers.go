// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers owns the operator: it registers one controller a kind with
// a manager. It decides nothing itself and is never on the data path. The
// command "kolocate operator" calls it.
package controllers

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/oracle"
	"github.com/kolocate/kolocate/controllers/rebalance"
	"github.com/kolocate/kolocate/controllers/store"
	"github.com/kolocate/kolocate/controllers/workload"
)

// LeaderElectionID is the name of the Lease that the operator's replicas compete for.
const LeaderElectionID = "operator.kolocate.io"

// Defaults of Options.
const (
	DefaultStoreInterval     = 10 * time.Second
	DefaultRebalanceInterval = 2 * time.Second
	DefaultHistory           = 10
)

// Options are what the operator is started with.
type Options struct {
	// Image, PartitionerImage and EnvoyImage run in the pods of every store that
	// does not name its own. All are needed.
	Image, PartitionerImage, EnvoyImage string
	// Bootstrap writes the file that Envoy starts with. It is needed.
	Bootstrap store.Bootstrap
	// OracleDialer connects to oracles; nil dials TCP.
	OracleDialer oracle.Dialer
	// StoreInterval is how often the oracle of a store is looked at, and
	// RebalanceInterval how often a rebalance that runs is; 0 means the default.
	StoreInterval, RebalanceInterval time.Duration
	// History is the number of ended rebalances kept for each store; 0 means the default.
	History int
	// Workers is the number of objects of a kind reconciled at the same moment;
	// 0 means 1.
	Workers int
	// Registerer takes the operator's metrics; nil is controller-runtime's registry.
	Registerer prometheus.Registerer
	// SkipNameValidation lets a process hold several managers, as tests do.
	SkipNameValidation bool
}

// Scheme gives the scheme that the manager's client and cache need.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding the kinds of Kubernetes: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding the kinds of Kolocate: %w", err)
	}
	return scheme, nil
}

// CacheOptions keeps pods and volume claims that belong to no store out of the
// operator's memory. The manager should be made with it.
func CacheOptions() (cache.Options, error) {
	belongs, err := labels.NewRequirement(v1alpha1.LabelStore, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("selecting what belongs to a store: %w", err)
	}
	only := cache.ByObject{Label: labels.NewSelector().Add(*belongs)}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}:                   only,
		&corev1.PersistentVolumeClaim{}: only,
	}}, nil
}

// Setup registers the controllers of Store and Rebalance with a manager whose
// scheme is that of Scheme. The connections to oracles live as long as the
// process.
func Setup(mgr ctrl.Manager, options Options) error {
	if options.Image == "" || options.PartitionerImage == "" || options.EnvoyImage == "" {
		return errors.New("setting up the operator: expected the images of kolocate, the partitioner and Envoy")
	}
	if options.Bootstrap == nil {
		return errors.New("setting up the operator: expected a writer of Envoy's bootstrap file")
	}
	setDefault(&options.StoreInterval, DefaultStoreInterval)
	setDefault(&options.RebalanceInterval, DefaultRebalanceInterval)
	setDefault(&options.History, DefaultHistory)
	if options.Registerer == nil {
		options.Registerer = metrics.Registry
	}
	ready := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kolocate_operator_store_ready", Help: "1 if the store serves every key, 0 if not.",
	}, []string{"namespace", "store"})
	if err := options.Registerer.Register(ready); err != nil {
		return fmt.Errorf("setting up the operator: registering its metrics: %w", err)
	}
	images := workload.Images{Kolocate: options.Image, Partitioner: options.PartitionerImage, Envoy: options.EnvoyImage}
	oracles := oracle.NewPool(options.OracleDialer)
	err := store.Setup(mgr, store.Config{
		Images: images, Bootstrap: options.Bootstrap, Oracles: oracles, Interval: options.StoreInterval,
		History: options.History, Ready: ready, Workers: options.Workers, SkipNameValidation: options.SkipNameValidation,
	})
	if err != nil {
		return fmt.Errorf("setting up the operator: %w", err)
	}
	err = rebalance.Setup(mgr, rebalance.Config{
		Images: images, Oracles: oracles, Interval: options.RebalanceInterval,
		Workers: options.Workers, SkipNameValidation: options.SkipNameValidation,
	})
	if err != nil {
		return fmt.Errorf("setting up the operator: %w", err)
	}
	return nil
}

func setDefault[T comparable](value *T, by T) {
	var zero T
	if *value == zero {
		*value = by
	}
}
