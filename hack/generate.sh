#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes everything that is generated and kept in git:
#
#   hack/generate.sh [--root ROOT] [proto] [api] [chart]    all three if none is named
#
#   proto  api/proto/**/*.pb.go, from the .proto files
#   api    api/v1alpha1/zz_generated.deepcopy.go, manifests/crds and
#          charts/kolocate/crds from the types; manifests/rbac from the markers
#          in controllers/
#   chart  charts/kolocate/testdata/NAME.golden.yaml from NAME.values.yaml
#
# ROOT is the checkout to work on; by default this one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/lib.sh"

generate_proto() {
  progress "generating Go code from api/proto"
  "$here/generate-proto.sh" "$root"
}

generate_api() {
  [[ -d $root/api/v1alpha1 ]] || die "api/v1alpha1 does not exist: expected the types of Store and Rebalance there"
  [[ -d $root/controllers ]] || die "controllers does not exist: expected the markers that RBAC is generated from there"
  local controller_gen
  controller_gen=$("$here/tools/build.sh" controller-gen)/controller-gen
  progress "generating deepcopy, CRDs and RBAC"
  cd "$root"
  # What a removed kind left behind must not stay.
  rm -rf manifests/crds charts/kolocate/crds
  "$controller_gen" "object:headerFile=$here/boilerplate.go.txt" paths=./api/v1alpha1/...
  "$controller_gen" crd paths=./api/v1alpha1/... output:crd:dir=manifests/crds
  "$controller_gen" rbac:roleName=kolocate-operator paths=./controllers/... output:rbac:dir=manifests/rbac
  [[ -n $(find manifests/crds -name '*.yaml' -print -quit) ]] || die "controller-gen found no kind in api/v1alpha1: expected // +kubebuilder:object:root=true markers"
  [[ -f manifests/rbac/role.yaml ]] || die "controller-gen found no // +kubebuilder:rbac marker in controllers"
  mkdir -p charts/kolocate/crds charts/kolocate/files
  cp manifests/crds/*.yaml charts/kolocate/crds/
  cp manifests/rbac/role.yaml charts/kolocate/files/role.yaml
}

generate_chart() {
  [[ -f $root/charts/kolocate/Chart.yaml ]] || die "charts/kolocate/Chart.yaml does not exist: expected the Helm chart there"
  local helm values golden
  helm=$("$here/kube/build.sh" helm)
  cd "$root/charts/kolocate"
  [[ -n $(find testdata -name '*.values.yaml' -print -quit 2>/dev/null) ]] || die "no charts/kolocate/testdata/NAME.values.yaml: expected at least one set of values to render"
  progress "rendering the chart's golden files"
  rm -f testdata/*.golden.yaml
  for values in testdata/*.values.yaml; do
    golden=${values%.values.yaml}.golden.yaml
    # A fixed name and a fixed Kubernetes version: the file must not depend on
    # who renders it.
    "$helm" template kolocate . --namespace kolocate-system --include-crds=false \
      --kube-version 1.36.0 --values "$values" >"$golden"
  done
}

root=$(cd "$here/.." && pwd)
if [[ ${1:-} == --root ]]; then
  root=$(cd "$2" && pwd)
  shift 2
fi
if [[ $# -eq 0 ]]; then
  set -- proto api chart
fi
for part in "$@"; do
  case $part in
  proto | api | chart) (generate_"$part") ;;
  *) die "unknown part \"$part\": expected proto, api or chart" ;;
  esac
done
