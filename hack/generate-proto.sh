#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lints the .proto files and generates their Go code beside them.
#
#   hack/generate-proto.sh [ROOT]    the checkout to work on; this one by default
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/lib.sh"

root=${1:-$here/..}
buf_bin=$("$here/tools/build.sh" buf)
plugins_bin=$("$here/tools/build.sh" protoc-gen)

cd "$root/api/proto"
if [[ -z $(find . -name '*.proto' -print -quit) ]]; then
  die "no .proto file under api/proto: nothing to generate"
fi
export PATH="$plugins_bin:$buf_bin:$PATH"
# What a deleted or renamed .proto left behind must not stay.
find . -name '*.pb.go' -delete
buf lint
buf generate
