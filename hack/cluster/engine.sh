# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The Docker engine: uses the one that answers, else installs Debian's and
# starts it, and later stops only what it started. It is sourced, after lib.sh.

CLUSTER_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/cluster/capabilities.sh
source "$CLUSTER_DIR/capabilities.sh"

ENGINE_STATE=$KOLOCATE_CACHE/engine

engine_answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# engine_up: makes sure a Docker engine answers the docker command. Until the
# calling shell ends, no other run's engine_down stops it.
engine_up() {
  exec {ENGINE_USE}>"$KOLOCATE_CACHE/lock/engine-use"
  flock --shared --timeout 120 "$ENGINE_USE" || die "another run has been stopping the Docker engine for two minutes; see $ENGINE_STATE/dockerd.log"
  if command -v docker >/dev/null && engine_answers; then
    return
  fi
  [[ $(uname -s) == Linux ]] || die "no Docker engine answers: start Docker on this machine, then run this again"
  [[ -z ${DOCKER_HOST:-} ]] || die "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start it, or unset DOCKER_HOST to use a local one"
  ((EUID == 0)) || die "no Docker engine answers and only root may start one: start Docker and join its group, or install it first (on Debian: sudo apt-get install docker.io iptables), then run this again"
  need_packages docker.io iptables jq
  locked engine
  engine_answers || start_engine
  unlocked engine
}

start_engine() {
  local missing arguments
  mkdir -p "$ENGINE_STATE"
  missing=$(missing_capabilities | paste -sd ' ')
  # The data root lies in the cache: images stay for the next run, and deleting
  # the cache deletes everything.
  arguments=(--data-root "$ENGINE_STATE/data" --pidfile "$ENGINE_STATE/dockerd.pid" --default-cgroupns-mode private)
  if [[ -n $missing ]]; then
    progress "this host withholds $missing: containers run through a runtime that does not ask for it"
    write_oci_runtime "$ENGINE_STATE/oci-runtime" "$(command -v runc)" "$missing"
    arguments+=(--add-runtime "trimmed=$ENGINE_STATE/oci-runtime" --default-runtime trimmed)
  fi
  launch "$ENGINE_STATE/dockerd.log" dockerd "${arguments[@]}"
  step engine "starting the Docker engine" retry_until 60 engine_answers
}

# launch LOG COMMAND...: starts a daemon that outlives this shell and holds none
# of its files open, above all none of its locks.
launch() {
  local log=$1
  shift
  (
    for fd in /proc/"$BASHPID"/fd/*; do
      fd=${fd##*/}
      ((fd <= 2 || fd == 255)) || eval "exec $fd>&-"
    done
    exec setsid nohup "$@" </dev/null >>"$log" 2>&1
  ) &
}

# write_oci_runtime FILE RUNC MISSING: installs the trimming runtime at FILE.
write_oci_runtime() {
  sed -e "s|@MISSING@|$3|" -e "s|@RUNC@|$2|" "$CLUSTER_DIR/oci-runtime.sh" >"$1.partial"
  chmod 0755 "$1.partial"
  mv "$1.partial" "$1"
}

# engine_pid: the process id of the engine that engine_up started, if it runs.
engine_pid() {
  local pid
  [[ -s $ENGINE_STATE/dockerd.pid ]] || return 1
  pid=$(<"$ENGINE_STATE/dockerd.pid")
  [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == dockerd*"--data-root $ENGINE_STATE/data"* ]] || return 1
  printf '%s\n' "$pid"
}

# engine_down: stops the engine if engine_up started it, no container of anyone
# is left running in it, and no other run is about to start one.
engine_down() {
  local pid running use
  pid=$(engine_pid) || return 0
  exec {use}>"$KOLOCATE_CACHE/lock/engine-use"
  if ! flock --exclusive --nonblock "$use"; then
    progress "the Docker engine (process $pid) goes on running: another run uses it"
    return 0
  fi
  running=$(timeout 20 docker ps --quiet | wc -l)
  if ((running > 0)); then
    progress "the Docker engine (process $pid) goes on running: $running containers are still in it"
    return 0
  fi
  kill "$pid"
  step engine "stopping the Docker engine" retry_until 60 process_gone "$pid"
}

process_gone() { ! kill -0 "$1" 2>/dev/null; }
