# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The parts of a cluster that are compiled from Go modules: which folder under
# hack/kube pins each, and how it is built. It is sourced by build.sh.
#
# The version of a part is the one its module pins: change it there with
# `go get`, and the next run builds just that part again. go.sum, checked by the
# go command, guards what is compiled.

# What describe_part sets is read by build.sh.
# shellcheck disable=SC2034
PART_NAMES=(
  etcd kube-apiserver kubectl helm kind
  kubelet kubeadm kube-controller-manager kube-scheduler kube-proxy
  containerd containerd-shim-runc-v2 ctr
  bridge ptp loopback host-local portmap
  coredns local-path-provisioner
)

# describe_part NAME: sets part_folder, part_package, part_pin (the Go module
# whose version names the part), part_tags, part_flags (for the linker) and
# part_seconds (a cold build on 2 cores, for the progress line).
describe_part() {
  part_tags='' part_flags='' part_seconds=10
  case $1 in
    etcd)
      part_folder=etcd part_package=go.etcd.io/etcd/server/v3 part_pin=$part_package part_seconds=30
      ;;
    kube-apiserver | kubectl | kubelet | kubeadm | kube-controller-manager | kube-scheduler | kube-proxy)
      part_folder=kubernetes part_package=k8s.io/kubernetes/cmd/$1 part_pin=k8s.io/kubernetes
      part_flags=$(kubernetes_flags)
      kubernetes_seconds "$1"
      ;;
    helm)
      part_folder=helm part_package=helm.sh/helm/v4/cmd/helm part_pin=helm.sh/helm/v4 part_seconds=140
      part_flags="-X helm.sh/helm/v4/internal/version.version=$(pinned helm helm.sh/helm/v4)"
      ;;
    kind)
      part_folder=kind part_package=sigs.k8s.io/kind part_pin=$part_package part_seconds=20
      ;;
    containerd | containerd-shim-runc-v2 | ctr)
      part_folder=containerd part_pin=github.com/containerd/containerd/v2 part_package=$part_pin/cmd/$1 part_seconds=30
      # The file systems left out need C libraries and are not used in a node.
      part_tags=no_btrfs,no_zfs,no_devmapper,no_aufs
      part_flags="-X $part_pin/version.Version=$(pinned containerd "$part_pin")"
      ;;
    bridge | ptp | loopback | host-local | portmap)
      part_folder=cni part_pin=github.com/containernetworking/plugins
      part_package=$part_pin/plugins/$(cni_kind "$1")/$1
      ;;
    coredns)
      # Built from hack/kube/coredns/main.go, which links only the plugins a cluster uses.
      part_folder=coredns part_package=. part_pin=github.com/coredns/coredns part_seconds=30
      ;;
    local-path-provisioner)
      part_folder=localpath part_package=github.com/rancher/local-path-provisioner part_pin=$part_package part_seconds=20
      ;;
    *)
      die "no part is named $1; the parts are: ${PART_NAMES[*]}"
      ;;
  esac
}

# pinned FOLDER MODULE: the version of MODULE that FOLDER's go.mod requires.
pinned() {
  local version
  version=$(awk -v module="$2" '$1 == "require" { $1 = ""; $0 = $0 } $1 == module && $2 ~ /^v/ { print $2; exit }' "$KUBE_DIR/$1/go.mod")
  [[ -n $version ]] || die "$KUBE_DIR/$1/go.mod does not require $2; add it there with 'go get -tool'"
  printf '%s\n' "$version"
}

# kubernetes_flags: kubeadm refuses binaries that do not say their version.
kubernetes_flags() {
  local version major minor package flags=''
  version=$(pinned kubernetes k8s.io/kubernetes)
  IFS=. read -r major minor _ <<<"${version#v}"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
  done
  printf '%s\n' "${flags# }"
}

# kubernetes_seconds NAME: the first of these compiles what all share.
kubernetes_seconds() {
  case $1 in
    kube-apiserver | kubelet) part_seconds=200 ;;
    kube-controller-manager) part_seconds=60 ;;
    *) part_seconds=20 ;;
  esac
}

cni_kind() {
  case $1 in
    host-local) printf 'ipam\n' ;;
    portmap) printf 'meta\n' ;;
    *) printf 'main\n' ;;
  esac
}
