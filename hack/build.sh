#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the two programs into bin/, both without any shared library:
#
#   hack/build.sh [kolocate] [kolocate-partitioner]    both if none is named
#
# VERSION is what they report; by default what git describes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/lib.sh"
cd "$here/.."

if [[ $# -eq 0 ]]; then
  set -- kolocate kolocate-partitioner
fi
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo unknown)}

for program in "$@"; do
  [[ -d services/cmd/$program ]] || die "services/cmd/$program does not exist: expected the program's main package there"
  started=$SECONDS
  progress "building bin/$program"
  ldflags="-s -w -X main.version=$version"
  case $program in
  kolocate)
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$ldflags" -o "bin/$program" "./services/cmd/$program"
    ;;
  kolocate-partitioner)
    exports=$("$here/env.sh" cgo)
    eval "$exports"
    # netgo and osusergo keep glibc's resolvers, which cannot be static, out.
    CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags netgo,osusergo \
      -ldflags "$ldflags -linkmode external -extldflags -static" -o "bin/$program" "./services/cmd/$program"
    ;;
  *)
    die "unknown program \"$program\": expected kolocate or kolocate-partitioner"
    ;;
  esac
  progress "built bin/$program in $((SECONDS - started)) s"
done
