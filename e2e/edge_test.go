// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	oraclev1 "github.com/kolocate/kolocate/api/proto/oracle/v1"
	"github.com/kolocate/kolocate/services/keyspace"
	"github.com/kolocate/kolocate/services/keyspace/wire"
)

// placement asks the oracle for the placement by the command line.
func (k *cluster) placement(ctx context.Context, address string) (*keyspace.Placement, error) {
	out, err := k.run(ctx, "", k.kolocate, "placement", "--address", address, "--output", "json")
	if err != nil {
		return nil, err
	}
	var response oraclev1.GetResponse
	if err := protojson.Unmarshal([]byte(out), &response); err != nil {
		return nil, fmt.Errorf("reading what kolocate placement printed: %w", err)
	}
	return wire.DecodePlacement(response.GetPlacement())
}

// status asks the oracle for the status by the command line.
func (k *cluster) status(ctx context.Context, address string) (*oraclev1.StoreStatus, error) {
	out, err := k.run(ctx, "", k.kolocate, "status", "--address", address, "--output", "json")
	if err != nil {
		return nil, err
	}
	status := &oraclev1.StoreStatus{}
	if err := protojson.Unmarshal([]byte(out), status); err != nil {
		return nil, fmt.Errorf("reading what kolocate status printed: %w", err)
	}
	return status, nil
}

// compareEnvoy holds Envoy's own dump of its configuration against the oracle's
// placement: every override and every one of the 16,384 slots.
func compareEnvoy(t *testing.T, k *cluster) {
	address := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 8080)
	admin := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 9901)
	k.until(t, 30*time.Second, "Envoy agrees with the oracle", func(ctx context.Context) error {
		status, err := k.status(ctx, address)
		if err != nil {
			return err
		}
		if status.GetEdgeEpoch() != status.GetEpoch() || status.GetEdgeAcknowledgedEpoch() != status.GetEpoch() {
			return fmt.Errorf("the oracle is at epoch %d, gave Envoy %d, and Envoy acknowledged %d", status.GetEpoch(), status.GetEdgeEpoch(), status.GetEdgeAcknowledgedEpoch())
		}
		placement, err := k.placement(ctx, address)
		if err != nil {
			return err
		}
		if uint64(placement.Epoch()) != status.GetEpoch() {
			return fmt.Errorf("the placement is of epoch %d, the status of %d", placement.Epoch(), status.GetEpoch())
		}
		table, err := readRoutes(ctx, admin)
		if err != nil {
			return err
		}
		if err := table.compare(placement); err != nil {
			return fmt.Errorf("at epoch %d: %w", placement.Epoch(), err)
		}
		if k.rebalance != nil && (placement.Overrides() == 0 || int64(placement.Epoch()) < k.rebalance.Status.Epoch) {
			return fmt.Errorf("epoch %d with %d overrides is not after the rebalance, which reached %d", placement.Epoch(), placement.Overrides(), k.rebalance.Status.Epoch)
		}
		k.say(t, "epoch %d: %d overrides and %d slots in Envoy's route table as in the placement", placement.Epoch(), len(table.vertices), keyspace.Slots)
		return nil
	})
}

// routes is Envoy's route table, as far as keys go: vertex, else slot, to cluster.
type routes struct {
	vertices map[string]string
	pages    map[string]matchAction
}

// matchAction is what a match leads to: a cluster, or a table of slots.
type matchAction struct {
	cluster string
	slots   map[string]string
}

