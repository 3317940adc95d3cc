#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Loads the images that build.sh made into the nodes of a kind cluster. An image
# that a node has already is not sent again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$here/../cluster/lib.sh"
# shellcheck source=hack/cluster/engine.sh
source "$here/../cluster/engine.sh"
# shellcheck source=hack/cluster/image.sh
source "$here/../cluster/image.sh"

usage() {
  cat <<'USAGE'
usage: hack/images/load.sh CLUSTER TAG

Loads every image that hack/images/build.sh TAG has built (kolocate,
kolocate-partitioner, kolocate-envoy, kolocate-prometheus) into kind cluster CLUSTER.
USAGE
}

main() {
  local cluster=${1:-} tag=${2:-} kind image images=()
  if (($# != 2)); then
    usage
    [[ $cluster == -h || $cluster == --help ]] || exit 2
    return
  fi
  engine_answers || die "no Docker engine answers: create the cluster with 'hack/cluster/up.sh $cluster' first"
  for image in kolocate kolocate-partitioner kolocate-envoy kolocate-prometheus; do
    ! image_exists "$image:$tag" || images+=("$image:$tag")
  done
  ((${#images[@]} > 0)) || die "no image has the tag \"$tag\": build them with 'hack/images/build.sh $tag'"
  kind=$("$here/../kube/build.sh" kind)
  step "load-$cluster" "loading ${images[*]} into cluster $cluster" "$kind" load docker-image --name "$cluster" "${images[@]}"
}

main "$@"
