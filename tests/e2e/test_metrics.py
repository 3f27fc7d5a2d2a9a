"""The metrics of servers compared with what the servers did."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request

import pecan
import tensorflow as tf
from test_commands import Program

WAIT = 60


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port: int, path: str) -> tuple[int, str]:
    """The status code and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def scrape(port: int) -> dict[str, float]:
    """Every sample of Pecan, by its name with labels."""
    code, text = get(port, "/metrics")
    assert code == 200, text
    return {name: float(value) for name, value in re.findall(r"^(pecan_\S+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}


def until(port: int, condition, what: str) -> dict[str, float]:
    """Scrapes until `wanted` is true for the samples, and returns them."""
    deadline = time.monotonic() + WAIT
    while True:
        seen = scrape(port)
        if condition(seen):
            return seen
        assert time.monotonic() < deadline, f"waited for {what}: {seen}"
        time.sleep(0.1)


def test_metrics_count_what_servers_did(tmp_path):
    at_dispatcher, at_worker = free_port(), free_port()
    programs = []
    try:
        directory = str(tmp_path / "work")
        metrics = ("--metrics-listen", f"127.0.0.1:{at_dispatcher}")
        programs.append(Program("pecan-dispatcher", "--listen", "127.0.0.1:0", "--work-dir", directory, *metrics))
        target = programs[0].address
        programs.append(Program("pecan-worker", "--dispatcher", target, "--metrics-listen", f"127.0.0.1:{at_worker}"))
        for port in (at_dispatcher, at_worker):
            assert get(port, "/healthz") == (200, "ok\n")
            assert get(port, "/readyz") == (200, "ready\n")
            assert get(port, "/debug/pprof/")[0] == 404
        before = scrape(at_dispatcher)
        assert before['pecan_dispatcher_workers{state="connected"}'] == 1
        assert before["pecan_dispatcher_elements_delivered_total"] == 0

        rows, bad = 1000, 7
        dataset = tf.data.Dataset.range(rows).map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n - bad, tf.float32), "x"))
        dataset = dataset.apply(pecan.distribute(target, job_name="metered"))
        for _ in range(2):
            got, iterator = 0, iter(dataset)
            while True:
                try:
                    next(iterator)
                    got += 1
                except tf.errors.InvalidArgumentError:
                    continue
                except StopIteration:
                    break
            assert got == rows - 1
        del iterator

        def delivered(seen):
            return seen["pecan_dispatcher_elements_delivered_total"] >= 2 * rows

        seen = until(at_dispatcher, delivered, "two epochs to be delivered")
        assert seen["pecan_dispatcher_elements_delivered_total"] == 2 * rows
        assert seen["pecan_dispatcher_leases_granted_total"] >= seen["pecan_dispatcher_streams_delivered_total"] >= 2
        assert seen['pecan_dispatcher_leases_lost_total{cause="died"}'] == 0
        assert seen["pecan_dispatcher_store_bytes"] > 0
        assert seen["pecan_dispatcher_records_written_total"] >= 10
        assert 1 <= seen["pecan_dispatcher_store_write_seconds_count"] <= seen["pecan_dispatcher_records_written_total"]
        (info,) = [name for name in seen if name.startswith("pecan_dispatcher_job_info")]
        assert re.search(r'class="[ab]"', info), info
        for label in ('name="metered"', 'mode="exactly_once"', 'durable="true"'):
            assert label in info
        assert re.search(r'plan_hash="[0-9a-f]{16,}"', info), info

        worker = scrape(at_worker)
        assert worker["pecan_worker_session_up"] == 1
        # A prefetched epoch may have produced one element of each of its streams.
        assert 2 * (rows - 1) <= worker["pecan_worker_elements_produced_total"] <= 2 * (rows - 1) + 100
        assert worker["pecan_worker_elements_sent_total"] == 2 * (rows - 1)
        assert worker["pecan_worker_sent_bytes_total"] >= 2 * (rows - 1) * 4
        assert worker["pecan_worker_element_failures_total"] >= 2
        assert worker["pecan_worker_stream_failures_total"] == 0

        programs[1].process.kill()

        def is_gone(seen):
            return seen['pecan_dispatcher_workers{state="connected"}'] == 0

        until(at_dispatcher, is_gone, "the killed worker to disappear")
    finally:
        for program in programs:
            program.process.kill()
            program.process.communicate(timeout=180)
