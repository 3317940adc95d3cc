#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Proves that what is kept in git is what its sources give: generated code,
# manifests and golden files are made anew in a copy and compared; go.mod is
# tidy; the chart passes helm lint; the import rules hold. Every finding is
# printed with the command that mends it, and the checks all run even if one
# fails.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"
root=$(cd "$here/../.." && pwd)
cd "$root"

findings=0
finding() {
  echo "finding: $1" >&2
  echo "  mend it with: $2" >&2
  findings=$((findings + 1))
}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# The copy holds what is tracked and what is new, not what is ignored.
copy_checkout() {
  git ls-files --cached --others --exclude-standard -z |
    while IFS= read -r -d '' file; do
      # A file deleted but not yet committed is still listed.
      if [[ -e $file ]]; then
        printf '%s\0' "$file"
      fi
    done | tar --create --null --files-from - | tar --extract --directory "$copy"
}

# verify_generated PART PATH...: PART's output is the same when made anew.
verify_generated() {
  local part=$1 path
  shift
  if ! "$here/../generate.sh" --root "$copy" "$part"; then
    finding "hack/generate.sh $part fails (see above)" "correct what it says"
    return
  fi
  for path in "$@"; do
    if ! diff --recursive --unified "$path" "$copy/$path" >&2; then
      finding "$path differs from what is generated" "make generate"
    fi
  done
}

verify_modules() {
  progress "checking go.mod"
  if ! go mod tidy -diff >&2; then
    finding "go.mod or go.sum" "go mod tidy"
  fi
  if ! go mod verify >/dev/null; then
    finding "the module cache differs from go.sum" "go clean -modcache"
  fi
}

verify_chart() {
  local helm
  helm=$("$here/../kube/build.sh" helm)
  progress "linting the chart"
  if ! "$helm" lint --strict --quiet charts/kolocate >&2; then
    finding "helm lint finds faults in charts/kolocate" "correct what it says"
  fi
}

verify_boundaries() {
  progress "checking the import rules"
  if ! go test -count=1 ./hack/boundaries/...; then
    finding "an import rule is broken" "correct what it says, or change the rule in hack/boundaries with its reason"
  fi
}

# Every query of the dashboards and alerts, by Prometheus's own parser.
verify_queries() {
  progress "checking the queries of dashboards and alerts"
  if ! (cd hack/promcheck && go test -count=1 ./...); then
    finding "a query of a dashboard or an alert is wrong" "correct what it says"
  fi
}

copy_checkout
verify_generated proto api/proto
verify_generated api api/v1alpha1 manifests/crds manifests/rbac charts/kolocate/crds charts/kolocate/files
verify_generated chart charts/kolocate/testdata
verify_chart
verify_queries
verify_modules
verify_boundaries

if [[ $findings -gt 0 ]]; then
  die "verify: $findings finding(s)"
fi
progress "verify: all is up to date"
