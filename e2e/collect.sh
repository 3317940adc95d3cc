#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Keeps what explains a failed check: objects, events and the logs of all pods,
# in a folder; and prints the pods that are not well with the end of their logs.
set -euo pipefail

: "${KUBECONFIG:?names the cluster}" "${E2E_KUBECTL:=kubectl}"
folder=${1:?usage: e2e/collect.sh FOLDER}
mkdir -p "$folder/logs"
touch "$folder/collected"

kube() { "$E2E_KUBECTL" --request-timeout 20s "$@"; }

kube get all,configmaps,persistentvolumeclaims,persistentvolumes --all-namespaces --output wide >"$folder/objects.txt" 2>&1 || true
kube get events --all-namespaces --sort-by .lastTimestamp >"$folder/events.txt" 2>&1 || true
kube describe nodes >"$folder/nodes.txt" 2>&1 || true
kube get stores,rebalances --all-namespaces --output yaml >"$folder/kolocate.yaml" 2>&1 || true
kube describe pods --all-namespaces >"$folder/pods.txt" 2>&1 || true

# Each line: namespace, name, number of restarts, whether the pod is ready.
template='{range .items[*]}{.metadata.namespace} {.metadata.name} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}{"\n"}{end}'
kube get pods --all-namespaces --output "jsonpath=$template" | while read -r namespace name restarts ready; do
  log=$folder/logs/$namespace.$name.log
  kube logs --namespace "$namespace" "$name" --all-containers </dev/null >"$log" 2>&1 || true
  if [[ ${restarts:-0} != 0 ]]; then
    kube logs --namespace "$namespace" "$name" --previous </dev/null >"$folder/logs/$namespace.$name.previous.log" 2>&1 || true
  fi
  if [[ $namespace != kube-system && $ready != true ]]; then
    echo "pod $namespace/$name is not ready; the end of its log:"
    tail -n 15 "$log" | cut -c1-300 | sed 's/^/  | /'
  fi
done || true
kube get pods --all-namespaces --output wide || true
