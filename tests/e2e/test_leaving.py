"""Deleting an iterator takes at most 1 s and exiting Python at most 2 s, also while a reader waits or elements are in flight.

Most limits here are higher, because a busy machine is slow. They find hangs.
"""

from __future__ import annotations

import time

import pytest
from script import Script
from soak import SOAK, cases

DELETE_S, LEAVE_S = 4.0, 30.0

# In the first three states no element arrives. In the last state more elements are in flight than the reader dequeues.
STATES = {
    "no worker": ("cluster = pecan.LocalCluster(workers=0)", "D.range(10)"),
    "no element": ("cluster = pecan.LocalCluster(workers=1)", "D.range(10**12).filter(lambda i: i < 0)"),
    "only the closing stream left": (
        "cluster = pecan.LocalCluster(workers=1)",
        "D.range(10**12).filter(lambda i: i < 0).batch(3).map(lambda i: i + 1)",
    ),
    "elements in flight": (
        "cluster = pecan.LocalCluster(workers=1)",
        "D.range(10**6).map(lambda i: tf.fill([10**6], i))",
    ),
}
AROUND = {
    "no further step": "",
    "prefetch": ".prefetch(2)",
    "parallel map": ".map(lambda i: i * 2, num_parallel_calls=2).prefetch(4)",
    "repeat and batch": ".repeat().batch(1).prefetch(1)",
}


def _script(state):
    start, dataset = STATES[state]
    return f"""
{start}
has_elements = {state == "elements in flight"}
dataset = {dataset}.apply(pecan.distribute(cluster.target))
waiting = threading.Event()
def read():
    iterator = iter(dataset)
    waiting.set()
    for element in iterator:
        pass
"""


# How often each iterator is created and deleted.
TIMES = 3 if SOAK else 1


def test_an_iterator_is_deleted_in_time():
    lines = """
def delete(variant, has_elements):
    iterator = iter(variant)
    if has_elements:
        next(iterator)
    time.sleep(0.3)
    began = time.monotonic()
    del iterator
    gc.collect()
    say(time.monotonic() - began)
"""
    variants = ", ".join(f"dataset{steps}" for steps in AROUND.values())
    for state in STATES:
        lines += _script(state) + f"for variant in [{variants}] * {TIMES}: delete(variant, has_elements)\n"
    with Script(lines) as script:
        for state in STATES:
            took = {around: float(script.line()) for around in list(AROUND) * TIMES}
            assert max(took.values()) <= DELETE_S, (state, took)
            assert min(took.values()) <= 1.0, (state, took)
        assert script.rest(30)[0] == 0


EXITS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('a fault of the user')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(100)", -15),
}


CASES = [(state, "sys.exit") for state in STATES] + [("elements in flight", how) for how in EXITS if how != "sys.exit"]


@pytest.mark.parametrize(
    "state, how",
    # Python exits by sys.exit() and by an exception in the same way, and test_training_that_raises_ends_at_once raises one.
    # In "no element" and "only the closing stream left" a reader waits for a worker in the same way.
    cases(CASES, soak=[("no element", "sys.exit"), ("elements in flight", "sys.exit"), ("elements in flight", "an exception")]),
)
def test_python_exits_in_time_while_a_thread_reads(state, how):
    """L8: Python exits at the end of the script, by an exception or by a signal."""
    lines, code = EXITS[how]
    with Script(
        _script(state)
        + f"""
threading.Thread(target=read, daemon=True).start()
waiting.wait()
time.sleep(0.5)
say("leaving")
{lines}
"""
    ) as script:
        assert script.line() == "leaving"
        began = time.monotonic()
        assert script.rest(60)[0] == code
        assert time.monotonic() - began <= LEAVE_S


def test_abandoned_generators_free_everything():
    """L8: a generator that is dropped in the middle frees everything at once, also at the dispatcher. Another is dropped at exit."""
    with Script(
        _script("elements in flight")
        + """
from pecan._src.client import session
link = session.connect(cluster.target.removeprefix("pecan://"), 10)
def elements():
    for element in dataset:
        yield element
def being_read():
    states = [epoch["state"] for job in link.status()["jobs"] for epoch in job.get("epochs", [])]
    return [state for state in states if state not in ("ahead", "given up")]
generator = elements()
element = next(generator)
say(link.stats()["pool"]["Buffers"] > 0, len(being_read()))
del generator, element
gc.collect()
deadline = time.monotonic() + 60
while (being_read() or link.stats()["pool"]["Buffers"]) and time.monotonic() < deadline:
    time.sleep(0.05)
say(link.stats()["pool"]["Buffers"] > 0, len(being_read()))
kept = elements()
next(kept)
say("leaving")
"""
    ) as script:
        assert [script.line() for _ in range(3)] == ["True 1", "False 0", "leaving"]
        began = time.monotonic()
        assert script.rest(60)[0] == 0
        assert time.monotonic() - began <= LEAVE_S


