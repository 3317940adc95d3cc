#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates a kind cluster whose nodes are Ready, whose claims bind and whose DNS
# answers, with the upstream node image where it can be pulled and one built
# here where it cannot. A healthy cluster of that name is kept.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KUBE_DIR=$here/../kube
# shellcheck source=hack/cluster/lib.sh
source "$here/lib.sh"
# shellcheck source=hack/cluster/engine.sh
source "$here/engine.sh"
# shellcheck source=hack/cluster/image.sh
source "$here/image.sh"

usage() {
  cat <<USAGE
usage: hack/cluster/up.sh NAME

Makes sure that kind cluster NAME runs and prints the path of its kubeconfig,
\$KOLOCATE_CACHE/clusters/NAME/kubeconfig. hack/cluster/down.sh NAME deletes it.

KOLOCATE_NODE_IMAGE    "upstream" or "built" to take only that; by default the
                       upstream image is tried first
KOLOCATE_PULL_SECONDS  how long a registry may take to answer (now ${KOLOCATE_PULL_SECONDS:-10})
KOLOCATE_CACHE         where built parts are kept (now $KOLOCATE_CACHE)
USAGE
}

# upstream_image: the node image that this version of kind was released with,
# with its digest, from kind's own source.
upstream_image() {
  local source
  source=$(cd "$KUBE_DIR/kind" && GOFLAGS='' GOWORK=off go list -m -f '{{.Dir}}' sigs.k8s.io/kind)
  sed -n 's/^const Image = "\(.*\)"/\1/p' "$source/pkg/apis/config/defaults/image.go"
}

# pull_upstream IMAGE: pulls if a registry answers within KOLOCATE_PULL_SECONDS.
# The download itself may take ten minutes.
pull_upstream() {
  local image=$1 limit=${KOLOCATE_PULL_SECONDS:-10} log=$KOLOCATE_CACHE/log/pull.log pull
  timeout 600 docker pull "$image" >"$log" 2>&1 &
  pull=$!
  if ! retry_until "$limit" pull_answered "$pull" "$log"; then
    kill "$pull" 2>/dev/null || true
  fi
  wait "$pull" 2>/dev/null
}

# pull_answered: the registry sent the manifest, or the pull has ended.
pull_answered() { grep -q 'Pulling from' "$2" || ! kill -0 "$1" 2>/dev/null; }

# choose_node_image sets NODE_IMAGE and NODE_IMAGE_BUILT.
choose_node_image() {
  local upstream built choice=${KOLOCATE_NODE_IMAGE:-}
  upstream=$(upstream_image)
  built=$("$here/node-image.sh" --name)
  NODE_IMAGE=$upstream NODE_IMAGE_BUILT=false
  if [[ $choice != built ]]; then
    if image_exists "$upstream"; then
      progress "node image: upstream's, already here"
      return
    fi
    if [[ $choice != upstream ]] && image_exists "$built"; then
      progress "node image: $built, built here before"
      NODE_IMAGE=$built NODE_IMAGE_BUILT=true
      return
    fi
    progress "node image: trying to pull ${upstream%@*}"
    if pull_upstream "$upstream"; then
      progress "node image: upstream's, pulled"
      return
    fi
    [[ $choice != upstream ]] ||
      die "the upstream node image $upstream cannot be pulled ($(tail -n 1 "$KOLOCATE_CACHE/log/pull.log")); unset KOLOCATE_NODE_IMAGE to build one"
    progress "node image: no registry gives it; building $built from Go modules and Debian packages"
  fi
  NODE_IMAGE=$("$here/node-image.sh") NODE_IMAGE_BUILT=true
}

# cluster_config: the built image has its own pod network in place of kind's,
# and a kubelet on cgroup v1 has to be told to start.
cluster_config() {
  cat <<CONFIG
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
networking:
  disableDefaultCNI: $NODE_IMAGE_BUILT
CONFIG
  if [[ $(docker info --format '{{.CgroupVersion}}') == 1 ]]; then
    cat <<CONFIG
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
CONFIG
  fi
}

kubectl_here() { "$KUBECTL" --kubeconfig "$KUBECONFIG_FILE" --request-timeout 10s "$@"; }

cluster_exists() { "$KIND" get clusters 2>/dev/null | grep -qxF "$1"; }

# cluster_healthy: the API server is ready, and so is every node.
cluster_healthy() {
  local ready
  kubectl_here get --raw /readyz >/dev/null || return 1
  ready=$(kubectl_here get nodes -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}') || return 1
  [[ $ready =~ ^True(\ True)*$ ]]
}

create() {
  local name=$1 folder=$2
  cluster_config >"$folder/kind.yaml"
  "$KIND" create cluster --name "$name" --image "$NODE_IMAGE" --config "$folder/kind.yaml" \
    --kubeconfig "$KUBECONFIG_FILE" --wait 180s || {
    # What a failed start needs for an explanation is inside the node.
    "$KIND" export logs --name "$name" "$folder/logs" || true
    "$KIND" delete cluster --name "$name" || true
    echo "the logs of the node are in $folder/logs"
    return 1
  }
}

# workloads_ready: DNS and the storage provisioner run.
workloads_ready() {
  kubectl_here --request-timeout 0 wait --for condition=Available --timeout 180s --all --all-namespaces deployment
}

main() {
  local name=${1:-} folder
  if (($# != 1)) || [[ $name == -* ]]; then
    usage
    [[ $name == -h || $name == --help ]] || exit 2
    return
  fi
  [[ $name =~ ^[a-z0-9][a-z0-9.-]*$ ]] || die "cluster name \"$name\": expected lower-case letters, digits, dots and dashes"
  need_go
  engine_up
  locked "cluster-$name"
  folder=$KOLOCATE_CACHE/clusters/$name
  KUBECONFIG_FILE=$folder/kubeconfig
  { read -r KIND && read -r KUBECTL; } < <("$KUBE_DIR/build.sh" kind kubectl) || die "kind and kubectl could not be built"

  if cluster_exists "$name"; then
    [[ -e $folder/kind.yaml ]] ||
      die "cluster $name exists and was not made by hack/cluster/up.sh: use another name, or delete it with 'kind delete cluster --name $name'"
    # Only a cluster that was finished counts: after a killed run the API server
    # may answer while what kind applies last is missing.
    if [[ -e $folder/finished ]] && retry_until 20 cluster_healthy; then
      progress "cluster $name is already up"
      printf '%s\n' "$KUBECONFIG_FILE"
      return
    fi
    step "delete-$name" "deleting cluster $name, which is not healthy" "$KIND" delete cluster --name "$name"
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  choose_node_image
  step "create-$name" "creating cluster $name" create "$name" "$folder"
  step "workloads-$name" "waiting for DNS and storage" workloads_ready
  printf '%s\n' "$NODE_IMAGE" >"$folder/finished"
  printf '%s\n' "$KUBECONFIG_FILE"
}

main "$@"
