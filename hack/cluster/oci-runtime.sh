#!/bin/bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# An OCI runtime in front of runc for hosts whose capability bounding set lacks
# capabilities or that forbid raising limits: it takes out of each container's
# specification what this host cannot grant, then runs the real runc. Without
# it, `docker run --privileged` ends in "unable to apply caps: operation not
# permitted". Installed by engine.sh (host) and node-image.sh (node), only where
# something is missing; the line below is filled in by them.
set -euo pipefail

missing='@MISSING@'
runc='@RUNC@'

# trim FILE PREFIX: rewrites the process specification at PREFIX in FILE.
trim() {
  local trimmed
  trimmed=$(mktemp "$1.XXXXXX")
  jq -c --arg missing "$missing" "
    (\$missing | split(\" \")) as \$missing
    | $2 |= (
        (if .capabilities then .capabilities |= with_entries(.value |= ((. // []) - \$missing)) else . end)
        | (if (.oomScoreAdj // 0) < 0 then .oomScoreAdj = 0 else . end)
        | del(.rlimits)
      )" "$1" >"$trimmed"
  mv "$trimmed" "$1"
}

command='' bundle=$PWD process='' previous=''
for argument in "$@"; do
  case $previous in
    --bundle | -b) bundle=$argument ;;
    --process | -p) process=$argument ;;
  esac
  case $argument in
    --bundle=*) bundle=${argument#*=} ;;
    --process=*) process=${argument#*=} ;;
    create | run | exec) [[ -n $command ]] || command=$argument ;;
  esac
  previous=$argument
done

case $command in
  create | run) trim "$bundle/config.json" .process ;;
  exec) [[ -z $process ]] || trim "$process" . ;;
esac
exec "$runc" "$@"
