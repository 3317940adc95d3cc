#!/usr/bin/env bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds kind's node image from Go modules and Debian packages alone, for hosts
# that reach no image registry, and prints its name. README.md tells why each
# step is there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KUBE_DIR=$here/../kube
# shellcheck source=hack/cluster/lib.sh
source "$here/lib.sh"
# shellcheck source=hack/kube/parts.sh
source "$KUBE_DIR/parts.sh"
# shellcheck source=hack/cluster/engine.sh
source "$here/engine.sh"
# shellcheck source=hack/cluster/rootfs.sh
source "$here/rootfs.sh"
# shellcheck source=hack/cluster/image.sh
source "$here/image.sh"
# shellcheck source=hack/cluster/system-images.sh
source "$here/system-images.sh"

NODE_PROGRAMS=(kubelet kubeadm kubectl containerd containerd-shim-runc-v2 ctr)
NETWORK_PLUGINS=(bridge ptp loopback host-local portmap)
IMAGE_PROGRAMS=(etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy coredns local-path-provisioner)

usage() {
  cat <<'USAGE'
usage: hack/cluster/node-image.sh [--name]

Builds the node image unless it exists, and prints its name. With --name, only
prints the name that it has or would have.
USAGE
}

# part NAME: the path of a part that main has made sure is built.
part() { "$KUBE_DIR/build.sh" "$1"; }

# image_name changes with everything the image is made from.
image_name() {
  local key
  key=$({
    cat "$KUBE_DIR"/{kubernetes,etcd,containerd,cni,coredns,kind,localpath}/go.{mod,sum}
    cat "$here"/{node-image,system-images,image,rootfs,oci-runtime}.sh "$here"/node/*
    missing_capabilities
  } | digest)
  printf 'kolocate-node:%s-%s\n' "$KUBERNETES_VERSION" "$key"
}

# lay_out TREE KIND_SOURCE: everything that is copied onto the root file system.
lay_out() {
  local tree=$1 kind_source=$2 name missing
  mkdir -p "$tree/etc/cni/net.d" "$tree/kind/manifests" "$tree/opt/cni/bin" "$tree/usr/local/bin" "$tree/usr/local/sbin" "$tree/usr/bin"
  cp -r "$kind_source/images/base/files/." "$tree/"
  chmod -R u+w "$tree"
  find "$tree" -type d -exec chmod 0755 {} +
  find "$tree" -type f -exec chmod 0644 {} +
  chmod 0755 "$tree"/kind/bin/* "$tree"/usr/local/bin/*
  for name in kubelet kubeadm kubectl; do install -m 0755 "$(part "$name")" "$tree/usr/bin/"; done
  for name in containerd containerd-shim-runc-v2 ctr; do install -m 0755 "$(part "$name")" "$tree/usr/local/bin/"; done
  for name in "${NETWORK_PLUGINS[@]}"; do install -m 0755 "$(part "$name")" "$tree/opt/cni/bin/"; done
  install -m 0755 "$here/node/crictl" "$here/node/setup.sh" "$here/node/import-images.sh" "$tree/usr/local/bin/"
  install -m 0644 "$here/node/10-bridge.conflist" "$tree/etc/cni/net.d/"
  install -m 0644 "$here/node/default-cni.yaml" "$tree/kind/manifests/"
  storage_manifest "$kind_source" >"$tree/kind/manifests/default-storage.yaml"
  printf '%s' "$KUBERNETES_VERSION" >"$tree/kind/version"
  missing=$(missing_capabilities | paste -sd ' ')
  if [[ -n $missing ]]; then
    write_oci_runtime "$tree/usr/local/sbin/runc" /usr/sbin/runc "$missing"
  fi
}

# assemble NAME: the work itself, in a container that is committed at the end.
assemble() {
  local name=$1 kind_source base container=kolocate-node-build tree=$KOLOCATE_CACHE/node/tree restricted=false images
  kind_source=$(cd "$KUBE_DIR/kind" && GOFLAGS='' GOWORK=off go list -m -f '{{.Dir}}' sigs.k8s.io/kind)
  base=kolocate-node-base:$(rootfs_key)
  image_exists "$base" || docker import "$ROOTFS_TAR" "$base"
  docker rm --force "$container" 2>/dev/null || true
  rm -rf "$tree"
  mkdir "$tree"
  lay_out "$tree" "$kind_source"
  [[ -z $(missing_capabilities) ]] || restricted=true

  # systemd stops on this signal; a commit keeps it.
  docker run --detach --name "$container" --stop-signal SIGRTMIN+3 --security-opt seccomp=unconfined --network none "$base" sleep infinity
  tar -C "$tree" --owner=0 --group=0 -c . | docker cp - "$container:/"
  docker exec --env "RESTRICTED=$restricted" "$container" /usr/local/bin/setup.sh
  system_images "$base" "$kind_source" >"$KOLOCATE_CACHE/node/images"
  mapfile -t images <"$KOLOCATE_CACHE/node/images"
  docker save "${images[@]}" | docker exec --interactive "$container" /usr/local/bin/import-images.sh
  docker exec "$container" rm /usr/local/bin/setup.sh /usr/local/bin/import-images.sh
  docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' --change 'CMD []' \
    --change 'ENV container=docker' "$container" "$name"
  docker rm --force "$container"
  # The node image holds these already; kept here too they would only take room.
  docker rmi "${images[@]}"
  rm -rf "$tree"
}

main() {
  local name
  KUBERNETES_VERSION=$(pinned kubernetes k8s.io/kubernetes)
  name=$(image_name)
  case ${1:-} in
    '') ;;
    --name)
      printf '%s\n' "$name"
      return
      ;;
    *)
      usage
      [[ $1 == -h || $1 == --help ]] || exit 2
      return
      ;;
  esac
  engine_up
  if ! image_exists "$name"; then
    locked node-image
    if ! image_exists "$name"; then
      mkdir -p "$KOLOCATE_CACHE/node"
      need_packages gcc libc6-dev jq
      ROOTFS_TAR=$(rootfs_tar)
      "$KUBE_DIR/build.sh" "${NODE_PROGRAMS[@]}" "${NETWORK_PLUGINS[@]}" "${IMAGE_PROGRAMS[@]}" >/dev/null
      step node-image "putting the node image together (about 60 s)" assemble "$name"
    fi
    unlocked node-image
  fi
  printf '%s\n' "$name"
}

main "$@"