// readRoutes reads the one dynamic route configuration out of /config_dump.
func readRoutes(ctx context.Context, admin string) (*routes, error) {
	body, err := getBody(ctx, "http://"+admin+"/config_dump?resource=dynamic_route_configs")
	if err != nil {
		return nil, err
	}
	var dump struct {
		Configs []struct {
			RouteConfig struct {
				VirtualHosts []struct {
					Matcher matcher `json:"matcher"`
				} `json:"virtual_hosts"`
			} `json:"route_config"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(body, &dump); err != nil {
		return nil, fmt.Errorf("reading Envoy's config dump: %w", err)
	}
	if len(dump.Configs) != 1 || len(dump.Configs[0].RouteConfig.VirtualHosts) != 1 {
		return nil, fmt.Errorf("Envoy's config dump has not one virtual host: %.300s", body)
	}
	table := &routes{vertices: map[string]string{}, pages: map[string]matchAction{}}
	for m := &dump.Configs[0].RouteConfig.VirtualHosts[0].Matcher; m != nil; m = m.OnNoMatch.Matcher {
		switch m.MatcherTree.Input.TypedConfig.HeaderName {
		case "x-kolocate-vertex":
			for vertex, on := range m.MatcherTree.ExactMatchMap.Map {
				plain, err := url.PathUnescape(vertex)
				if err != nil {
					return nil, fmt.Errorf("vertex %q in Envoy's route table: %w", vertex, err)
				}
				table.vertices[plain] = on.Action.TypedConfig.Route.Cluster
			}
		case "x-kolocate-page":
			for page, on := range m.MatcherTree.ExactMatchMap.Map {
				action := matchAction{cluster: on.Action.TypedConfig.Route.Cluster}
				if on.Matcher != nil {
					action.slots = map[string]string{}
					for slot, inner := range on.Matcher.MatcherTree.ExactMatchMap.Map {
						action.slots[slot] = inner.Action.TypedConfig.Route.Cluster
					}
				}
				table.pages[page] = action
			}
		}
	}
	return table, nil
}

// matcher is Envoy's xds.type.matcher.v3.Matcher, as far as it is used here.
type matcher struct {
	MatcherTree struct {
		Input struct {
			TypedConfig struct {
				HeaderName string `json:"header_name"`
			} `json:"typed_config"`
		} `json:"input"`
		ExactMatchMap struct {
			Map map[string]onMatch `json:"map"`
		} `json:"exact_match_map"`
	} `json:"matcher_tree"`
	OnNoMatch onMatch `json:"on_no_match"`
}

type onMatch struct {
	Matcher *matcher `json:"matcher"`
	Action  struct {
		TypedConfig struct {
			Route struct {
				Cluster string `json:"cluster"`
			} `json:"route"`
		} `json:"typed_config"`
	} `json:"action"`
}

// compare says where the route table and the placement differ.
func (r *routes) compare(p *keyspace.Placement) error {
	overrides := p.OverridesSorted()
	for _, o := range overrides {
		if got := r.vertices[string(o.Vertex)]; got != o.To.String() {
			return fmt.Errorf("override %q is at %v, Envoy routes it to %q", o.Vertex, o.To, got)
		}
	}
	if len(overrides) != len(r.vertices) {
		return fmt.Errorf("the placement has %d overrides, Envoy %d", len(overrides), len(r.vertices))
	}
	pageSlots := keyspace.Slots / max(len(r.pages), 1)
	for slot := range keyspace.Slots {
		action := r.pages[strconv.Itoa(slot/pageSlots)]
		got := action.cluster
		if action.slots != nil {
			got = action.slots[strconv.Itoa(slot)]
		}
		if want := p.ShardOfSlot(keyspace.Slot(slot)).String(); got != want {
			return fmt.Errorf("slot %d is at %s, Envoy routes it to %q", slot, want, got)
		}
	}
	return nil
}

// keysEach is how many keys are sent to each shard.
const keysEach = 60

// routeKeys sends thin requests with nothing but x-kolocate-key, a shard at a
// time, and sees by Envoy's counters that this shard got them and no other. Half
// of the keys are of overrides, if there are so many.
func routeKeys(t *testing.T, k *cluster) {
	address := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 8080)
	admin := k.forward(t, storeNamespace, "service/"+storeName+"-edge", 9901)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	placement, err := k.placement(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	keys := keysByShard(placement)
	kv := kvv1.NewKVClient(dial(t, address))
	for shard := keyspace.ShardID(1); shard <= 3; shard++ {
		before, err := requestsByCluster(ctx, admin)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys[shard] {
			with := metadata.AppendToOutgoingContext(ctx, "x-kolocate-key", key)
			if _, err := kv.Get(with, &kvv1.GetRequest{Key: []byte(key)}); err != nil {
				t.Fatalf("get %q, which is at %v: %v", key, shard, err)
			}
		}
		after, err := requestsByCluster(ctx, admin)
		if err != nil {
			t.Fatal(err)
		}
		var counts []string
		for other := keyspace.ShardID(1); other <= 3; other++ {
			got := after[other.String()] - before[other.String()]
			counts = append(counts, fmt.Sprintf("%v %d", other, got))
			// Streams that clients open anew are requests too, and few.
			if other == shard && got < keysEach || other != shard && got > keysEach/4 {
				t.Errorf("%d requests with keys of %v: %v got %d", keysEach, shard, other, got)
			}
		}
		k.say(t, "%d requests with keys of %v: %s", len(keys[shard]), shard, strings.Join(counts, ", "))
	}
}

// keysByShard gives keysEach keys for each shard, of overrides first.
func keysByShard(p *keyspace.Placement) map[keyspace.ShardID][]string {
	keys := map[keyspace.ShardID][]string{}
	for _, o := range p.OverridesSorted() {
		if len(keys[o.To]) < keysEach/2 {
			keys[o.To] = append(keys[o.To], "{"+string(o.Vertex)+"}e2e")
		}
	}
	for shard := keyspace.ShardID(1); shard <= 3; shard++ {
		for i := 0; len(keys[shard]) < keysEach; i++ {
			if key := fmt.Sprintf("e2e-%d", i); p.ShardOf(keyspace.VertexOf(key)) == shard {
				keys[shard] = append(keys[shard], key)
			}
		}
	}
	return keys
}

var requestCount = regexp.MustCompile(`(?m)^cluster\.(shard-\d+)\.upstream_rq_total: (\d+)$`)

// requestsByCluster reads Envoy's counters of requests to each shard.
func requestsByCluster(ctx context.Context, admin string) (map[string]int, error) {
	body, err := getBody(ctx, "http://"+admin+"/stats?filter="+url.QueryEscape(`^cluster\.shard-\d+\.upstream_rq_total$`))
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, m := range requestCount.FindAllStringSubmatch(string(body), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return nil, fmt.Errorf("reading Envoy's counter %q: %w", m[0], err)
		}
		counts[m[1]] = n
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("Envoy's statistics hold no requests to shards: %.200s", body)
	}
	return counts, nil
}
