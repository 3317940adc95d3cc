// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/kolocate/kolocate/services/edge/ir"
)

// controlPlaneCluster is where Envoy finds the edge.
const controlPlaneCluster = "edge-control-plane"

// Pauses before the stream to the control plane is opened again.
const (
	reconnectPause    = 100 * time.Millisecond
	maxReconnectPause = time.Second
)

// BootstrapConfig says how one Envoy finds its control plane.
type BootstrapConfig struct {
	// Store and NodeID name the Envoy; NodeID is unique among the store's Envoys.
	Store, NodeID string
	// ControlPlane lists the host:port addresses of the oracle's gRPC servers,
	// which serve ADS. Host names are resolved again and again.
	ControlPlane []string
	// Admin is the host:port (an IP address) of Envoy's admin server: statistics
	// at /stats/prometheus, readiness at /ready. Port 0 lets Envoy choose.
	Admin string
}

// Bootstrap returns the YAML file to start an Envoy with. All else comes by ADS.
func Bootstrap(config BootstrapConfig) ([]byte, error) {
	if config.Store == "" || config.NodeID == "" || len(config.ControlPlane) == 0 {
		return nil, errors.New("write envoy bootstrap: expected the name of a store, a node id and at least one address of the control plane")
	}
	admin, err := socketAddress(config.Admin)
	if err != nil {
		return nil, fmt.Errorf("write envoy bootstrap: admin server: %w", err)
	}
	cluster, err := controlPlane(config.ControlPlane)
	if err != nil {
		return nil, fmt.Errorf("write envoy bootstrap: control plane: %w", err)
	}
	bootstrap := &bootstrapv3.Bootstrap{
		Node:  &corev3.Node{Id: config.NodeID, Cluster: config.Store},
		Admin: &bootstrapv3.Admin{Address: admin},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{
					TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
						EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
							ClusterName: controlPlaneCluster,
							RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
								BaseInterval: durationpb.New(reconnectPause),
								MaxInterval:  durationpb.New(maxReconnectPause),
							}},
						},
					},
				}},
			},
			LdsConfig: aggregated(),
			CdsConfig: aggregated(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{cluster}},
	}
	if err := bootstrap.ValidateAll(); err != nil {
		return nil, fmt.Errorf("write envoy bootstrap: %w", err)
	}
	text, err := protojson.Marshal(bootstrap)
	if err != nil {
		return nil, fmt.Errorf("write envoy bootstrap: %w", err)
	}
	out, err := yaml.JSONToYAML(text)
	if err != nil {
		return nil, fmt.Errorf("write envoy bootstrap: %w", err)
	}
	return out, nil
}

func controlPlane(addresses []string) (*clusterv3.Cluster, error) {
	options, err := http2Upstream()
	if err != nil {
		return nil, err
	}
	hosts := make([]host, 0, len(addresses))
	for _, address := range addresses {
		hosts = append(hosts, host{address: address})
	}
	assignment, _, err := assignmentFor(controlPlaneCluster, hosts)
	if err != nil {
		return nil, err
	}
	discovery, err := dnsDiscovery()
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                 controlPlaneCluster,
		ClusterDiscoveryType: discovery,
		ConnectTimeout:       durationpb.New(connectTimeout),
		CommonLbConfig:       leadersOnly(),
		// The oracle's leader publishes; the stream follows it.
		HealthChecks:                        []*corev3.HealthCheck{healthCheck(ir.DefaultHealthInterval)},
		CloseConnectionsOnHostHealthFailure: true,
		LoadAssignment:                      assignment,
		TypedExtensionProtocolOptions:       options,
	}, nil
}

// Arguments returns the command line for an Envoy with this bootstrap file.
// Concurrency is its number of worker threads, at least 1; 0 gives one a core.
func Arguments(bootstrapFile string, concurrency int) []string {
	arguments := []string{"--config-path", bootstrapFile, "--disable-hot-restart", "--log-level", "warning"}
	if concurrency > 0 {
		arguments = append(arguments, "--concurrency", strconv.Itoa(concurrency))
	}
	return arguments
}
