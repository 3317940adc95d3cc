// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kolocate/kolocate/services/edge/ir"
)

// HealthService is the name under which the gRPC health service of a replica
// says whether it leads.
const HealthService = "leader"

const (
	connectTimeout = time.Second
	healthTimeout  = 2 * time.Second
	dnsRefresh     = time.Second
	// A replica that answers "no" is out at once; one that does not answer
	// after this many checks.
	unhealthyThreshold = 3
	// In percent. One healthy replica of any number takes all requests, where
	// Envoy would give a part of them to standbys.
	overprovisioning = 100 * 1000
	// The leaders of all shards are checked less often a second time, in the
	// cluster of commands without a key.
	anyShardHealthFactor = 4
)

// addClusters adds a cluster for each shard, in the order of their ids, for the
// oracle, and one of all shards for commands without a key.
func (r *Resources) addClusters(edge *ir.Edge) error {
	interval := edge.HealthInterval
	if interval == 0 {
		interval = ir.DefaultHealthInterval
	}
	shards := slices.Clone(edge.Shards)
	slices.SortFunc(shards, func(a, b ir.Shard) int { return int(a.ID) - int(b.ID) })
	var all []host
	for _, shard := range shards {
		hosts := hostsOf(shard)
		all = append(all, hosts...)
		if err := r.addCluster(shard.ID.String(), hosts, interval); err != nil {
			return err
		}
	}
	slices.SortFunc(all, byAddress)
	if err := r.addCluster(AnyShardCluster, all, anyShardHealthFactor*interval); err != nil {
		return err
	}
	oracle := make([]host, 0, len(edge.Oracle))
	for _, address := range edge.Oracle {
		oracle = append(oracle, host{address: address})
	}
	slices.SortFunc(oracle, byAddress)
	return r.addCluster(OracleCluster, oracle, interval)
}

// host is one endpoint of a cluster. A standby is used only while no other
// passes its health check: its shard's leader was last heard of elsewhere.
type host struct {
	address string
	standby bool
}

func byAddress(a, b host) int { return strings.Compare(a.address, b.address) }

func hostsOf(shard ir.Shard) []host {
	led := slices.ContainsFunc(shard.Replicas, func(e ir.Endpoint) bool { return e.Leader })
	hosts := make([]host, 0, len(shard.Replicas))
	for _, replica := range shard.Replicas {
		hosts = append(hosts, host{address: replica.Address, standby: led && !replica.Leader})
	}
	slices.SortFunc(hosts, byAddress)
	return hosts
}

func (r *Resources) addCluster(name string, hosts []host, interval time.Duration) error {
	options, err := http2Upstream()
	if err != nil {
		return err
	}
	assignment, named, err := assignmentFor(name, hosts)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	cluster := &clusterv3.Cluster{
		Name:            name,
		ConnectTimeout:  durationpb.New(connectTimeout),
		LbPolicy:        clusterv3.Cluster_ROUND_ROBIN,
		CommonLbConfig:  leadersOnly(),
		HealthChecks:    []*corev3.HealthCheck{healthCheck(interval)},
		CircuitBreakers: openBreakers(),
		// A stream to a replica that leads no more, or is gone without a word, ends,
		// so that its client opens it to the leader.
		CloseConnectionsOnHostHealthFailure: true,
		TypedExtensionProtocolOptions:       options,
	}
	if named {
		if cluster.ClusterDiscoveryType, err = dnsDiscovery(); err != nil {
			return err
		}
		cluster.LoadAssignment = assignment
	} else {
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		cluster.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: aggregated()}
		r.Endpoints = append(r.Endpoints, assignment)
	}
	r.Clusters = append(r.Clusters, cluster)
	return nil
}

// dnsDiscovery resolves each host name by itself, so that one that is unknown
// for a while does not hide the others.
func dnsDiscovery() (*clusterv3.Cluster_ClusterType, error) {
	packed, err := pack(&dnsv3.DnsCluster{
		DnsRefreshRate:  durationpb.New(dnsRefresh),
		DnsLookupFamily: commondnsv3.DnsLookupFamily_V4_PREFERRED,
	})
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster_ClusterType{
		ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.cluster.dns", TypedConfig: packed},
	}, nil
}

// assignmentFor says with named that an address has a host name. EDS can't
// carry those; and without EDS a change of leadership changes nothing here, for
// it would make Envoy build the whole cluster anew.
func assignmentFor(cluster string, hosts []host) (_ *endpointv3.ClusterLoadAssignment, named bool, _ error) {
	locality := &endpointv3.LocalityLbEndpoints{}
	for _, h := range hosts {
		address, err := socketAddress(h.address)
		if err != nil {
			return nil, false, err
		}
		named = named || net.ParseIP(address.GetSocketAddress().GetAddress()) == nil
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		})
	}
	if !named {
		for i, h := range hosts {
			if h.standby {
				locality.LbEndpoints[i].HealthStatus = corev3.HealthStatus_DEGRADED
			}
		}
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{locality},
		Policy: &endpointv3.ClusterLoadAssignment_Policy{
			OverprovisioningFactor: wrapperspb.UInt32(overprovisioning),
		},
	}, named, nil
}

// healthCheck sets every interval, for Envoy's own defaults differ by the
// host's state, up to a minute for a cluster without traffic.
func healthCheck(interval time.Duration) *corev3.HealthCheck {
	every := durationpb.New(interval)
	return &corev3.HealthCheck{
		Timeout:                  durationpb.New(healthTimeout),
		Interval:                 every,
		NoTrafficInterval:        every,
		NoTrafficHealthyInterval: every,
		UnhealthyInterval:        every,
		UnhealthyEdgeInterval:    every,
		HealthyEdgeInterval:      every,
		HealthyThreshold:         wrapperspb.UInt32(1),
		UnhealthyThreshold:       wrapperspb.UInt32(unhealthyThreshold),
		HealthChecker: &corev3.HealthCheck_GrpcHealthCheck_{
			GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{ServiceName: HealthService},
		},
	}
}

// leadersOnly keeps Envoy from sending to followers because most of a group's
// replicas do not lead, and makes a change of leadership known to its workers
// at once: they would hear of it a second later.
func leadersOnly() *clusterv3.Cluster_CommonLbConfig {
	return &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
		UpdateMergeWindow:     durationpb.New(0),
	}
}

// openBreakers leaves it to the shards to bound their queues: they answer with
// a named error, where Envoy would only say "overflow".
func openBreakers() *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(math.MaxInt32)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit,
		MaxPendingRequests: limit,
		MaxRequests:        limit,
		MaxRetries:         limit,
	}}}
}

func http2Upstream() (map[string]*anypb.Any, error) {
	packed, err := pack(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: http2Windows(),
				},
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": packed}, nil
}

func socketAddress(address string) (*corev3.Address, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("read address %q: expected host:port: %w", address, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("read address %q: expected a port from 1 to 65535: %w", address, err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}, nil
}
