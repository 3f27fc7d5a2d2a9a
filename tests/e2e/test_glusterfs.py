"""A cache on a GlusterFS volume that the scripts of deploy/glusterfs make: each worker has a mount of its own.

The volume is in namespaces, so that it neither needs a network nor stays on this machine. It needs root and Debian's packages
glusterfs-server and glusterfs-client.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BRICKS, MOUNT = ROOT / "deploy/glusterfs/bricks.sh", ROOT / "deploy/glusterfs/mount.sh"
# Bricks refuse loopback addresses, so the loopback device gets another one.
VOLUME = """
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
READ = """
import pathlib, sys, time
import pecan, tensorflow as tf
from pecan._src.client import session

mounts = [pathlib.Path(sys.argv[1]) / f"mount-{worker}" / "pecan" / "segments" for worker in (1, 2)]
dispatcher = pecan.DispatchServer()
workers = [pecan.WorkerServer(pecan.WorkerConfig(dispatcher.target, cache_dir=at)) for at in mounts]
dataset = tf.data.Dataset.range(400).map(lambda i: 3 * i).apply(pecan.cache()).batch(8)
dataset = dataset.apply(pecan.distribute(dispatcher.target, streams=8))
wanted = [3 * i for i in range(400)]
for epoch in range(3):
    got = sorted(int(i) for batch in dataset for i in batch)
    assert got == wanted, (epoch, len(got))
deadline = time.monotonic() + 60
while True:
    # Workers report what they read with their next heartbeats.
    status = session.connect(dispatcher.target, 10).status()
    metrics = [worker.get("cache", {}) for worker in status["workers"]]
    if sum(int(m.get("bytes_read", 0)) for m in metrics) >= 2 * 400 * 8:
        break
    assert time.monotonic() < deadline, metrics
    time.sleep(0.2)
assert status["jobs"][-1]["cache"]["state"] == "used", status["jobs"][-1]["cache"]
assert sum(int(m.get("segments_invalid", 0)) + int(m.get("writes_dropped", 0)) for m in metrics) == 0, metrics
names = [sorted(path.name for path in at.glob("*.seg")) for at in mounts]
assert len(names[0]) == 8 and names[0] == names[1], names
for worker in workers:
    worker.stop()
dispatcher.stop()
"""


def test_workers_share_a_cache_on_a_volume_of_the_scripts(tmp_path):
    for program in ("glusterd", "mount.glusterfs", "unshare", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: apt-get install glusterfs-server glusterfs-client iproute2")
    if os.getuid() != 0:
        pytest.skip("only root may mount")
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    command = ["bash", "-c", VOLUME, "volume", tmp_path, BRICKS, MOUNT, sys.executable, "-c", textwrap.dedent(READ), tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([*namespaces, *command], capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
