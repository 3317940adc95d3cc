#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the pinned developer tools into the cache and prints the folder that
# holds their binaries.
#
#   hack/tools/build.sh [MODULE...]    buf, controller-gen, golangci-lint, protoc-gen; all if none is named
#
# Each module under hack/tools pins its own dependencies, so that no tool can
# change the version another one (or the product) is built from. A folder is
# named by the hash of the module's go.mod and go.sum and of the Go release:
# a change of a pin gets a fresh folder, and two checkouts share one build.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"

if [[ $# -eq 0 ]]; then
  set -- buf controller-gen golangci-lint protoc-gen
fi

for module in "$@"; do
  if [[ ! -f $here/$module/go.mod ]]; then
    die "unknown tool module \"$module\": expected a folder of hack/tools with a go.mod"
  fi
  key=$(cat "$here/$module/go.mod" "$here/$module/go.sum" <(go env GOVERSION) | sha256sum | cut -c1-16)
  dir=$(cache_dir)/tools/$module-$key
  if [[ ! -d $dir/bin ]]; then
    progress "building $module (once for each version; minutes on a small machine)"
    started=$SECONDS
    stage=$(stage_dir "$dir")
    trap 'rm -rf "$stage"' EXIT
    # GOFLAGS is cleared: a caller's -mod or -tags must not change the tools.
    (cd "$here/$module" && GOFLAGS="" CGO_ENABLED=0 GOBIN="$stage/bin" go install -trimpath -buildvcs=false tool) \
      || die "building the tools of hack/tools/$module failed; see the lines above"
    publish_dir "$stage" "$dir"
    progress "built $module in $((SECONDS - started)) s"
  fi
  echo "$dir/bin"
done
