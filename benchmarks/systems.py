"""The services that are compared. Each runs in processes of its own, started as a user would start it."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import meter
import tensorflow as tf

# Names of contestants.
LOCAL, STOCK, PECAN = "local tf.data", "tf.data service", "pecan"

_ROLE = pathlib.Path(__file__).with_name("tf_service.py")


class Service:
    """A running service.

    Attributes:
        pids: Process ids of its dispatcher and workers.
        target: Address of the dispatcher, as its own client expects it.
    """

    def __init__(
        self, apply: Callable[..., Callable[[tf.data.Dataset], tf.data.Dataset]], pids: set[int], target: str
    ) -> None:
        self._apply = apply
        self.pids = pids
        self.target = target

    def through(self, dataset: tf.data.Dataset, **options: object) -> tf.data.Dataset:
        """Returns the dataset that reads `dataset` through the service."""
        return dataset.apply(self._apply(**options))

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds that all processes of the service have used."""
        return meter.cpu_seconds(self.pids)


@contextlib.contextmanager
def tf_data_service(*, workers: int = 1, processing_mode: str = "parallel_epochs") -> Iterator[Service]:
    """Runs TensorFlow's data service without compression: one dispatcher process and `workers` worker processes."""
    with contextlib.ExitStack() as stack:
        dispatcher, address = _role(stack, "dispatcher")
        pids = {dispatcher}
        for _ in range(workers):
            pids.add(_role(stack, "worker", address)[0])

        def apply(**options: object) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
            return tf.data.experimental.service.distribute(
                processing_mode=processing_mode, service=f"grpc://{address}", compression=None, **options
            )

        yield Service(apply, pids, f"grpc://{address}")


def _role(stack: contextlib.ExitStack, *words: str) -> tuple[int, str]:
    """Starts one process of TensorFlow's data service. Returns its id and address."""
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
    *, workers: int = 1, window_bytes: int | None = None, max_streams: int | None = None, work_dir: str | None = None
) -> Iterator[Service]:
    """Runs Pecan: one dispatcher process and `workers` worker processes.

    Args:
        workers: Number of workers.
        window_bytes: Bytes of ready elements that each worker buffers; None for the default.
        max_streams: Streams that each worker runs at once; None for the default.
        work_dir: Directory for the dispatcher's state; None keeps the state in memory.
    """
    import pecan

    before = meter.descendants()
    # The cluster replaces the address of the dispatcher.
    config = pecan.WorkerConfig("localhost:1", window_bytes=window_bytes, max_streams=max_streams)
    dispatcher = pecan.DispatcherConfig(work_dir=work_dir)
    with pecan.LocalCluster(workers=workers, dispatcher=dispatcher, worker=config) as cluster:
        pids = meter.descendants() - before
        yield Service(lambda **options: pecan.distribute(cluster.target, **options), pids, cluster.target)
