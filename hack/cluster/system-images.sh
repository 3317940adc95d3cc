# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The container images that kubeadm and kind expect in a node, made from built
# parts. It is sourced by node-image.sh, after lib.sh and image.sh.

PATH_CHANGE='ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

# system_images BASE KIND_SOURCE: makes the images and prints their names. BASE
# is the image of the root file system, KIND_SOURCE the source of kind.
system_images() {
  local base=$1 kind_source=$2 name program
  PAUSE_IMAGE=''
  while read -r name; do
    program=$(basename "${name%:*}")
    case $program in
      pause) pause_image "$name" ;;
      coredns) scratch_image "$name" "$(part coredns)" 'ENTRYPOINT ["/usr/local/bin/coredns"]' ;;
      kube-proxy) based_image "$name" "$base" "$(part kube-proxy)" ;;
      *) scratch_image "$name" "$(part "$program")" ;;
    esac >&2
    printf '%s\n' "$name"
  done < <("$(part kubeadm)" config images list --kubernetes-version "$KUBERNETES_VERSION")
  storage_images "$base" "$kind_source"
  sandbox_image "$kind_source"
}

scratch_image() {
  local name=$1 program=$2 tree
  shift 2
  tree=$KOLOCATE_CACHE/node/image-tree
  rm -rf "$tree"
  mkdir "$tree"
  install -d -m 1777 "$tree/tmp"
  copy_program "$program" "$tree"
  pack_image "$tree" "$name" "$PATH_CHANGE" "$@"
  rm -rf "$tree"
}

# based_image NAME BASE PROGRAM: PROGRAM in /usr/local/bin on top of image BASE.
based_image() {
  local container
  container=$(docker create "$2" true)
  docker cp "$3" "$container:/usr/local/bin/$(basename "$3")"
  docker commit --change "$PATH_CHANGE" "$container" "$1"
  docker rm "$container"
}

pause_image() {
  local source program
  source=$(cd "$KUBE_DIR/kubernetes" && GOFLAGS='' GOWORK=off go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
  program=$KOLOCATE_CACHE/node/pause
  gcc -Os -Wall -static "-DVERSION=${1##*:}" -o "$program" "$source"
  scratch_image "$1" "$program" 'ENTRYPOINT ["/usr/local/bin/pause"]' 'USER 65535:65535'
  PAUSE_IMAGE=$1
}

# sandbox_image KIND_SOURCE: containerd's configuration in the node may name
# another tag of the pause image than kubeadm does.
sandbox_image() {
  local name
  name=$(sed -n 's/^ *sandbox_image = "\(.*\)"/\1/p' "$1/images/base/files/etc/containerd/config.toml")
  [[ -n $name && -n $PAUSE_IMAGE ]] || die "no sandbox_image in the containerd configuration of kind's source $1, or no pause image in kubeadm's list"
  docker tag "$PAUSE_IMAGE" "$name"
  printf '%s\n' "$name"
}

# storage_images BASE KIND_SOURCE: kind's storage manifest names one image with
# the provisioner and one with a shell; the base with the provisioner is both.
storage_images() {
  local name first=''
  while read -r name; do
    if [[ -z $first ]]; then
      based_image "$name" "$1" "$(part local-path-provisioner)" >&2
      first=$name
    else
      docker tag "$first" "$name"
    fi
    printf '%s\n' "$name"
  done < <(sed -n 's/^const storage[A-Za-z]*Image = "\(.*\)"/\1/p' "$2/pkg/build/nodeimage/const_storage.go")
  [[ -n $first ]] || die "no storage images in kind's source $2: its layout changed, see system-images.sh"
}

# storage_manifest KIND_SOURCE: kind's storage manifest, a Go string in its source.
storage_manifest() {
  awk '
    match($0, /^const storage[A-Za-z]*Image = /) { split($0, field, " "); value[field[2]] = substr(field[4], 2, length(field[4]) - 2); next }
    /^const defaultStorageManifest = `/ { inside = 1; next }
    inside && /^`/ { exit }
    inside {
      if (match($0, /` \+ [A-Za-z]+ \+ `/)) {
        name = substr($0, RSTART + 4, RLENGTH - 8)
        $0 = substr($0, 1, RSTART - 1) value[name] substr($0, RSTART + RLENGTH)
      }
      print
    }' "$1/pkg/build/nodeimage/const_storage.go"
}
