#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the Go tests with everything they need: Envoy, etcd and kube-apiserver,
# the partitioner, KaHIP's library.
#
#   hack/test.sh [GO-TEST-ARGUMENT...]         all packages
#   RACE=all hack/test.sh                      all packages with the race detector
#   PACKAGES=./services/edge/... hack/test.sh  these packages alone
#
# Packages in which goroutines share state run with the race detector; the
# others run without it, several times faster.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/lib.sh"
cd "$here/.."

concurrent='^github.com/kolocate/kolocate/(api/client|services/(shard|replica|oracle|edge|trace))(/|$)'

read -ra patterns <<<"${PACKAGES:-./...}"
listed=$(go list "${patterns[@]}")
[[ -n $listed ]] || die "no Go package matches \"${patterns[*]}\""

# What takes long to build the first time is built only for those who use it.
needs=(cgo envoy)
if grep -qE '/(controllers|api/v1alpha1)(/|$)' <<<"$listed"; then
  needs+=(envtest)
fi
if grep -qE '/services/(oracle|partitioner|bench|cmd)(/|$)' <<<"$listed"; then
  needs+=(partitioner)
fi
if grep -qE '/services/cmd/kolocate(/|$)' <<<"$listed"; then
  needs+=(program)
fi
exports=$("$here/env.sh" "${needs[@]}")
eval "$exports"

raced=() plain=()
while read -r package; do
  if [[ ${RACE:-} == all || $package =~ $concurrent ]]; then
    raced+=("$package")
  else
    plain+=("$package")
  fi
done <<<"$listed"

# Both halves run even if the first fails, so that one run shows everything.
failed=0
if [[ ${#plain[@]} -gt 0 ]]; then
  progress "testing ${#plain[@]} packages"
  go test -timeout 10m "$@" "${plain[@]}" || failed=1
fi
if [[ ${#raced[@]} -gt 0 ]]; then
  progress "testing ${#raced[@]} packages with the race detector"
  go test -race -timeout 15m "$@" "${raced[@]}" || failed=1
fi
exit "$failed"
