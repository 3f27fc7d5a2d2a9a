"""Elements of 1 byte to 1 GiB arrive unchanged. An element above 2 GiB is an error at its position.

The tests are skipped if memory is short, because worker and trainer hold several copies of such an element.
"""

from __future__ import annotations

import pytest
from script import Script
from soak import SOAK, cases

GIB = 1 << 30
# The element in the worker, its copy in flight, the received element, and the value that the test compares with.
ROOM = 8 * GIB

MAKE = """
import zlib
import numpy as np
cluster = pecan.LocalCluster(workers=1)
def numbers(i):
    return tf.reshape(tf.tile(tf.cast(tf.range(256), tf.uint8) + tf.cast(i, tf.uint8), [2**22]), [2**10, 2**20])
def text(i):
    whole = tf.strings.join([tf.strings.format("{}", i), tf.strings.reduce_join(tf.fill([2**16], "abcdefghijklmnop"))])
    for _ in range(10):
        whole = tf.strings.join([whole, whole])
    return tf.strings.substr(whole, 0, 2**30)
def shared():
    for line in open("/proc/self/maps"):
        if "memfd:pecan-slot" in line:
            begin, end = (int(at, 16) for at in line.split()[0].split("-"))
            yield end - begin
def check_numbers(i, element):
    assert element.shape == (2**10, 2**20), element.shape
    piece = np.tile(np.arange(256).astype(np.uint8) + np.uint8(i), 2**12)
    assert all(np.array_equal(row, piece) for row in element.numpy()), i
def check_text(i, element):
    got = element.numpy()
    assert len(got) == 2**30, len(got)
    piece = b"%d" % i + b"abcdefghijklmnop" * 2**16
    for at in range(0, 2**30, len(piece)):
        assert got[at:at + len(piece)] == piece[:2**30 - at], at
"""


def _available() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


@pytest.fixture(autouse=True)
def room():
    if _available() < ROOM:
        pytest.skip(f"{_available() / GIB:.1f} GiB of memory are available, this needs {ROOM / GIB:.0f}")


@pytest.mark.parametrize(
    "kind, protocol, compression",
    # Without soak each kind, each protocol and the compression runs once.
    cases(
        [("numbers", "shm", None), ("text", "shm", None), ("numbers", "tcp", None), ("text", "tcp", None), ("numbers", "tcp", "snappy")],
        soak=[("numbers", "shm", None), ("numbers", "tcp", None), ("text", "tcp", None)],
    ),
)
def test_elements_of_one_gibibyte_arrive_unchanged(kind, protocol, compression):
    # Without soak, text has one element, because TensorFlow takes long to make it.
    elements = 2 if kind == "numbers" or SOAK else 1
    with Script(
        MAKE
        + f"""
dataset = D.range({elements}).map({kind})
ours = dataset.apply(pecan.distribute(cluster.target, deterministic=True, data_transfer_protocol={protocol!r},
                                      compression={compression!r}))
count = 0
for element in ours:
    check_{kind}(count, element)
    slots = [size for size in shared() if size >= 2**30]
    assert bool(slots) == ({protocol!r} == "shm"), slots
    count += 1
    del element
assert count == {elements}, count
say("right")
"""
    ) as script:
        assert script.line() == "right"
        assert script.rest()[0] == 0


# The worker refuses such an element before it is sent by either protocol.
@pytest.mark.parametrize("protocol", cases(["shm", "tcp"], soak=["shm"]))
def test_an_element_above_two_gibibytes_is_an_error_at_its_position(protocol):
    with Script(
        MAKE
        + f"""
dataset = D.range(3).map(lambda i: tf.fill([tf.where(i == 1, 2**31 + 1, 1)], tf.cast(i, tf.uint8)))
ours = dataset.apply(pecan.distribute(cluster.target, deterministic=True, data_transfer_protocol={protocol!r}))
iterator = iter(ours)
assert next(iterator).numpy().tolist() == [0]
try:
    next(iterator)
except tf.errors.ResourceExhaustedError as error:
    assert "ELEMENT_TOO_LARGE" in str(error) and str(2**31 + 1) in str(error) and str(2**31) in str(error), error
    say("refused")
assert next(iterator).numpy().tolist() == [2]
assert next(iterator, None) is None
"""
    ) as script:
        assert script.line() == "refused"
        code, _, err = script.rest()
        assert code == 0, err
