"""Local workers as child processes, without a dispatcher."""

import os
import threading

import pytest
from pecan._src.servers import local_workers, priority
from pecan._src.servers.local_workers import LocalWorkers


def test_nobody_waits_while_the_kernel_lets_a_priority_wait(monkeypatch):
    """A kernel may allow one change of a session's nice value in 0.1 s only."""
    began, allowed = threading.Event(), threading.Event()

    def lower(pid: int, nice: int) -> None:
        began.set()
        assert allowed.wait(60)

    monkeypatch.setattr(priority, "lower", lower)
    failures: list[str] = []
    workers = LocalWorkers("127.0.0.1:1", "local workers", failures.append, "127.0.0.1:0")
    keeper = threading.Thread(target=workers.keep, args=(1, 5))
    keeper.start()
    try:
        assert began.wait(60)
        free = workers._lock.acquire(blocking=False)
        if free:
            workers._lock.release()
        assert free, "the lock is held while a priority is lowered"
        assert len(workers.processes) == 1
    finally:
        allowed.set()
        keeper.join()
        workers.stop()
    assert failures == []


def test_more_workers_than_processors_are_named_in_the_log_once(monkeypatch, caplog):
    started: list[int] = []
    monkeypatch.setattr(LocalWorkers, "_adjust", lambda self: started.append(self._least) or [])
    workers = LocalWorkers("127.0.0.1:1", "local workers", print, "127.0.0.1:0")
    processors = len(os.sched_getaffinity(0))
    with caplog.at_level("WARNING", "pecan"):
        for number in (processors, processors + 1, processors + 1):
            workers.keep(number, None)
    assert started == [processors, processors + 1, processors + 1]
    [line] = [record.getMessage() for record in caplog.records]
    assert f"local_workers={processors + 1} starts more processes" in line
    assert 'local_workers="auto"' in line


@pytest.mark.parametrize(
    ("processors", "available_gib", "number"),
    [(16, 64, 8), (16, 5, 5), (4, 64, 2), (16, 0.5, 1), (1, 64, 1)],
)
def test_processors_and_memory_bound_the_local_workers(monkeypatch, tmp_path, processors, available_gib, number):
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {int(available_gib * 2**20)} kB\n")
    monkeypatch.setattr(local_workers, "_MEMORY", memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    local_workers.most.cache_clear()
    try:
        assert local_workers.most() == number
        # The workers that start take memory, and the limit stays.
        memory.write_text("MemAvailable: 0 kB\n")
        assert local_workers.most() == number
    finally:
        local_workers.most.cache_clear()
