// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/kolocate/kolocate/services/edge/snapshot"
	"github.com/kolocate/kolocate/services/keyspace"
)

// envoy is the account of one ADS stream.
type envoy struct {
	node string
	// held is what it has: kind -> resource -> version.
	held map[string]map[string]string
	// sent are the responses that it has not answered, by nonce: one a kind at most.
	sent map[string]*discoveryv3.DeltaDiscoveryResponse
	// refused tells of the last response of a kind, if it refused that.
	refused map[string]refusal
	// matched is the newest publication of which it holds everything.
	matched *publication
}

// refusal is what an Envoy said of a kind's version.
type refusal struct{ version, text string }

func (e *envoy) epoch() keyspace.Epoch {
	if e.matched == nil {
		return 0
	}
	return e.matched.epoch
}

// refusals joins what it refused and still lacks; "" if nothing. With only set,
// it tells of what that snapshot brought.
func (e *envoy) refusals(only *snapshot.Snapshot) string {
	var texts []string
	for _, kind := range slices.Sorted(maps.Keys(e.refused)) {
		if only == nil || only.GetVersion(kind) == e.refused[kind].version {
			texts = append(texts, e.refused[kind].text)
		}
	}
	return strings.Join(texts, "; ")
}

func (e *envoy) of(kind string) map[string]string {
	if e.held[kind] == nil {
		e.held[kind] = make(map[string]string)
	}
	return e.held[kind]
}

// holds says whether every resource of a publication is held in its version.
func (e *envoy) holds(p *publication) bool {
	for _, kind := range snapshot.Kinds {
		held := e.held[kind]
		for name, version := range p.snapshot.GetVersionMap(kind) {
			if held[name] != version {
				return false
			}
		}
	}
	return true
}

// callbacks joins the library's stream handler to the account.
type callbacks struct{ s *Server }

// OnDeltaStreamOpen opens the account of an Envoy.
func (c callbacks) OnDeltaStreamOpen(_ context.Context, stream int64, _ string) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.envoys[stream] = &envoy{
		held:    make(map[string]map[string]string),
		sent:    make(map[string]*discoveryv3.DeltaDiscoveryResponse),
		refused: make(map[string]refusal),
	}
	return nil
}

// OnDeltaStreamClosed closes it.
func (c callbacks) OnDeltaStreamClosed(stream int64, _ *corev3.Node) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.envoys, stream)
	s.broadcast()
}

// OnStreamDeltaResponse notes what is on its way. It keeps names and versions only.
func (c callbacks) OnStreamDeltaResponse(stream int64, _ *discoveryv3.DeltaDiscoveryRequest, response *discoveryv3.DeltaDiscoveryResponse) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.envoys[stream]
	if e == nil {
		return
	}
	note := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl:           response.GetTypeUrl(),
		SystemVersionInfo: response.GetSystemVersionInfo(),
		RemovedResources:  response.GetRemovedResources(),
	}
	for _, resource := range response.GetResources() {
		note.Resources = append(note.Resources, &discoveryv3.Resource{Name: resource.GetName(), Version: resource.GetVersion()})
	}
	e.sent[response.GetNonce()] = note
}

// OnStreamDeltaRequest takes a request, which may subscribe, acknowledge or refuse (xDS
// protocol, "Incremental xDS").
func (c callbacks) OnStreamDeltaRequest(stream int64, request *discoveryv3.DeltaDiscoveryRequest) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.envoys[stream]
	if e == nil {
		return nil
	}
	if node := request.GetNode().GetId(); node != "" {
		e.node = node
	}
	kind := request.GetTypeUrl()
	maps.Copy(e.of(kind), request.GetInitialResourceVersions())
	for _, name := range request.GetResourceNamesUnsubscribe() {
		delete(e.of(kind), name)
	}
	if response := e.sent[request.GetResponseNonce()]; response != nil {
		delete(e.sent, request.GetResponseNonce())
		s.answered(e, response, request)
	}
	for _, p := range slices.Backward(s.published) {
		if p == e.matched {
			break
		}
		if e.holds(p) {
			e.matched = p
			break
		}
	}
	s.broadcast()
	return nil
}

func (s *Server) answered(e *envoy, response *discoveryv3.DeltaDiscoveryResponse, request *discoveryv3.DeltaDiscoveryRequest) {
	kind := response.GetTypeUrl()
	if detail := request.GetErrorDetail(); detail != nil {
		e.refused[kind] = refusal{version: response.GetSystemVersionInfo(), text: detail.GetMessage()}
		s.metrics.nacks.Inc()
		s.log.Error("envoy refused the configuration and goes on with the one before",
			"node", e.node, "kind", kind, "version", response.GetSystemVersionInfo(), "error", detail.GetMessage())
		return
	}
	delete(e.refused, kind)
	for _, resource := range response.GetResources() {
		e.of(kind)[resource.GetName()] = resource.GetVersion()
	}
	for _, name := range response.GetRemovedResources() {
		delete(e.of(kind), name)
	}
}
