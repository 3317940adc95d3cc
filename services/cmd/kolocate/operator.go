// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kolocate/kolocate/controllers"
	"github.com/kolocate/kolocate/services/edge/translate"
)

func newOperator() *cobra.Command {
	var logs logFlags
	var metrics, health string
	var leaderElect bool
	var options controllers.Options
	command := &cobra.Command{
		Use:     "operator",
		Short:   "Run the Kubernetes operator",
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			log, err := logs.logger()
			if err != nil {
				return err
			}
			ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
			config, err := ctrl.GetConfig()
			if err != nil {
				return fmt.Errorf("find the cluster: %w; run in a pod, or set KUBECONFIG", err)
			}
			scheme, err := controllers.Scheme()
			if err != nil {
				return err
			}
			cacheOptions, err := controllers.CacheOptions()
			if err != nil {
				return err
			}
			grace := 10 * time.Second
			manager, err := ctrl.NewManager(config, ctrl.Options{
				Scheme: scheme, Cache: cacheOptions, HealthProbeBindAddress: health, GracefulShutdownTimeout: &grace,
				Metrics:        metricsserver.Options{BindAddress: metrics},
				LeaderElection: leaderElect, LeaderElectionID: controllers.LeaderElectionID, LeaderElectionReleaseOnCancel: true,
			})
			if err != nil {
				return fmt.Errorf("start the operator: %w", err)
			}
			options.Bootstrap = bootstrap
			err = errors.Join(
				controllers.Setup(manager, options),
				manager.AddHealthzCheck("ping", healthz.Ping),
				manager.AddReadyzCheck("ping", healthz.Ping),
			)
			if err != nil {
				return err
			}
			return manager.Start(command.Context())
		},
	}
	logs.add(command)
	flags := command.Flags()
	flags.StringVar(&metrics, "metrics", ":8080", "address of the HTTP server with /metrics")
	flags.StringVar(&health, "health", ":8081", "address of the HTTP server with /healthz and /readyz")
	flags.BoolVar(&leaderElect, "leader-elect", false, "let several operators run, of which one works")
	flags.StringVar(&options.Image, "image", "", "image with the program kolocate")
	flags.StringVar(&options.PartitionerImage, "partitioner-image", "", "image with the program kolocate-partitioner")
	flags.StringVar(&options.EnvoyImage, "envoy-image", "", "image with Envoy")
	return command
}

// bootstrap writes the file that an Envoy starts with; its node id comes by a flag.
func bootstrap(store string, controlPlane []string, admin string) ([]byte, error) {
	return translate.Bootstrap(translate.BootstrapConfig{Store: store, NodeID: store + "-edge", ControlPlane: controlPlane, Admin: admin})
}
