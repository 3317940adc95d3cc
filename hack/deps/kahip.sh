#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the pinned KaHIP and prints the folder that holds its include/, lib/
# (libkahip_static.a) and bin/ (kaffpa). KOLOCATE_KAHIP names such a folder to
# use instead, for example one built from KaHIP's sources.
set -euo pipefail

version=3.25
# x86_64; the project publishes this wheel for Linux on no other machine.
hashes=2df003240700286fabaacdc6123ec3489171a632867fcdba26c1b87bbb20dc2b

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/lib.sh
. "$here/../lib.sh"
# shellcheck source=hack/deps/wheel.sh
. "$here/wheel.sh"

if [[ -n ${KOLOCATE_KAHIP:-} ]]; then
  [[ -f $KOLOCATE_KAHIP/lib/libkahip_static.a ]] || die "KOLOCATE_KAHIP is \"$KOLOCATE_KAHIP\", which has no lib/libkahip_static.a: name the folder KaHIP was installed to, or unset it"
  echo "$KOLOCATE_KAHIP"
  exit
fi

dir=$(cache_dir)/kahip/$version
if [[ ! -f $dir/lib/libkahip_static.a ]]; then
  [[ $(uname -m) == x86_64 ]] || die "KaHIP $version is published for x86_64 alone, and this machine is $(uname -m): build KaHIP from source and set KOLOCATE_KAHIP to its install folder"
  stage=$(stage_dir "$dir")
  trap 'rm -rf "$stage"' EXIT
  # The library does not depend on Python, so one wheel serves every Python.
  unpack_wheel kahip "$version" "$stage/wheel" "$hashes" \
    --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64
  mv "$stage/wheel/include" "$stage/wheel/lib" "$stage/wheel/bin" "$stage/"
  chmod 755 "$stage"/bin/*
  mv "$stage"/wheel/*.dist-info/licenses/LICENSE "$stage/LICENSE"
  rm -rf "$stage/wheel"
  publish_dir "$stage" "$dir"
fi
echo "$dir"
