// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	_ "embed" // for the Lua filter
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kolocate/kolocate/services/edge/ir"
)

//go:embed filter.lua
var filterSource string

// HTTP/2 limits toward clients and shards, in streams and bytes.
const (
	maxStreams       = 16384
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20
)

// A client that is gone without a word is noticed within their sum.
const (
	keepaliveInterval = 10 * time.Second
	keepaliveTimeout  = 5 * time.Second
)

func listenerFor(edge *ir.Edge) (*listenerv3.Listener, error) {
	manager, err := managerFor(edge)
	if err != nil {
		return nil, err
	}
	packed, err := pack(manager)
	if err != nil {
		return nil, err
	}
	address, err := socketAddress(edge.Listener)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:    ListenerName,
		Address: address,
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
			}},
		}},
	}, nil
}

func managerFor(edge *ir.Edge) (*hcmv3.HttpConnectionManager, error) {
	filters, err := filterChain()
	if err != nil {
		return nil, err
	}
	logs, err := accessLogs(edge.AccessLog)
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpConnectionManager{
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		StatPrefix: "edge",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: RouteName,
			ConfigSource:    aggregated(),
		}},
		HttpFilters:          filters,
		AccessLog:            logs,
		Http2ProtocolOptions: downstreamHTTP2(),
		// Execute and Watch streams may be silent for long; peers that are gone
		// are found by the keepalive.
		StreamIdleTimeout: durationpb.New(0),
		LocalReplyConfig:  localReplies(),
		UseRemoteAddress:  wrapperspb.Bool(true),
		// Request ids cost a random number a request and nobody reads them.
		GenerateRequestId: wrapperspb.Bool(false),
	}, nil
}

func http2Windows() *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams:        wrapperspb.UInt32(maxStreams),
		InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connectionWindow),
	}
}

// downstreamHTTP2 pings clients. Replicas are not pinged: gRPC servers end
// connections that ping them every few seconds, and health checks watch them.
func downstreamHTTP2() *corev3.Http2ProtocolOptions {
	options := http2Windows()
	options.ConnectionKeepalive = &corev3.KeepaliveSettings{
		Interval: durationpb.New(keepaliveInterval),
		Timeout:  durationpb.New(keepaliveTimeout),
	}
	return options
}

func filterChain() ([]*hcmv3.HttpFilter, error) {
	var chain []*hcmv3.HttpFilter
	for _, filter := range []struct {
		name   string
		config proto.Message
	}{
		// Browsers and clients that speak HTTP/1 use gRPC-Web.
		{"envoy.filters.http.grpc_web", &grpcwebv3.GrpcWeb{}},
		{"envoy.filters.http.lua", &luav3.Lua{DefaultSourceCode: inline(filterSource)}},
		{"envoy.filters.http.router", &routerv3.Router{}},
	} {
		packed, err := pack(filter.config)
		if err != nil {
			return nil, err
		}
		chain = append(chain, &hcmv3.HttpFilter{
			Name:       filter.name,
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed},
		})
	}
	return chain, nil
}

func accessLogs(on bool) ([]*accesslogv3.AccessLog, error) {
	if !on {
		return nil, nil
	}
	packed, err := pack(&streamv3.StdoutAccessLog{})
	if err != nil {
		return nil, err
	}
	return []*accesslogv3.AccessLog{{
		Name:       "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed},
	}}, nil
}

// localReplies gives the answers that Envoy makes itself a text that says what
// to do. gRPC clients find it in the status message.
func localReplies() *hcmv3.LocalReplyConfig {
	var config hcmv3.LocalReplyConfig
	for _, reply := range []struct{ flag, text string }{
		{"NC", "the store has no shard of this name: read the placement again (kolocate.oracle.v1.Placement) and send to the shard it names"},
		{"UH", "no replica of this shard says that it leads: wait for its election and send again with the same command id"},
	} {
		config.Mappers = append(config.Mappers, &hcmv3.ResponseMapper{
			Filter: &accesslogv3.AccessLogFilter{
				FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
					ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{reply.flag}},
				},
			},
			Body: inline(reply.text),
		})
	}
	return &config
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func aggregated() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{
			Ads: &corev3.AggregatedConfigSource{},
		},
	}
}
