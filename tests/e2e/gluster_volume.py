"""A real GlusterFS volume in namespaces, made by the scripts of deploy/glusterfs: it needs no network, and nothing of it stays.

Its brick lies on a tmpfs, so no file comes from a disk: only the caches of the mounts can be cold.
It needs root and Debian's packages glusterfs-server and glusterfs-client.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import namespaces

ROOT = pathlib.Path(__file__).resolve().parents[2]
_BRICKS, _MOUNT = ROOT / "deploy/glusterfs/bricks.sh", ROOT / "deploy/glusterfs/mount.sh"
# Bricks refuse loopback addresses, so the loopback device gets another one.
_MADE = """
set -e
dir=$1 bricks=$2 mount=$3
shift 3
ip link set lo up
ip address add 10.78.0.1/16 dev lo
mkdir -p /var/lib/glusterd /var/log/glusterfs /var/run/gluster "$dir/log"
for state in /var/lib/glusterd /var/log/glusterfs /var/run/gluster "$dir"; do mount -t tmpfs none "$state"; done
glusterd --no-daemon -l "$dir/glusterd.log" &
for i in $(seq 100); do gluster --mode=script volume info >/dev/null 2>&1 && break; sleep 0.2; done
export FSTAB=$dir/fstab
for again in 1 2; do
  bash "$bricks" pecan-cache "$dir/brick" 10.78.0.1
  for worker in 1 2; do bash "$mount" 10.78.0.1:/pecan-cache "$dir/mount-$worker" pecan; done
done
[ "$(wc -l < "$FSTAB")" = 2 ]
"$@"
umount "$dir/mount-1" "$dir/mount-2"
"""


def missing() -> str:
    """Why no volume can be made here; empty if one can."""
    return namespaces.missing(("glusterd", "mount.glusterfs", "unshare", "ip"), "glusterfs-server glusterfs-client iproute2")


def mounts(directory: pathlib.Path) -> list[pathlib.Path]:
    """The directories for caches of two workers, each in a mount of its own. They exist only for the command of `around`."""
    return [directory / f"mount-{worker}" / "pecan" for worker in (1, 2)]


def around(directory: pathlib.Path, command: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """The command that makes a volume below a directory, runs a command there, and removes the volume."""
    return [*namespaces.COMMAND, "--net", "bash", "-c", _MADE, "volume", directory, _BRICKS, _MOUNT, *command]
