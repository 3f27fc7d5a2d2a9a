"""A worker that receives SIGTERM while one of its steps cannot be interrupted."""

from __future__ import annotations

import os
import pathlib
import threading

import pecan
import tensorflow as tf
from cluster import Cluster, running_cluster, wait


def _opens_a_pipe(pid: int) -> bool:
    """Whether a thread of the process waits in the kernel for the other end of a pipe."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return any("wait_for_partner" in (task / "wchan").read_text() for task in tasks)


def test_a_worker_exits_although_a_step_cannot_be_interrupted(tmp_path):
    """The worker hands its streams over, logs the reason, and exits with code 0. Another worker computes the element."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    elements: list[bytes] = []
    with running_cluster(Cluster(tmp_path)) as cluster:
        worker = cluster.add("--drain-timeout", "200ms")
        dataset = tf.data.Dataset.from_tensor_slices([str(gate)]).map(tf.io.read_file)
        iterator = iter(dataset.apply(pecan.distribute(cluster.target)))
        # A daemon, because its call ends only when the test opens the gate.
        trainer = threading.Thread(target=lambda it: elements.extend(element.numpy() for element in it), args=(iterator,), daemon=True)
        trainer.start()
        wait(lambda: _opens_a_pipe(worker.pid), "the step waits for the other end of the pipe")
        assert worker.terminate() == 0
        assert "a TensorFlow operation does not end" in worker.log_tail()
        assert cluster.states() == []
        gate.unlink()
        gate.write_text("open")
        cluster.add()
        trainer.join(60)
        assert elements == [b"open"]
        del iterator, dataset
