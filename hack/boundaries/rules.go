// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package boundaries holds the import rules between the parts of Kolocate.
// It owns the table of rules and the check; it never says how a part works
// inside. Its test runs the check on this module (make verify, make test).
package boundaries

import "slices"

// module is the path every pattern of the table is relative to, unless its
// first element has a dot (a library) or it is "std".
const module = "github.com/kolocate/kolocate"

// Rule says which direct imports some packages may have. An import breaks the
// rule if a Deny pattern matches it and no Allow pattern does.
//
// Patterns: "std" is the whole standard library; "module" is this module;
// "libraries" is everything else; "std:net/..." names standard packages;
// "services/edge/..." is a folder of this module with all below it, without
// "/..." that package alone; a pattern with a dot in its first element names a
// library in the same way.
type Rule struct {
	Name   string
	From   []string // the packages that the rule is about
	Except []string // packages of From that the rule leaves out
	Deny   []string
	Allow  []string
	Reason string
}

// pure lists the packages that decide and never act: no network, no disk, no
// clock, no process. They are tested and simulated as plain functions.
var pure = []string{
	"services/keyspace/...",
	"services/shard/core/...",
	"services/trace/...",
	"services/oracle/directory/...",
	"services/oracle/graph/...",
	"services/oracle/trigger/...",
	"services/partitioner/plan/...",
	"services/partitioner/relabel/...",
	"services/edge/ir/...",
	"services/edge/translate/...",
}

// deterministic lists the replicated state machines: equal log entries must
// give equal states and effects on every replica.
var deterministic = []string{
	"services/shard/core/...",
	"services/oracle/directory/...",
}

// stages lists the parts that run as processes of their own, or that only cmd
// may join to another one.
var stages = []string{
	"services/shard/...",
	"services/oracle/...",
	"services/edge/...",
	"services/partitioner/...",
	"controllers/...",
}

// yaml is a plain library in spite of its name: text in, values out.
const yaml = "sigs.k8s.io/yaml"

// adapters lists what reaches out of the process, or drives what does.
var adapters = []string{
	"std:net/...", "std:os/...", "std:syscall/...", "std:database/...", "std:plugin",
	"google.golang.org/grpc/...",
	"k8s.io/...", "sigs.k8s.io/...",
	"github.com/prometheus/...",
	"github.com/cockroachdb/pebble/...",
	"go.etcd.io/...",
	"github.com/envoyproxy/go-control-plane/pkg/cache/...",
	"github.com/envoyproxy/go-control-plane/pkg/server/...",
}

// Rules gives the table.
func Rules() []Rule {
	return slices.Concat(stageRules(), pureRules(), dependencyRules())
}

// pureRules gives the rules that keep packages which decide apart from those
// which act.
func pureRules() []Rule {
	return []Rule{
		{
			Name:   "vocabulary",
			From:   []string{"services/keyspace"},
			Deny:   []string{"module", "libraries"},
			Reason: "the vocabulary is imported by every part, so it depends on the standard library alone",
		},
		{
			Name: "pure packages import no adapter",
			From: pure,
			Deny: adapters,
			// Of package net, CheckCalls lets only the functions on text pass.
			Allow:  []string{"std:net", "std:net/netip", "std:net/url", yaml},
			Reason: "this package decides and never acts: what it needs comes in as a value, what it wants done goes out as one, so that tests and the simulator own everything around it",
		},
		{
			Name:   "pure packages import pure packages",
			From:   pure,
			Deny:   []string{"module"},
			Allow:  append([]string{"api/proto/..."}, pure...),
			Reason: "an adapter reached through another package of this module is an adapter all the same; move what both need into a pure package",
		},
		{
			Name:   "replicated state is deterministic",
			From:   deterministic,
			Deny:   []string{"std:sync/...", "std:math/rand/...", "std:crypto/rand", "std:context", "std:log/...", "std:runtime/..."},
			Reason: "equal log entries must give equal states on every replica; locks, contexts and random sources belong to whoever drives the state machine",
		},
	}
}

