#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints, as lines for "eval", the environment that building and testing need:
#
#   eval "$(hack/env.sh cgo)"           where cgo finds KaHIP
#   eval "$(hack/env.sh cgo envoy)"     and KOLOCATE_ENVOY, the real Envoy
#
# Parts: cgo; envoy; partitioner (builds bin/kolocate-partitioner and sets
# KOLOCATE_PARTITIONER); program (builds bin/kolocate and sets
# KOLOCATE_PROGRAM); envtest (builds etcd and kube-apiserver the first time
# and sets KUBEBUILDER_ASSETS); all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/lib.sh"

print_export() {
  printf 'export %s=%q\n' "$1" "$2"
}

if [[ $# -eq 0 || ${1:-} == all ]]; then
  set -- cgo envoy partitioner program envtest
fi
for part in "$@"; do
  case $part in
  cgo)
    kahip=$("$here/deps/kahip.sh")
    # Folders alone: the package that links KaHIP names the libraries, so no
    # other cgo package is linked against them.
    print_export CGO_CFLAGS "-O2 -g -I$kahip/include"
    print_export CGO_LDFLAGS "-O2 -g -L$kahip/lib"
    ;;
  envoy)
    envoy=$("$here/deps/envoy.sh")
    print_export KOLOCATE_ENVOY "$envoy"
    ;;
  partitioner)
    "$here/build.sh" kolocate-partitioner
    print_export KOLOCATE_PARTITIONER "$(cd "$here/.." && pwd)/bin/kolocate-partitioner"
    ;;
  program)
    "$here/build.sh" kolocate
    print_export KOLOCATE_PROGRAM "$(cd "$here/.." && pwd)/bin/kolocate"
    ;;
  envtest)
    [[ -x $here/kube/envtest.sh ]] || die "hack/kube/envtest.sh is missing: the controller tests need etcd and kube-apiserver"
    assets=$("$here/kube/envtest.sh")
    print_export KUBEBUILDER_ASSETS "$assets"
    ;;
  *)
    die "unknown part \"$part\": expected cgo, envoy, partitioner, program, envtest or all"
    ;;
  esac
done
