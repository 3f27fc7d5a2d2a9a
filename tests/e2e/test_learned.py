"""The second run of a script starts with what the first has learned."""

from __future__ import annotations

import pathlib

import pytest
from pecan._src import home
from script import Script

# An expensive step on images, and a later step that drops most of its result. With the argument "adopt", the script reads until
# the order is adopted; it leaves an epoch when the order has reached another stage. With another argument it reads one element.
RUN = """
import logging
logging.basicConfig()
logging.getLogger("pecan").setLevel(logging.DEBUG)
from pecan._src.client import session
def image(i):
    return i, tf.reshape(tf.range(96 * 96 * 3, dtype=tf.float32), [96, 96, 3]) + tf.cast(i, tf.float32)
def expensive(i, x):
    for _ in range(96):
        x = tf.sqrt(x * x + 1.0)
    return i, x
def cropped(i, x):
    return i, x[:8, :8]
local = D.range(20_000).map(image).map(expensive).map(cropped)
dataset = local.apply(pecan.distribute(order="auto", order_tolerance="exact", streams=16))
def job():
    return session.connect(private_cluster.cluster().target, 10).status()["jobs"][0]
def stage():
    return job()["order"]["state"]
i, x = next(iter(dataset))
same = bool(tf.reduce_all(x == next(iter(local.skip(int(i))))[1]))
epoch = job()["epochs"][0]
say(stage(), epoch.get("ordered", False) and not epoch.get("ordered_streams"), same)
while sys.argv[1] == "adopt" and stage() in ("measuring", "proposed", "piloted"):
    begun = stage()
    for n, _ in enumerate(dataset):
        if n % 50 == 0 and stage() not in (begun, "proposed"):
            break
say(stage())
"""
# What the script prints of its first element in the registered order. On a slow host an order is proposed by then.
UNKNOWN = ("measuring False True", "proposed False True")


def _run(until: str, log: str | None = None) -> tuple[str, str]:
    """Runs the script in a process with a private cluster. Returns the lines that it prints at its begin and at its end.

    The words of `log` come once in its log.
    """
    with Script(RUN, until) as script:
        lines = script.line(), script.line()
        code, _, err = script.rest(60)
        assert code == 0, err
        assert log is None or err.count(log) == 1, err
    return lines


def test_the_second_run_of_a_script_starts_with_the_order_that_the_first_has_adopted(tmp_path, monkeypatch):
    monkeypatch.setenv("PECAN_HOME", str(tmp_path))
    monkeypatch.setenv("PECAN_LEARN", "1")
    first, last = _run("adopt")
    assert first in UNKNOWN and last == "adopted"
    (kept,) = (tmp_path / "learned").iterdir()
    # The first element comes in the new order, so nothing was tried before.
    assert _run("look") == ("adopted True True", "adopted")
    monkeypatch.setenv("PECAN_LEARN", "0")
    before = kept.read_bytes()
    assert _run("look")[0] in UNKNOWN
    assert kept.read_bytes() == before
    # A damaged file costs a line in the log, and the first run's work.
    monkeypatch.setenv("PECAN_LEARN", "1")
    kept.write_bytes(before[:-1])
    assert _run("look", "what was learned from earlier jobs about a dataset is not used")[0] in UNKNOWN


# A step that is worth a cache. The script prints whether the decision waited for measurements of the steps, and the decision.
CACHED = """
def expensive(i):
    start = tf.cast(i, tf.float32) + tf.zeros([256])
    step = lambda n, x: (n + 1, x * 1.0001 + 1.0)
    return tf.while_loop(lambda n, _: n < 2000, step, (0, start), parallel_iterations=1)[1]
local = D.range(400).map(expensive).batch(4, drop_remainder=True)
dataset = local.apply(pecan.distribute(cache="auto", order="off", streams=32))
elements = iter(dataset)
next(elements)
seen = [pecan.explain(dataset).cache.decision]
while not seen[-1].startswith("from epoch"):
    time.sleep(0.02)
    seen.append(pecan.explain(dataset).cache.decision)
say(any(each.startswith("waits: measured") for each in seen))
say(seen[-1])
for _ in elements:
    pass
"""


