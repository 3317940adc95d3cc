# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the scripts under hack/ share: the cache outside the checkout, progress
# on standard error, and folders that appear whole or not at all. Sourced,
# never run; the caller sets "set -euo pipefail".

# cache_dir prints the folder that keeps fetched and built parts.
cache_dir() {
  echo "${KOLOCATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kolocate}"
}

# progress prints one line for people; standard output is kept for results.
progress() {
  echo "==> $*" >&2
}

# die ends the script with one clear error.
die() {
  echo "error: $*" >&2
  exit 1
}

# stage_dir DIR prints a new folder beside DIR, to be filled and published.
stage_dir() {
  mkdir -p "$(dirname "$1")"
  mktemp -d "$1.partial.XXXXXX"
}

# publish_dir STAGE DIR renames STAGE to DIR. Whoever comes second when two
# runs race throws its own copy away, so DIR is never seen half written.
publish_dir() {
  chmod 755 "$1"
  if ! mv -T "$1" "$2" 2>/dev/null; then
    rm -rf "$1"
    [[ -d $2 ]] || die "cannot create $2: check that its parent folder is writable and has room"
  fi
}
