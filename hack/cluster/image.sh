# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Container images of one layer, put together from a folder without a registry
# or a builder. It is sourced by system-images.sh and hack/images/build.sh.

# pack_image FOLDER NAME CHANGE...: makes the tree under FOLDER the only layer of
# image NAME. Each CHANGE is a Dockerfile instruction such as 'USER 65532'. The
# layer depends on the contents alone. If image NAME was made from the same
# contents and changes before, nothing happens, so its identity stays and
# clusters need not load it again.
pack_image() {
  local folder=$1 name=$2 inputs change arguments=() layer
  shift 2
  layer=(tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c .)
  inputs=$({
    "${layer[@]}" | sha256sum
    printf '%s\n' "$@"
  } | digest)
  if [[ $(image_inputs "$name") == "$inputs" ]]; then
    echo "$name is up to date"
    return
  fi
  for change in "$@" "LABEL io.kolocate.inputs=$inputs"; do
    arguments+=(--change "$change")
  done
  "${layer[@]}" | docker import "${arguments[@]}" - "$name"
}

# image_inputs NAME: the digest that pack_image left in image NAME, if it exists.
image_inputs() {
  docker image inspect --format '{{index .Config.Labels "io.kolocate.inputs"}}' "$1" 2>/dev/null || true
}

image_exists() { docker image inspect "$1" >/dev/null 2>&1; }

# copy_program PROGRAM TREE [PATH]: puts PROGRAM at PATH in TREE (default
# /usr/local/bin/ and its own name) with the shared libraries it needs, which
# for a static program are none.
copy_program() {
  local program=$1 tree=$2 path=${3:-/usr/local/bin/$(basename "$1")} library
  install -D -m 0755 "$program" "$tree$path"
  while read -r library; do
    # The loader has to lie where the program names it; -L follows links to the file.
    install -D -m 0755 "$library" "$tree$library"
  done < <(ldd "$program" 2>/dev/null | grep -oE '/[^ ]+' || true)
}