// dependencyRules gives the rules about who may depend on what.
func dependencyRules() []Rule {
	return []Rule{
		{
			Name:   "the API stands alone",
			From:   []string{"api/..."},
			Deny:   []string{"module"},
			Allow:  []string{"api/...", "services/keyspace/..."},
			Reason: "users compile against api/; it must not pull a server into their program",
		},
		{
			Name:   "controllers import no server",
			From:   []string{"controllers/..."},
			Deny:   []string{"module"},
			Allow:  []string{"api/...", "controllers/...", "services/keyspace/..."},
			Reason: "the operator is never on the data path; it talks to the oracle through api/proto",
		},
		{
			Name:   "no Kubernetes outside the operator",
			From:   []string{"services/...", "api/client/...", "api/proto/..."},
			Except: []string{"services/cmd/..."},
			Deny:   []string{"k8s.io/...", "sigs.k8s.io/...", "controllers/...", "api/v1alpha1/..."},
			Allow:  []string{yaml},
			Reason: "a store runs on one machine without Kubernetes (kolocate demo, kolocate dev); only the operator knows the cluster",
		},
		{
			Name:   "one Raft host",
			From:   []string{"module"},
			Except: []string{"services/replica/..."},
			Deny:   []string{"go.etcd.io/raft/..."},
			Reason: "services/replica is the one host of Raft groups, for shards and the oracle; a second one would need its own proofs",
		},
		{
			Name:   "xDS stays in the edge",
			From:   []string{"module"},
			Except: []string{"services/edge/..."},
			Deny:   []string{"github.com/envoyproxy/..."},
			Reason: "everything else speaks of placements; services/edge/ir is what Envoy must know, and services/edge turns it into xDS",
		},
		{
			Name:   "KaHIP is linked by one program",
			From:   []string{"module"},
			Except: []string{"services/cmd/kolocate-partitioner/...", "services/partitioner/kahip/..."},
			Deny:   []string{"services/partitioner/kahip/..."},
			Reason: "kolocate is built without cgo; whoever needs a partition runs kolocate-partitioner",
		},
		{
			Name:   "cgo stays with KaHIP",
			From:   []string{"module"},
			Except: []string{"services/partitioner/..."},
			Deny:   []string{"std:C"},
			Reason: "kolocate is built without cgo, as one static program",
		},
		{
			Name:   "no test code in programs",
			From:   []string{"module"},
			Except: []string{"services/sim/...", "hack/..."},
			Deny:   []string{"std:testing/...", "github.com/stretchr/testify/..."},
			Reason: "what only tests need lies in _test.go files",
		},
	}
}

// stageRules gives, for each stage, the rule that keeps the others out of it,
// and the rules that keep the shared parts below all stages.
func stageRules() []Rule {
	rules := []Rule{
		{
			Name:   "shared parts lie below the stages",
			From:   []string{"services/replica/...", "services/keyspace/..."},
			Deny:   []string{"module"},
			Allow:  []string{"services/replica/...", "services/keyspace/...", "api/proto/..."},
			Reason: "shards and the oracle both use it; it must know neither",
		},
		{
			Name:   "programs are at the top",
			From:   []string{"module"},
			Except: []string{"services/cmd/..."},
			Deny:   []string{"services/cmd/...", "hack/...", "e2e/..."},
			Reason: "only services/cmd wires parts together, so nothing imports it; hack and e2e are not part of the product",
		},
	}
	for _, stage := range stages {
		var others []string
		for _, other := range stages {
			if other != stage {
				others = append(others, other)
			}
		}
		rules = append(rules, Rule{
			Name:   "one stage does not wire another",
			From:   []string{stage},
			Deny:   others,
			Allow:  pure,
			Reason: "only services/cmd wires more than one stage; take an interface and let cmd pass the other stage in, or use its contract in api/proto",
		})
	}
	return rules
}