def test_an_exit_in_a_thread_ends_only_the_thread():
    with Script(
        _script("elements in flight")
        + """
def read():
    for element in dataset:
        waiting.set()
        sys.exit(3)
thread = threading.Thread(target=read)
thread.start()
began = time.monotonic()
thread.join()
say(int(next(iter(dataset))[0]) >= 0)
"""
    ) as script:
        assert script.line() == "True"
        began = time.monotonic()
        assert script.rest(60)[0] == 0
        assert time.monotonic() - began <= LEAVE_S


def test_training_that_raises_ends_at_once():
    """L8: the user's own code in the loop raises an exception."""
    with Script(
        """
        cluster = pecan.LocalCluster(workers=1)
        dataset = D.range(10**9).map(lambda i: (tf.ones([1000, 100]), tf.ones([1000, 1])))
        dataset = dataset.apply(pecan.distribute(cluster.target)).prefetch(2)
        model = tf.keras.Sequential([tf.keras.Input((100,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        class Fault(tf.keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 3:
                    say("raising")
                    raise ValueError("a fault of the user")
        model.fit(dataset, verbose=0, callbacks=[Fault()])
        """
    ) as script:
        assert script.line() == "raising"
        began = time.monotonic()
        code, _, err = script.rest(60)
        assert code == 1 and "a fault of the user" in err
        assert time.monotonic() - began <= LEAVE_S


# Pecan refuses the child's calls, whatever its parent reads.
@pytest.mark.parametrize("state", cases(["no worker", "elements in flight"], soak=["no worker"]))
def test_a_child_forked_while_elements_are_read(state):
    """Pecan refuses the child's calls, and the child ends.

    The child does not use its parent's iterator. An iterator needs TensorFlow's threads, which the child does not have. In
    the child an iterator of a local dataset waits forever as well.
    """
    with Script(
        _script(state)
        + """
threading.Thread(target=read, daemon=True).start()
waiting.wait()
time.sleep(0.3)
if os.fork() == 0:
    for what in (lambda: D.range(3).apply(pecan.distribute(cluster.target)),
                 lambda: pecan.register_dataset(cluster.target, D.range(3))):
        try:
            what()
        except pecan.UsedAfterForkError:
            say("refused")
    gc.collect()
    sys.exit(0)
began = time.monotonic()
code = os.wait()[1]
say(code, time.monotonic() - began)
"""
    ) as script:
        assert [script.line(), script.line()] == ["refused", "refused"]
        code, took = script.line().split()
        assert code == "0"
        assert float(took) <= LEAVE_S
        assert script.rest(60)[0] == 0


def test_a_forked_child_gets_an_error_instead_of_a_hang():
    """L5: it is refused a new dataset, and its parent's with any step after distribute(). The parent continues to read."""
    with Script(
        """
        dataset = D.range(20).map(lambda i: i + 1).apply(pecan.distribute())
        assert len(list(dataset)) == 20
        reads = [lambda steps=steps: next(iter(steps)) for steps in (
            dataset, dataset.prefetch(2), dataset.map(lambda i: i * 2, num_parallel_calls=2), dataset.batch(3))]
        creates = [lambda: D.range(3).apply(pecan.distribute()), lambda: pecan.register_dataset("host:1", D.range(2))]
        for what in reads + creates:
            if os.fork() == 0:
                try:
                    what()
                except (pecan.UsedAfterForkError, tf.errors.FailedPreconditionError) as error:
                    say("[pecan:USED_AFTER_FORK]" in str(error) and '"spawn"' in str(error))
                os._exit(0)
            say(os.wait()[1])
        assert len(list(dataset)) == 20
        """
    ) as script:
        assert [script.line() for _ in range(12)] == ["True", "0"] * 6
        assert script.rest(60)[0] == 0


def test_processes_that_are_spawned_or_forked():
    """L5: multiprocessing starts the processes, as data loaders do. Their parent continues to read."""
    with Script(
        """
        import multiprocessing
        cluster = pecan.LocalCluster(workers=1)
        code = f'''
        import tensorflow as tf, pecan, sys
        try:
            dataset = tf.data.Dataset.range(20).apply(pecan.distribute({cluster.target!r}))
            print(sorted(dataset.as_numpy_iterator()) == list(range(20)), flush=True)
        except pecan.UsedAfterForkError:
            print("refused", flush=True)
        '''.replace("\\n        ", "\\n")
        begun = iter(D.range(20_000).map(lambda i: (i, i)).apply(pecan.distribute(cluster.target, deterministic=True)))
        next(begun)
        for method in ("spawn", "fork"):
            process = multiprocessing.get_context(method).Process(target=exec, args=(code, {}))
            process.start()
            process.join(60)
            say(method, process.exitcode)
        assert [int(i) for i, _ in begun] == list(range(1, 20_000))
        """
    ) as script:
        assert [script.line() for _ in range(4)] == ["True", "spawn 0", "refused", "fork 0"]
        assert script.rest(60)[0] == 0
