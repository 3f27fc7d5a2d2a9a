"""The systems that are compared, each started as a user would start it, with its service in other processes."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import meter
import tensorflow as tf

_ROLE = pathlib.Path(__file__).with_name("tf_service.py")


class Service:
    """A running service: how to send a dataset through it, and which processes it consists of."""

    def __init__(self, apply: Callable[..., Callable[[tf.data.Dataset], tf.data.Dataset]], pids: set[int]) -> None:
        self._apply = apply
        self.pids = pids

    def through(self, dataset: tf.data.Dataset, **options: object) -> tf.data.Dataset:
        """The dataset as it comes out of the service."""
        return dataset.apply(self._apply(**options))

    def cpu_seconds(self) -> float:
        """CPU seconds of all the service's processes so far."""
        return meter.cpu_seconds(self.pids)


@contextlib.contextmanager
def tf_data_service(*, workers: int = 1, processing_mode: str = "parallel_epochs") -> Iterator[Service]:
    """TensorFlow's data service: a dispatcher process and `workers` worker processes, nothing compressed."""
    with contextlib.ExitStack() as stack:
        dispatcher, address = _role(stack, "dispatcher")
        pids = {dispatcher}
        for _ in range(workers):
            pids.add(_role(stack, "worker", address)[0])

        def apply(**options: object) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
            return tf.data.experimental.service.distribute(
                processing_mode=processing_mode, service=f"grpc://{address}", compression=None, **options
            )

        yield Service(apply, pids)


def _role(stack: contextlib.ExitStack, *words: str) -> tuple[int, str]:
    """Starts one process of TensorFlow's service and gives its id and address."""
    process = subprocess.Popen(
        [sys.executable, str(_ROLE), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.wait, timeout=60)
    stack.callback(process.kill)
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        raise RuntimeError(f"the {words[0]} of TensorFlow's data service did not start")
    return process.pid, line.split()[-1]


@contextlib.contextmanager
def pecan_service(
    *, workers: int = 1, window_bytes: int | None = None, work_dir: str | None = None
) -> Iterator[Service]:
    """Pecan: a dispatcher process and `workers` worker processes, each with `window_bytes` for ready elements.

    With a `work_dir` the dispatcher makes durable what it decides, else it keeps it in memory.
    """
    import pecan

    before = meter.descendants()
    # The cluster puts its own dispatcher in.
    config = pecan.WorkerConfig("localhost:1", window_bytes=window_bytes)
    dispatcher = pecan.DispatcherConfig(work_dir=work_dir)
    with pecan.LocalCluster(workers=workers, dispatcher=dispatcher, worker=config) as cluster:
        yield Service(lambda **options: pecan.distribute(cluster.target, **options), meter.descendants() - before)
