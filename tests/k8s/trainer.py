"""Reads epochs through a service until SIGTERM, and compares each with a local run: trainer.py SERVICE."""

from __future__ import annotations

import signal
import sys
import time

import pecan
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

ELEMENTS, SLEEP_US = 800, 10_000


def main() -> int:
    """Returns 0 if each epoch was complete."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    # The workers sleep, so that many of them run on few cores.
    dataset = tf.data.Dataset.range(ELEMENTS).apply(testing.sleep(SLEEP_US)).map(lambda i: i * 7)
    dataset = dataset.apply(pecan.distribute(sys.argv[1], dispatcher_timeout_s=300))
    epoch = 0
    while not ended:
        started = time.monotonic()
        got = sorted(int(element) for element in dataset)
        if got != [7 * i for i in range(ELEMENTS)]:
            print(f"epoch {epoch} is wrong: {len(got)} elements, {len(set(got))} different ones", flush=True)
            return 1
        print(f"epoch {epoch} is complete after {time.monotonic() - started:.1f} s", flush=True)
        epoch += 1
    print("the trainer ends", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
