# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What the scripts under hack/cluster, hack/kube and hack/images share beyond
# hack/lib.sh: timed steps, locks and Debian packages. It is sourced and does
# nothing by itself.
#
# Standard output carries results only (paths, names), standard error carries
# progress, so that scripts can be used inside $(...).

# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

KOLOCATE_CACHE=$(cache_dir)
export KOLOCATE_CACHE
mkdir -p "$KOLOCATE_CACHE/log" "$KOLOCATE_CACHE/lock"

# step NAME TEXT COMMAND...: runs COMMAND with its output in log/NAME.log and
# prints "TEXT ... done in N s". If COMMAND fails, the end of the log is shown
# and the script ends. COMMAND may be a function: it runs in a subshell of its
# own, where a failing line ends it.
step() {
  local name=$1 text=$2 log=$KOLOCATE_CACHE/log/$1.log start=$SECONDS status=0
  shift 2
  printf '==> %s ... ' "$text" >&2
  set +e
  (
    set -e
    "$@"
  ) >"$log" 2>&1
  status=$?
  set -e
  if ((status != 0)); then
    printf 'failed after %s s\n' "$((SECONDS - start))" >&2
    tail -n 40 "$log" | sed 's/^/  | /' >&2
    die "$text: exit status $status; the whole output of step $name is in $log"
  fi
  printf 'done in %s s\n' "$((SECONDS - start))" >&2
}

# locked NAME: holds lock NAME until the calling shell ends or calls unlocked
# NAME. Two runs at the same moment therefore build each part once. The lock
# goes with the process: a killed run leaves none behind.
declare -A LOCK_FD=()
locked() {
  local name=$1 fd
  exec {fd}>"$KOLOCATE_CACHE/lock/$name"
  if ! flock --nonblock "$fd"; then
    progress "waiting for another run that holds $KOLOCATE_CACHE/lock/$name"
    flock --timeout 1800 "$fd" || die "lock $KOLOCATE_CACHE/lock/$name was not free within 30 minutes; is another run stuck?"
  fi
  LOCK_FD[$name]=$fd
}

unlocked() {
  local fd=${LOCK_FD[$1]}
  exec {fd}>&-
  unset "LOCK_FD[$1]"
}

# digest: the SHA-256 of standard input, as its first 16 hex digits.
digest() { sha256sum | cut -c1-16; }

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
# and stop themselves. A policy file that a killed run left is taken over.
install_packages() {
  local policy=/usr/sbin/policy-rc.d mark='# written by kolocate' status=0
  export DEBIAN_FRONTEND=noninteractive
  if [[ ! -e $policy ]] || grep -qxF "$mark" "$policy"; then
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 0755 "$policy"
  fi
  {
    dpkg --configure -a &&
      apt-get -q update &&
      apt-get -q install -y --no-install-recommends "$@"
  } || status=$?
  ! grep -qxF "$mark" "$policy" || rm -f "$policy"
  return "$status"
}

# need_go ends the script if there is no Go toolchain.
need_go() {
  command -v go >/dev/null || die "the go command is needed to build from source: install Go 1.26 or newer and put it on PATH"
}