def _decide() -> tuple[str, str]:
    """Runs the script with a private cluster, and returns what it prints."""
    with Script(CACHED) as script:
        lines = script.line(), script.line()
        code, _, err = script.rest(60)
        assert code == 0, err
    return lines


def test_the_second_run_of_a_script_decides_on_a_cache_without_measuring_its_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("PECAN_HOME", str(tmp_path))
    monkeypatch.setenv("PECAN_LEARN", "1")
    for measures in ("True", "False"):
        measured, decision = _decide()
        assert measured == measures, decision
        assert decision.startswith("from epoch 0 on, the elements of "), decision
        assert len(list((tmp_path / "learned").iterdir())) == 1, "nothing is kept for the next run"


# One worker computes as many elements at once as there are processors, from 2 to 16. Elements and steps sleep, and a step is so short
# that the trainer needs two workers. A private cluster starts one on a host of six processors. The script prints the placement
# with which the search begins, and with an argument the one with which it ends, and whether it has ended. Another search may begin
# at any time, so each line is about one answer of the dispatcher.
PLACED = """
from pecan._src.client import session
from tensorflow.python.data.experimental.ops import testing
at_once = max(2, min(16, len(os.sched_getaffinity(0))))
os.sched_getaffinity = lambda pid: set(range(6))
local = D.range(100_000).apply(testing.sleep(400_000)).map(lambda n: tf.fill([1 << 20], tf.cast(n, tf.float32)))
dataset = local.apply(pecan.distribute(streams=64, max_outstanding_bytes=16 << 20))
iterator = iter(dataset)
next(iterator)
def placement():
    return session.connect(private_cluster.running().target, 10).status()["jobs"][0].get("placement") or {}
while not (placed := placement()):
    time.sleep(0.02)
say(placed["local"], placed["why"])
end = time.monotonic() + 90
while len(sys.argv) > 1 and not placed.get("converged") and time.monotonic() < end:
    next(iterator)
    time.sleep(0.4 / at_once / 1.6)
    placed = placement()
say(placed["local"], placed.get("converged", False), placed["state"], placed["why"])
"""


def _place(*arguments: str) -> tuple[str, str]:
    """Runs the script with a private cluster, and returns what it prints."""
    with Script(PLACED, *arguments) as script:
        lines = script.line(), script.line()
        code, _, err = script.rest(60)
        assert code == 0, err
    return lines


def test_the_second_run_of_a_script_starts_with_the_workers_that_the_first_has_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PECAN_HOME", str(tmp_path))
    monkeypatch.setenv("PECAN_LEARN", "1")
    first, last = _place("converge")
    assert first == "1 the search begins with one worker of each kind"
    found, converged, _ = last.split(maxsplit=2)
    # On a busy host, two workers may seem too few.
    assert converged == "True" and found in ("2", "3"), last
    assert _place()[0] == f"{found} the search begins with what an earlier job found"


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({"PECAN_HOME": "/data/pecan", "XDG_CACHE_HOME": "/caches"}, "/data/pecan/learned"),
        ({"PECAN_HOME": "pecan"}, str(pathlib.Path.cwd() / "pecan" / "learned")),
        ({"PECAN_HOME": "", "XDG_CACHE_HOME": "/caches"}, "/caches/pecan/learned"),
        ({"HOME": "/home/me"}, "/home/me/.cache/pecan/learned"),
    ],
)
def test_the_environment_decides_the_users_directory(variables, directory, monkeypatch):
    for name in ("PECAN_HOME", "XDG_CACHE_HOME", "PECAN_LEARN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert home.directory("learned") == directory
    assert home.learns()
