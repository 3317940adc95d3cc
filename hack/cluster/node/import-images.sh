#!/bin/bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs inside the container that becomes the node image: puts the archive of
# container images on standard input into containerd's store, so that a new
# cluster pulls nothing.
set -euo pipefail

containerd >/var/log/containerd-import.log 2>&1 &
daemon=$!
for ((attempt = 0; attempt < 120; attempt++)); do
  ! ctr --namespace k8s.io version >/dev/null 2>&1 || break
  sleep 0.5
done
ctr --namespace k8s.io images import --label io.cri-containerd.pinned=pinned --all-platforms --no-unpack --digests -
ctr --namespace k8s.io images list -q
kill "$daemon"
wait "$daemon" || true
rm -f /var/log/containerd-import.log
