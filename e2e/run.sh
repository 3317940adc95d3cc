#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows the whole product on a real cluster: builds programs and images, creates
# a kind cluster, and runs the checks of this folder in it. Logs and objects are
# kept in _output/e2e. The last line counts the checks.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/.." && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$top/hack/cluster/lib.sh"

CLUSTER=${CLUSTER:-kolocate-e2e}
TAG=${TAG:-e2e}
OUTPUT=$top/_output/e2e

usage() {
  cat <<USAGE
usage: e2e/run.sh [GO-TEST-FLAG...]

Runs the end-to-end checks, about eight minutes with a full cache. GO-TEST-FLAGs
go to the test program, for example -test.run.

KEEP     1 to keep the cluster, for another run or for a look at it; delete it
         with hack/cluster/down.sh $CLUSTER
CLUSTER  name of the kind cluster (now $CLUSTER)
TAG      tag of the images (now $TAG)
USAGE
}

# stage TEXT COMMAND...: runs COMMAND and says how long it took and how long the
# whole run did so far.
stage() {
  local text=$1 start=$SECONDS
  shift
  progress "$text"
  "$@"
  progress "$text: done in $((SECONDS - start)) s, $SECONDS s in all"
}

build() {
  "$top/hack/build.sh"
  (cd "$top/hack/promcheck" && go build -o "$OUTPUT/bin/promcheck" .)
  (cd "$top" && go test -c -tags e2e -o "$OUTPUT/bin/e2e.test" ./e2e)
}

# fresh_cluster: a cluster that an earlier run kept is emptied.
fresh_cluster() {
  local kubectl
  export KUBECONFIG
  KUBECONFIG=$("$top/hack/cluster/up.sh" "$CLUSTER")
  kubectl=$("$top/hack/kube/build.sh" kubectl)
  "$kubectl" delete namespaces shop clients monitoring kolocate-system --ignore-not-found --timeout 180s >&2
  "$kubectl" delete clusterroles,clusterrolebindings --selector app.kubernetes.io/instance=kolocate >&2
  "$kubectl" delete crds stores.kolocate.io rebalances.kolocate.io --ignore-not-found --timeout 60s >&2
}

# finish runs at the end, however that came: it keeps what explains a failure,
# deletes the cluster and counts.
finish() {
  local status=$? passed=0 failed=0
  trap - EXIT INT TERM
  set +e
  if [[ -e $OUTPUT/test.log ]]; then
    passed=$(grep -cE '^    --- PASS: TestKolocate/' "$OUTPUT/test.log")
    failed=$(grep -cE '^    --- FAIL: TestKolocate/' "$OUTPUT/test.log")
  fi
  if ((status != 0)); then
    ((failed > 0)) || failed=1
    [[ -e $OUTPUT/collected || ! -s ${KUBECONFIG:-} ]] || "$here/collect.sh" "$OUTPUT"
    progress "what explains the failure is in $OUTPUT"
  fi
  if [[ ${KEEP:-} == 1 ]]; then
    progress "cluster $CLUSTER is kept: export KUBECONFIG=${KUBECONFIG:-}"
  elif ! "$top/hack/cluster/down.sh" "$CLUSTER"; then
    failed=$((failed + 1)) status=1
  fi
  progress "$SECONDS s in all"
  printf '%s passed, %s failed\n' "$passed" "$failed"
  ((failed == 0)) || exit 1
  exit "$status"
}

main() {
  case ${1:-} in
    -h | --help)
      usage
      return
      ;;
  esac
  local tools
  need_go
  rm -rf "$OUTPUT"
  mkdir -p "$OUTPUT/bin"
  trap finish EXIT
  trap 'exit 130' INT TERM
  exec </dev/null

  stage "building programs" build
  stage "creating cluster $CLUSTER" fresh_cluster
  stage "building images" "$top/hack/images/build.sh" "$TAG"
  stage "loading images" "$top/hack/images/load.sh" "$CLUSTER" "$TAG"
  mapfile -t tools < <("$top/hack/kube/build.sh" kubectl helm)
  ((${#tools[@]} == 2)) || die "kubectl and helm could not be built"
  export E2E_KUBECTL=${tools[0]} E2E_HELM=${tools[1]} E2E_KOLOCATE=$top/bin/kolocate E2E_PROMCHECK=$OUTPUT/bin/promcheck
  export E2E_TAG=$TAG E2E_NODE=$CLUSTER-control-plane E2E_OUTPUT=$OUTPUT
  E2E_PROMTOOL=$(promtool)
  export E2E_PROMTOOL
  progress "checks begin, $SECONDS s in all"
  cd "$here"
  "$OUTPUT/bin/e2e.test" -test.v -test.timeout 15m "$@" 2>&1 | tee "$OUTPUT/test.log"
}

# promtool: the one that lies beside the Prometheus of the image, if any.
promtool() {
  local file
  for file in "$KOLOCATE_CACHE"/prometheus/*/usr/bin/promtool; do
    [[ ! -x $file ]] || printf '%s\n' "$file"
  done | tail -n 1
}

main "$@"
