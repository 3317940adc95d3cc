#!/bin/bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs inside the container that becomes the node image, after the programs and
# files have been copied in: does what the Dockerfile of kind's base image does
# with them. RESTRICTED=true where the host forbids raising limits.
set -euo pipefail

remove_unwanted_services() {
  rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
  rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/*
  rm -f /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/basic.target.wants/*
  rm -f /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl*
  echo 'ReadKMsg=no' >>/etc/systemd/journald.conf
}

enable_services() {
  ln -sf /lib/systemd/systemd /sbin/init
  systemctl enable kubelet.service containerd.service undo-mount-hacks.service
  systemctl mask systemd-binfmt.service
  mkdir -p /etc/kubernetes/manifests
}

# allow_restricted_host leaves out what only a host with all capabilities grants.
allow_restricted_host() {
  sed -i -E '/^(Limit[A-Z]+|TasksMax|OOMScoreAdjust)=/d' /etc/systemd/system/containerd.service
  sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' /etc/containerd/config.toml
}

write_container_defaults() {
  ctr oci spec |
    jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
      >/etc/containerd/cri-base.json
}

remove_unwanted_services
enable_services
if [[ ${RESTRICTED:-false} == true ]]; then
  allow_restricted_host
fi
write_container_defaults
