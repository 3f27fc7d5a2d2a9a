"""The limits of the machine for every data plane: a plain TCP connection, and memcpy.

`raw.py send PORT COUNT BYTES` is the sending process.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time


def tcp_pair(count: int, size: int) -> dict[str, float]:
    """Receives `count` buffers of `size` bytes from another process over TCP loopback."""
    import meter
    import numpy as np

    buffers = [np.zeros(size, np.uint8) for _ in range(4)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sender = subprocess.Popen(
            [sys.executable, __file__, "send", str(port), str(count), str(size)], stdout=subprocess.PIPE
        )
        connection, _ = server.accept()
    own = meter.own_cpu_seconds()
    with connection:
        _receive(connection, memoryview(buffers[0]))
        started = time.perf_counter()
        for i in range(1, count):
            _receive(connection, memoryview(buffers[i % len(buffers)]))
        spent = time.perf_counter() - started
    own = meter.own_cpu_seconds() - own
    theirs = float(sender.communicate(timeout=60)[0])
    return {
        "GB/s": (count - 1) * size / spent / 1e9,
        "elements/s": (count - 1) / spent,
        "CPU s/GB": (own + theirs) / (count * size / 1e9),
    }


def _receive(connection: socket.socket, view: memoryview) -> None:
    got = 0
    while got < len(view):
        n = connection.recv_into(view[got:])
        if n == 0:
            raise ConnectionError("the sending process of the raw TCP pair closed the connection")
        got += n


def _send(port: int, count: int, size: int) -> None:
    # Random bytes: zeros that nobody has written share one page of the kernel, which stays in the L1 cache.
    buffer = random.Random(1).randbytes(size)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        used = time.process_time()
        for _ in range(count):
            connection.sendall(buffer)
        print(time.process_time() - used)


def memcpy(count: int, size: int) -> dict[str, float]:
    """Copies `count` buffers of `size` bytes within this process, in one thread."""
    import meter
    import numpy as np

    source, targets = np.ones(size, np.uint8), [np.zeros(size, np.uint8) for _ in range(4)]
    used, started = meter.own_cpu_seconds(), time.perf_counter()
    for i in range(count):
        np.copyto(targets[i % len(targets)], source)
    spent = time.perf_counter() - started
    return {
        "GB/s": count * size / spent / 1e9,
        "elements/s": count / spent,
        "CPU s/GB": (meter.own_cpu_seconds() - used) / (count * size / 1e9),
    }


if __name__ == "__main__":
    _send(*(int(word) for word in sys.argv[2:5]))
