"""A cache on a real GlusterFS volume: each worker has a mount of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import gluster_volume
import pytest

READ = """
import pathlib, sys, time
import pecan, tensorflow as tf
from pecan._src.client import session

mounts = [pathlib.Path(at) / "segments" for at in sys.argv[1:]]
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
parts = int(status["jobs"][-1]["plan"]["cache"]["parts"])
assert parts > 8 and len(names[0]) == parts and names[0] == names[1], (parts, names)
for worker in workers:
    worker.stop()
dispatcher.stop()
"""


def test_workers_share_a_cache_on_a_volume_of_the_scripts(tmp_path):
    if why := gluster_volume.missing():
        pytest.skip(why)
    command = gluster_volume.around(tmp_path, [sys.executable, "-c", textwrap.dedent(READ), *gluster_volume.mounts(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": str(gluster_volume.ROOT / "python")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
