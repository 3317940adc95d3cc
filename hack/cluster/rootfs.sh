# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The Debian root file system under the node image and under the images that
# need a shell or iptables. It is sourced by node-image.sh, after lib.sh.

ROOTFS_SUITE=bookworm
ROOTFS_PACKAGES=(
  # to boot
  systemd systemd-sysv dbus
  # for Kubernetes' networking and volumes
  conntrack iptables nftables iproute2 ethtool util-linux mount kmod e2fsprogs
  # for containerd
  runc libseccomp2 pigz
  # for kind's own scripts
  bash ca-certificates curl jq procps
)

# rootfs_key names the file system by what it is made from.
rootfs_key() { printf '%s %s\n' "$ROOTFS_SUITE" "${ROOTFS_PACKAGES[*]}" | digest; }

# rootfs_tar prints the path of the packed file system and builds it if missing.
rootfs_tar() {
  local target
  target=$KOLOCATE_CACHE/node/rootfs-$(rootfs_key).tar
  if [[ ! -s $target ]]; then
    ((EUID == 0)) || die "building the Debian root file system of the node image needs root: run this as root once, later runs use $target"
    need_packages debootstrap
    step rootfs "building the Debian root file system (about 80 s)" build_rootfs "$target"
  fi
  printf '%s\n' "$target"
}

# build_rootfs TARGET: debootstrap checks every package against the archive's
# signature. A mirror comes from KOLOCATE_DEBIAN_MIRROR or, on Debian, from
# apt's own sources; else debootstrap uses its default.
build_rootfs() {
  local target=$1 tree arguments mirror
  mkdir -p "$(dirname "$target")"
  tree=$(dirname "$target")/rootfs.partial
  rm -rf "$tree"
  mirror=${KOLOCATE_DEBIAN_MIRROR:-$(apt_mirror)}
  arguments=(--variant=minbase "--include=$(IFS=,; printf '%s' "${ROOTFS_PACKAGES[*]}")" "$ROOTFS_SUITE" "$tree")
  [[ -z $mirror ]] || arguments+=("$mirror")
  debootstrap "${arguments[@]}"
  rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,man,locale}/* "$tree"/var/log/*
  tar -C "$tree" --sort=name --numeric-owner --exclude='./dev/*' -cf "$target.partial" .
  mv "$target.partial" "$target"
  rm -rf "$tree"
}

# apt_mirror: where this machine's apt gets the same suite from, if it does.
apt_mirror() {
  # shellcheck disable=SC2016 # these are apt's own fields
  apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v suite="$ROOTFS_SUITE" '$1 == suite && $2 == "main" { print $3; exit }'
}
