"""Configurations of servers: checked at construction, and converted to flags."""

import dataclasses
import time

import pecan
import pytest

MISTAKES = {
    "fault tolerance without a directory": (
        lambda: pecan.DispatcherConfig(fault_tolerant_mode=True),
        ValueError,
        "work_dir",
    ),
    "a port too high": (lambda: pecan.DispatcherConfig(port=70000), ValueError, "65535"),
    "a port that is a string": (lambda: pecan.DispatcherConfig(port="5050"), TypeError, "integer"),
    "a string for a list": (lambda: pecan.DispatcherConfig(worker_addresses="a:1"), TypeError, "list"),
    "a number for an address": (lambda: pecan.DispatcherConfig(worker_addresses=[5]), TypeError, "string"),
    "a number for a list": (lambda: pecan.DispatcherConfig(worker_addresses=5), TypeError, "list"),
    "an address with a space": (lambda: pecan.DispatcherConfig(worker_addresses=["bad addr"]), ValueError, "bad addr"),
    "an address with two ports": (lambda: pecan.DispatcherConfig(worker_addresses=["a:1:2"]), ValueError, "a:1:2"),
    "two addresses in one": (lambda: pecan.DispatcherConfig(worker_addresses=["a:1,b:2"]), ValueError, "a:1,b:2"),
    "a number for a directory": (lambda: pecan.DispatcherConfig(work_dir=5), TypeError, "work_dir"),
    "an empty directory": (lambda: pecan.DispatcherConfig(work_dir=""), ValueError, "work_dir"),
    "a directory with a NUL": (lambda: pecan.DispatcherConfig(work_dir="a\0b"), ValueError, "NUL"),
    "a timeout below a heartbeat": (lambda: pecan.DispatcherConfig(worker_timeout_ms=1), ValueError, "100"),
    "a timeout near 2**63": (lambda: pecan.DispatcherConfig(worker_timeout_ms=2**63 - 1), ValueError, "ten years"),
    "a job timeout near 2**63": (lambda: pecan.DispatcherConfig(job_gc_timeout_ms=2**63 - 1), ValueError, "ten years"),
    "a job timeout of NaN": (lambda: pecan.DispatcherConfig(job_gc_timeout_ms=float("nan")), TypeError, "integer"),
    "a worker's timeout near 2**63": (
        lambda: pecan.WorkerConfig("h:1", dispatcher_timeout_ms=2**63 - 1),
        ValueError,
        "dispatcher_timeout_ms",
    ),
    "a dispatcher without a port": (lambda: pecan.WorkerConfig("nope"), ValueError, "`dispatcher_address` 'nope'"),
    "a worker without a port": (
        lambda: pecan.WorkerConfig("h:1", worker_address="h"),
        ValueError,
        "`worker_address` 'h'",
    ),
    "a timeout of zero": (lambda: pecan.DispatcherConfig(worker_timeout_ms=0), ValueError, "above 0"),
    "an unknown level": (lambda: pecan.DispatcherConfig(log_level="loud"), ValueError, "log_level"),
    "a host with a port": (lambda: pecan.DispatcherConfig(host="a:1"), ValueError, "host"),
    "an address of 5": (lambda: pecan.WorkerConfig("h:1", worker_address=5), TypeError, "`worker_address`"),
    "no dispatcher": (lambda: pecan.WorkerConfig(), ValueError, "dispatcher_address"),
    "a dispatcher without port": (lambda: pecan.WorkerConfig("localhost"), ValueError, "host:port"),
    "%port% without a port": (lambda: pecan.WorkerConfig("a:1", "localhost:%port%"), ValueError, "%port%"),
    "zero streams": (lambda: pecan.WorkerConfig("a:1", max_streams=0), ValueError, "above 0"),
    "a reserve without a directory": (
        lambda: pecan.DispatcherConfig(work_dir_reserve_bytes=5),
        ValueError,
        "without a work_dir",
    ),
    "a negative reserve": (
        lambda: pecan.DispatcherConfig(work_dir="/w", work_dir_reserve_bytes=-1),
        ValueError,
        "from 0",
    ),
    "a dataset timeout of zero": (lambda: pecan.DispatcherConfig(dataset_timeout_ms=0), ValueError, "above 0"),
    "metrics on port 70000": (lambda: pecan.DispatcherConfig(metrics_port=70000), ValueError, "`metrics_port`"),
    "a string for metrics": (lambda: pecan.WorkerConfig("a:1", metrics_port="80"), TypeError, "`metrics_port`"),
    "a flag that is a string": (lambda: pecan.WorkerConfig("a:1", cache_compress="yes"), TypeError, "cache_compress"),
    "an empty cache": (lambda: pecan.WorkerConfig("a:1", cache_dir=""), ValueError, "`cache_dir`"),
    "a number for checkpoints": (lambda: pecan.WorkerConfig("a:1", checkpoint_dir=5), TypeError, "`checkpoint_dir`"),
    "an interval of zero": (lambda: pecan.WorkerConfig("a:1", checkpoint_interval_ms=0), ValueError, "above 0"),
    "a share of zero": (lambda: pecan.WorkerConfig("a:1", checkpoint_share=0), ValueError, "above 0"),
    "a share of NaN": (lambda: pecan.WorkerConfig("a:1", checkpoint_share=float("nan")), ValueError, "above 0"),
    "a share that is a string": (lambda: pecan.WorkerConfig("a:1", checkpoint_share="1"), TypeError, "number"),
    "an orphan timeout of zero": (lambda: pecan.WorkerConfig("a:1", cache_orphan_after_ms=0), ValueError, "above 0"),
    "a negative drain timeout": (lambda: pecan.WorkerConfig("a:1", drain_timeout_ms=-1), ValueError, "from 0"),
    "shared memory of 2**63": (lambda: pecan.WorkerConfig("a:1", shared_memory_bytes=2**63), ValueError, "2\\*\\*63"),
    "zero threads": (lambda: pecan.WorkerConfig("a:1", threads=0), ValueError, "above 0"),
    "the wrong configuration": (lambda: pecan.WorkerServer(pecan.DispatcherConfig()), TypeError, "WorkerConfig"),
    "a WorkerConfig": (lambda: pecan.DispatchServer(pecan.WorkerConfig("a:1")), TypeError, "DispatcherConfig"),
    "a negative number of workers": (lambda: pecan.LocalCluster(-1), ValueError, "above 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_configurations_raise(name):
    make, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words) as caught:
        make()
    assert isinstance(caught.value, pecan.PecanError)


@pytest.mark.parametrize("address", ["a", "a.b-c:1", "10.0.0.1", "10.0.0.1:65535", "::1", "[fe80::1]:5"])
def test_worker_addresses_of_every_form_are_accepted(address):
    assert address in pecan.DispatcherConfig(worker_addresses=(address,)).arguments()


def test_configurations_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        pecan.DispatcherConfig().port = 1


def test_configurations_become_flags():
    config = pecan.DispatcherConfig(port=5, work_dir="/w", worker_addresses=["a:1", "b"], worker_timeout_ms=1500)
    assert config.arguments() == [
        "--listen", "127.0.0.1:5", "--log-level", "info", "--work-dir", "/w", "--worker-addresses", "a:1,b",
        "--worker-dead-after", "1500ms",
    ]  # fmt: skip
    worker = pecan.WorkerConfig("pecan://d:1", "h:%port%", 7, max_streams=3)
    assert worker.arguments() == [
        "--dispatcher", "d:1", "--listen", "127.0.0.1:7", "--log-level", "info", "--dispatcher-timeout", "10000ms",
        "--advertise", "h:7", "--max-streams", "3",
    ]  # fmt: skip


def test_every_field_of_a_configuration_becomes_a_flag():
    dispatcher = pecan.DispatcherConfig(
        work_dir="/w", work_dir_reserve_bytes=0, dataset_timeout_ms=5, job_gc_timeout_ms=6, metrics_port=7
    )
    assert dispatcher.arguments()[4:] == [
        "--work-dir", "/w", "--job-timeout", "6ms", "--work-dir-reserve-bytes", "0", "--dataset-timeout", "5ms",
        "--metrics-listen", "127.0.0.1:7",
    ]  # fmt: skip
    worker = pecan.WorkerConfig(
        "d:1", window_bytes=1, cache_dir="/c", cache_bytes=2, cache_compress=True, cache_orphan_after_ms=3,
        checkpoint_dir="/s", checkpoint_interval_ms=4, checkpoint_share=0.5, drain_timeout_ms=0, shared_memory_bytes=0,
        threads=5, metrics_port=0,
    )  # fmt: skip
    assert worker.arguments()[8:] == [
        "--window-bytes", "1", "--cache-dir", "/c", "--cache-bytes", "2", "--cache-compress", "--cache-orphan-after",
        "3ms", "--checkpoint-dir", "/s", "--checkpoint-share", "0.5", "--checkpoint-interval", "4ms", "--drain-timeout",
        "0ms", "--shared-memory-bytes", "0", "--threads", "5", "--metrics-listen", "127.0.0.1:0",
    ]  # fmt: skip


def test_distribute_fails_fast_for_a_stopped_cluster():
    tf = pytest.importorskip("tensorflow")
    cluster = pecan.LocalCluster(workers=0)
    target = cluster.target
    cluster.stop()
    began = time.monotonic()
    with pytest.raises(pecan.ServiceUnavailable, match="was stopped"):
        tf.data.Dataset.range(3).apply(pecan.distribute(target))
    assert time.monotonic() - began < 5


def test_a_new_dispatcher_at_the_address_of_a_stopped_one_is_used():
    tf = pytest.importorskip("tensorflow")
    cluster = pecan.LocalCluster(workers=0)
    cluster.stop()
    port = int(cluster.target.rpartition(":")[2])
    with pecan.DispatchServer(pecan.DispatcherConfig(port=port)) as dispatcher:
        assert dispatcher.target == cluster.target
        tf.data.Dataset.range(3).apply(pecan.distribute(dispatcher.target))


@pytest.mark.parametrize(("number", "kind"), [(0, ValueError), (-1, ValueError), ("two", TypeError)])
def test_add_workers_refuses_invalid_numbers(number, kind):
    with pecan.LocalCluster(workers=0) as cluster, pytest.raises(kind, match="`number`"):
        cluster.add_workers(number)
