#!/usr/bin/env bash
# Makes a GlusterFS volume for pecan.cache() out of one directory (a brick) of each server:
#
#   sudo deploy/glusterfs/bricks.sh VOLUME BRICK SERVER...
#   sudo deploy/glusterfs/bricks.sh pecan-cache /bricks/pecan gluster-1 gluster-2 gluster-3
#
# Run it on the first server, after `apt-get install glusterfs-server` on all. The files are spread over the bricks without
# copies: losing a cache costs only time. It may be repeated, also with more servers.
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: bricks.sh VOLUME BRICK SERVER..." >&2; exit 1; }
volume=$1 brick=$2
shift 2

gluster() { command gluster --mode=script "$@"; }

for server in "${@:2}"; do
  gluster peer probe "$server"
done
bricks=("${@/%/:$brick}")
if ! gluster volume info "$volume" >/dev/null 2>&1; then
  # force: a brick may be on the system's disk. Give each brick a disk of its own where there is one.
  gluster volume create "$volume" "${bricks[@]}" force
else
  for one in "${bricks[@]}"; do
    gluster volume info "$volume" | grep -qF ": $one" || gluster volume add-brick "$volume" "$one" force
  done
fi
# A complete segment is renamed into its place. Clients must not remember that a file was absent (see mount.sh too).
gluster volume set "$volume" performance.nl-cache off
gluster volume set "$volume" network.ping-timeout 10
gluster volume info "$volume" | grep -q '^Status: Started' || gluster volume start "$volume"
gluster volume status "$volume"
