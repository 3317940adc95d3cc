// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
)

// TestKolocate goes through the life of a store in the order in which a user
// would: each check begins where the one before it ended. A check that others
// build upon ends the test when it fails.
func TestKolocate(t *testing.T) {
	k := newCluster(t)
	checks := []struct {
		name      string
		essential bool
		run       func(*testing.T, *cluster)
	}{
		{"chart_installs", true, installChart},
		{"sample_store_becomes_ready", true, applyStore},
		{"bad_input_is_rejected", false, rejectBadInput},
		{"prometheus_scrapes_every_part", false, startPrometheus},
		{"command_line_works_through_envoy", false, useCommandLine},
		{"load_job_runs", true, startLoad},
		{"rebalance_goes_through_its_phases", false, watchRebalance},
		{"envoy_agrees_with_the_oracle", false, compareEnvoy},
		{"keys_reach_their_shards", false, routeKeys},
		{"dashboards_have_data", false, checkDashboards},
		{"alert_rules_load", false, checkRules},
		{"killed_leader_process_loses_nothing", false, killLeaderProcess},
		{"deleted_leader_pod_loses_nothing", false, deleteLeaderPod},
		{"load_saw_no_fault_and_fewer_multi_shard_commands", false, finishLoad},
		{"deleted_store_leaves_nothing", false, deleteStore},
		{"uninstalled_chart_leaves_only_crds", false, uninstallChart},
	}
	for i, check := range checks {
		name := numbered(i+1, check.name)
		if t.Run(name, func(t *testing.T) { check.run(t, k) }) {
			continue
		}
		k.collect(t)
		if check.essential {
			for j := i + 1; j < len(checks); j++ {
				t.Run(numbered(j+1, checks[j].name), func(t *testing.T) { t.Fatalf("not run, because %s failed", name) })
			}
			return
		}
	}
}
