# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What every script under hack/cluster, hack/kube and hack/images shares: where
# built parts are kept, progress lines, locks and Debian packages. It is sourced
# and does nothing by itself.
#
# Standard output carries results only (paths, names), standard error carries
# progress, so that scripts can be used inside $(...).

# KOLOCATE_CACHE holds everything that is built or downloaded. It lies outside
# the checkout so that a fresh clone finds the parts of the one before.
KOLOCATE_CACHE=${KOLOCATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kolocate}
export KOLOCATE_CACHE
mkdir -p "$KOLOCATE_CACHE/log" "$KOLOCATE_CACHE/lock"

say() { printf '%s\n' "$*" >&2; }

# die MESSAGE...: ends the script with status 1.
die() {
  say "error: $*"
  exit 1
}

# step NAME TEXT COMMAND...: runs COMMAND with its output in log/NAME.log and
# prints "TEXT ... done in N s". If COMMAND fails, the end of the log is shown
# and the script ends. COMMAND may be a function: it runs in a subshell of its
# own, where a failing line ends it.
step() {
  local name=$1 text=$2 log=$KOLOCATE_CACHE/log/$1.log start=$SECONDS status=0
  shift 2
  printf '%s ... ' "$text" >&2
  set +e
  (
    set -e
    "$@"
  ) >"$log" 2>&1
  status=$?
  set -e
  if ((status != 0)); then
    say "failed after $((SECONDS - start)) s"
    tail -n 40 "$log" | sed 's/^/  | /' >&2
    die "$text: exit status $status; the whole output of step $name is in $log"
  fi
  say "done in $((SECONDS - start)) s"
}

# locked NAME: holds lock NAME until the calling shell ends or calls unlocked
# NAME. Two runs at the same moment therefore build each part once. The lock
# goes with the process: a killed run leaves none behind.
declare -A LOCK_FD=()
locked() {
  local name=$1 fd
  exec {fd}>"$KOLOCATE_CACHE/lock/$name"
  if ! flock --nonblock "$fd"; then
    say "waiting for another run that holds $KOLOCATE_CACHE/lock/$name"
    flock --timeout 1800 "$fd" || die "lock $KOLOCATE_CACHE/lock/$name was not free within 30 minutes; is another run stuck?"
  fi
  LOCK_FD[$name]=$fd
}

unlocked() {
  local fd=${LOCK_FD[$1]}
  exec {fd}>&-
  unset "LOCK_FD[$1]"
}

# digest_of FILE...: one SHA-256 over the contents of the files, as 16 hex digits.
digest_of() { cat "$@" | sha256sum | cut -c1-16; }

# retry_until SECONDS COMMAND...: runs COMMAND every half second until it
# succeeds; fails after SECONDS. The output of COMMAND is dropped.
retry_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || return 1
    sleep 0.5
  done
}

# need_packages PACKAGE...: installs the Debian packages that are missing. Their
# integrity is checked by apt against the archive's signature.
need_packages() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  command -v apt-get >/dev/null ||
    die "these programs are needed and this system has no apt-get: install what Debian calls ${missing[*]}, then run this again"
  ((EUID == 0)) ||
    die "Debian packages are missing and only root may install them: run 'sudo apt-get install ${missing[*]}', then run this again"
  step apt "installing Debian packages ${missing[*]}" install_packages "${missing[@]}"
}

# install_packages starts no service: what the scripts need running, they start
# and stop themselves.
install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q update
  local policy=/usr/sbin/policy-rc.d status=0
  if [[ -e $policy ]]; then
    apt-get -q install -y --no-install-recommends "$@"
    return
  fi
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 0755 "$policy"
  apt-get -q install -y --no-install-recommends "$@" || status=$?
  rm -f "$policy"
  return "$status"
}

# need_go ends the script if there is no Go toolchain.
need_go() {
  command -v go >/dev/null || die "the go command is needed to build from source: install Go 1.26 or newer and put it on PATH"
}
