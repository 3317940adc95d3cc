#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that what controller tests need (etcd, kube-apiserver, kubectl) is
# built, and prints the folder that holds all three.
set -euo pipefail

KUBE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$KUBE_DIR/../cluster/lib.sh"

usage() {
  cat <<'USAGE'
usage: hack/kube/envtest.sh

Prints the folder to put into KUBEBUILDER_ASSETS:
  KUBEBUILDER_ASSETS="$(hack/kube/envtest.sh)" go test ./controllers/...
Progress goes to standard error. The first run takes minutes, later ones no time.
USAGE
}

main() {
  if (($# > 0)); then
    usage
    [[ $1 == -h || $1 == --help ]] || exit 2
    return
  fi
  local paths path folder
  paths=$("$KUBE_DIR/build.sh" etcd kube-apiserver kubectl)
  # The parts lie in folders named by version; the tests want them in one. The
  # folder is named by the parts it links to, so a new pin gives a new folder.
  folder=$KOLOCATE_CACHE/envtest/$(digest <<<"$paths")
  mkdir -p "$folder"
  while read -r path; do
    ln -sfn "$path" "$folder/$(basename "$path")"
  done <<<"$paths"
  printf '%s\n' "$folder"
}

main "$@"
