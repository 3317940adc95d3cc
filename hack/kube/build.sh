#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds parts of a Kubernetes cluster from pinned Go modules into the cache and
# prints their paths, one a line. A part that is there already is not built
# again unless its module or its flags changed.
set -euo pipefail

KUBE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/cluster/lib.sh
source "$KUBE_DIR/../cluster/lib.sh"
# shellcheck source=hack/kube/parts.sh
source "$KUBE_DIR/parts.sh"

usage() {
  cat <<USAGE
usage: hack/kube/build.sh NAME...

Builds the named parts into \$KOLOCATE_CACHE/bin/VERSION/ (now $KOLOCATE_CACHE/bin)
and prints one path a part on standard output. Progress goes to standard error.

parts: ${PART_NAMES[*]}
USAGE
}

# compile TARGET: builds what describe_part described into TARGET, under the
# lock. The rename comes last: a run that is killed leaves no half a program.
compile() {
  cd "$KUBE_DIR/$part_folder"
  CGO_ENABLED=0 GOWORK=off GOFLAGS='' go build -trimpath -buildvcs=false -tags "$part_tags" \
    -ldflags "-s -w $part_flags" -o "$1.partial" "$part_package"
  mv "$1.partial" "$1"
}

build_part() {
  local name=$1 version target stamp inputs
  describe_part "$name"
  version=$(pinned "$part_folder" "$part_pin")
  target=$KOLOCATE_CACHE/bin/$version/$name
  stamp=$KOLOCATE_CACHE/bin/$version/.$name.inputs
  inputs="$(cd "$KUBE_DIR/$part_folder" && find . -type f | LC_ALL=C sort | xargs sha256sum | digest) tags=$part_tags flags=$part_flags"
  mkdir -p "$(dirname "$target")"
  if [[ ! -x $target || ! -e $stamp || $(<"$stamp") != "$inputs" ]]; then
    need_go
    locked "build-$name"
    if [[ ! -x $target || ! -e $stamp || $(<"$stamp") != "$inputs" ]]; then
      step "build-$name" "building $name $version (about $part_seconds s on 2 cores)" compile "$target"
      printf '%s\n' "$inputs" >"$stamp"
    fi
    unlocked "build-$name"
  fi
  printf '%s\n' "$target"
}

main() {
  case ${1:-} in
    '' | -h | --help)
      usage
      [[ -n ${1:-} ]] || exit 2
      return
      ;;
  esac
  local name
  for name in "$@"; do
    build_part "$name"
  done
}

main "$@"
