#!/bin/bash
# Mount a node's optional volumes: its local disks as one, and the cache of the storage mode efs-cache.
#
#   volumes.sh disks FOLDER                          local disks that the image has not mounted itself
#   volumes.sh cache FILE_SYSTEM:ACCESS_POINT FOLDER BOUND ...     BOUND: the command that runs the rest for some seconds
#
# bootstrap.sh runs it as root. It always exits 0: a failure is printed and written to FOLDER.failed, and the node continues.
set -uo pipefail

failed() { # folder, what
  echo "volumes: $2" >&2
  echo "$2" > "$1.failed"
  exit 0
}

# The device's model tells instance store from EBS: https://docs.aws.amazon.com/ebs/latest/userguide/nvme-ebs-volumes.html
# (looked up 2026-11-22). Disks that are mounted or in use (a partition, LVM, RAID) are left alone.
local_disks() { # sysfs
  local disk name
  for disk in "$1"/block/nvme*n1; do
    name=${disk##*/}
    [[ -r $disk/device/model && $(< "$disk/device/model") == "Amazon EC2 NVMe Instance Storage"* ]] || continue
    compgen -G "$disk/$name"p'*' > /dev/null && continue
    compgen -G "$disk/holders/*" > /dev/null && continue
    findmnt --source "/dev/$name" > /dev/null && continue
    echo "/dev/$name"
  done
}

# RAID 0: nothing on these disks outlives the instance, and a lost disk is a lost node. AWS encrypts them with a key per boot.
disks() { # folder, sysfs where a test has its own
  local folder=$1 found device
  mapfile -t found < <(local_disks "${2:-/sys}")
  ((${#found[@]})) || { echo "volumes: no local disk to mount" >&2; return; }
  device=${found[0]}
  if ((${#found[@]} > 1)); then
    device=/dev/md/mayfly
    mdadm --create "$device" --run --level=0 --raid-devices="${#found[@]}" "${found[@]}" \
      || failed "$folder" "the local disks ${found[*]} could not be joined by mdadm"
  fi
  mkfs.ext4 -q -E nodiscard,lazy_itable_init=1 "$device" || failed "$folder" "$device could not be formatted"
  mkdir -p "$folder"
  mount -o noatime "$device" "$folder" || failed "$folder" "$device could not be mounted"
  echo "volumes: ${#found[@]} local disks at $folder" >&2
}

# mount.efs speaks TLS to EFS and signs in with the instance's role. An image without it gets it from Amazon Linux's repositories,
# which are in S3, or by efs_client.py, with the image's own Python; both come over HTTPS, the only way out. `soft`: a file system
# that does not answer is an error instead of a node that hangs; the agent's hash checks find partial reads.
cache() { # file system:access point, folder, command that bounds another one
  local folder=$2 bounded=("${@:3}") why client tunnel=
  client=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/efs_client.py
  if ! type -P mount.efs > /dev/null; then
    if type -P dnf > /dev/null; then why=$("${bounded[@]}" dnf --quiet --assumeyes install amazon-efs-utils 2>&1)
    else why=$("${bounded[@]}" /usr/bin/python3 -I "$client" install 2>&1) && tunnel=,stunnel; fi
  fi
  type -P mount.efs > /dev/null || failed "$folder" "the image has no mount.efs (amazon-efs-utils): ${why:0:300}"
  mkdir -p "$folder"
  why=$("${bounded[@]}" mount -t efs -o "tls,iam,accesspoint=${1#*:},soft,timeo=100$tunnel" "${1%%:*}" "$folder" 2>&1) \
    || failed "$folder" "EFS ${1%%:*} could not be mounted: ${why:0:300}"
  echo "volumes: the cache is at $folder" >&2
}

case $1 in
  disks) disks "${@:2}" ;;
  cache) cache "${@:2}" ;;
esac
exit 0
