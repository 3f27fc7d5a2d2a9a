#!/usr/bin/env bash
# Mounts the volume on a node of the workers or on a trainer, and makes the directory for one service in it:
#
#   sudo deploy/glusterfs/mount.sh SERVER:/VOLUME MOUNTPOINT [SERVICE]
#   sudo deploy/glusterfs/mount.sh gluster-1:/pecan-cache /mnt/pecan-cache pecan
#
# It needs `apt-get install glusterfs-client`. The mount is in /etc/fstab, so it returns after a restart. Set FSTAB to
# another file to leave /etc/fstab alone. It may be repeated.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: mount.sh SERVER:/VOLUME MOUNTPOINT [SERVICE]" >&2; exit 1; }
volume=$1 mountpoint=$2 service=${3:-pecan} fstab=${FSTAB:-/etc/fstab}

mkdir -p "$mountpoint"
line="$volume $mountpoint glusterfs defaults,_netdev,negative-timeout=0 0 0"
grep -qF "$line" "$fstab" 2>/dev/null || echo "$line" >>"$fstab"
mountpoint -q "$mountpoint" || mount -t glusterfs -o negative-timeout=0 "$volume" "$mountpoint"
# The chart gives this directory to workers. It exists only in the volume, so a node without the mount starts no worker.
install -d -m 2770 -o 10001 -g 10001 "$mountpoint/$service"
echo "$mountpoint/$service is ready"
