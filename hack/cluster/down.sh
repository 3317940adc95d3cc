#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Deletes a kind cluster and stops the Docker engine if up.sh started it and
# nothing else runs in it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$here/lib.sh"
# shellcheck source=hack/cluster/engine.sh
source "$here/engine.sh"

usage() {
  cat <<'USAGE'
usage: hack/cluster/down.sh NAME

Deletes kind cluster NAME; it is no error if there is none. Then stops the Docker
engine if hack/cluster/up.sh started it and no container is left in it. Images
and built parts stay in the cache for the next time.
USAGE
}

main() {
  local name=${1:-} kind
  if (($# != 1)) || [[ $name == -* ]]; then
    usage
    [[ $name == -h || $name == --help ]] || exit 2
    return
  fi
  if ! command -v docker >/dev/null || ! engine_answers; then
    progress "no Docker engine answers, so there is no cluster $name"
    return
  fi
  locked "cluster-$name"
  kind=$("$here/../kube/build.sh" kind)
  step "delete-$name" "deleting cluster $name" "$kind" delete cluster --name "$name"
  rm -rf "${KOLOCATE_CACHE:?}/clusters/$name"
  engine_down
}

main "$@"
