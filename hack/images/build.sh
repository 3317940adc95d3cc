#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds Kolocate's container images from programs that lie on this machine, so
# that no image registry is needed. With BASE_IMAGES=upstream it builds with the
# Dockerfile and its base images instead.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$here/../cluster/lib.sh"
# shellcheck source=hack/cluster/engine.sh
source "$here/../cluster/engine.sh"
# shellcheck source=hack/cluster/image.sh
source "$here/../cluster/image.sh"

BIN_DIR=${BIN_DIR:-$top/bin}
ALL=(kolocate partitioner envoy prometheus)

usage() {
  cat <<USAGE
usage: hack/images/build.sh TAG [NAME...]

Builds the named images (default: all) and prints their names:
  kolocate      kolocate:TAG, from \$BIN_DIR/kolocate
  partitioner   kolocate-partitioner:TAG, from \$BIN_DIR/kolocate-partitioner
  envoy         kolocate-envoy:TAG, from the pinned Envoy
  prometheus    kolocate-prometheus:TAG, from Debian's package; for e2e tests only

BIN_DIR       where the programs lie (now $BIN_DIR); 'make build' puts them there
BASE_IMAGES   "upstream" to build the first three with the Dockerfile
USAGE
}

# image_of NAME: what image NAME is called, without its tag.
image_of() {
  case $1 in
    kolocate) printf 'kolocate\n' ;;
    partitioner | envoy | prometheus) printf 'kolocate-%s\n' "$1" ;;
    *) die "no image is named \"$1\"; expected some of ${ALL[*]}" ;;
  esac
}

# program_of NAME: the program that image NAME runs.
program_of() {
  case $1 in
    kolocate | partitioner) printf '%s/%s\n' "$BIN_DIR" "$(image_of "$1")" ;;
    envoy) "$here/../deps/envoy.sh" ;;
    prometheus) prometheus_program ;;
  esac
}

# prometheus_program: Debian's Prometheus, unpacked but not installed. apt checks
# the package against the archive's signature.
prometheus_program() {
  local folder=$KOLOCATE_CACHE/prometheus/bookworm
  if [[ ! -x $folder/usr/bin/prometheus ]]; then
    command -v apt-get >/dev/null || die "the prometheus image is made from Debian's package and this system has no apt-get"
    step prometheus "fetching Debian's prometheus package" fetch_prometheus "$folder"
  fi
  printf '%s\n' "$folder/usr/bin/prometheus"
}

fetch_prometheus() {
  local stage
  stage=$(stage_dir "$1")
  cd "$stage"
  apt-get -q download prometheus || {
    apt-get -q update
    apt-get -q download prometheus
  }
  dpkg-deb --extract prometheus_*.deb .
  rm -f prometheus_*.deb
  publish_dir "$stage" "$1"
}

# assemble PROGRAM IMAGE: PROGRAM alone, with the libraries it needs, run by an
# unprivileged user on a root file system that may be read-only.
assemble() {
  local program=$1 image=$2 tree
  tree=$(mktemp -d)
  chmod 0755 "$tree"
  install -d -m 1777 "$tree/tmp"
  install -d "$tree/etc"
  printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n' >"$tree/etc/passwd"
  printf 'root:x:0:\nnonroot:x:65532:\n' >"$tree/etc/group"
  copy_program "$program" "$tree"
  pack_image "$tree" "$image" 'ENV PATH=/usr/local/bin' 'USER 65532:65532' 'WORKDIR /tmp' \
    "ENTRYPOINT [\"/usr/local/bin/$(basename "$program")\"]"
  rm -rf "$tree"
}

build_image() {
  local name=$1 tag=$2 image program
  image=$(image_of "$name"):$tag
  if [[ ${BASE_IMAGES:-} == upstream && $name != prometheus ]]; then
    step "image-$name" "building image $image with the Dockerfile" \
      docker build --target "$name" --tag "$image" --build-arg "VERSION=$tag" "$top"
  else
    program=$(program_of "$name")
    [[ -x $program ]] || die "image $image needs $program, which is no program: run 'make build' first, or point BIN_DIR to the folder that has it"
    step "image-$name" "building image $image" assemble "$program" "$image"
  fi
  printf '%s\n' "$image"
}

main() {
  local tag=${1:-} name names
  if [[ -z $tag || $tag == -* ]]; then
    usage
    [[ $tag == -h || $tag == --help ]] || exit 2
    return
  fi
  [[ $tag =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] || die "image tag \"$tag\": expected letters, digits, dots, dashes and underscores, 128 at most"
  shift
  names=("$@")
  ((${#names[@]} > 0)) || names=("${ALL[@]}")
  for name in "${names[@]}"; do image_of "$name" >/dev/null; done
  engine_up
  for name in "${names[@]}"; do build_image "$name" "$tag"; done
}

main "$@"
