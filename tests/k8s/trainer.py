"""Reads epochs through a service until SIGTERM, and compares each with a local run: trainer.py SERVICE [OBJECTIVE].

With an objective, a training step takes as many seconds as the file STEP says, and an element takes long to produce.
"""

from __future__ import annotations

import pathlib
import signal
import sys
import time

import pecan
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

STEP = pathlib.Path("/tmp/step")


def numbers(elements: int, sleep_us: int) -> tf.data.Dataset:
    """The workers sleep, so that many of them run on few cores."""
    return tf.data.Dataset.range(elements).apply(testing.sleep(sleep_us)).map(lambda i: i * 7)


def main() -> int:
    """Returns 0 if each epoch was complete."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    service, *objective = sys.argv[1:]
    options: dict = dict(dispatcher_timeout_s=300)
    if objective:
        # Elements are so large that buffers hold few of them.
        elements, dataset = 400, numbers(400, 400_000).map(lambda i: tf.fill([64 << 10], tf.cast(i, tf.float32)))
        options |= dict(objective=objective[0], local_workers=0, streams=100, max_outstanding_bytes=1 << 20)
    else:
        elements, dataset = 800, numbers(800, 10_000)
    dataset = dataset.apply(pecan.distribute(service, **options))
    epoch = 0
    while not ended:
        started, got = time.monotonic(), []
        for element in dataset:
            got.append(int(element.numpy().flat[0]))
            if objective:
                time.sleep(float(STEP.read_text()))
                print(f"element {len(got)} of epoch {epoch}", flush=True)
        if sorted(got) != [7 * i for i in range(elements)]:
            print(f"epoch {epoch} is wrong: {len(got)} elements, {len(set(got))} different ones", flush=True)
            return 1
        print(f"epoch {epoch} is complete after {time.monotonic() - started:.1f} s", flush=True)
        epoch += 1
    print("the trainer ends", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
