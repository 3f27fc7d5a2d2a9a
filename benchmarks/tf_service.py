"""One process of TensorFlow's data service: `tf_service.py dispatcher` or `tf_service.py worker HOST:PORT`.

It prints `listening on HOST:PORT` when it serves, and ends when its standard input closes.
"""

from __future__ import annotations

import sys

import tensorflow as tf

service = tf.data.experimental.service


def main() -> None:
    """Serves until standard input closes."""
    if sys.argv[1] == "dispatcher":
        server = service.DispatchServer(service.DispatcherConfig(port=0))
        print(f"listening on {server.target.split('://')[1]}", flush=True)
    else:
        server = service.WorkerServer(
            service.WorkerConfig(dispatcher_address=sys.argv[2], port=0, heartbeat_interval_ms=1000)
        )
        print("listening on localhost", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
