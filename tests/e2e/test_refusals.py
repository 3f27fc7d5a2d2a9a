"""A user's mistake raises one clear exception at the call, and does not harm the service."""

from __future__ import annotations

import socket
import time

import pecan
import pytest
import tensorflow as tf
from pecan._src.client import session

D = tf.data.Dataset


def _python_step():
    return D.range(3).map(lambda i: tf.py_function(lambda v: v, [i], tf.int64))


def _python_source():
    return D.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32))


def _writer(path):
    def write(i):
        with tf.control_dependencies([tf.io.write_file(path, tf.as_string(i))]):
            return tf.identity(i)

    return D.range(3).map(write)


def _iterator():
    iterator = iter(D.range(9))
    return D.range(3).map(lambda i: i + next(iterator))


def _padded(shape):
    """A padded batch that is too large. TensorFlow would crash when it cannot allocate the batch."""
    return D.range(3).map(lambda i: tf.fill([2] * len(shape), i)).padded_batch(2, padded_shapes=shape)


def _dense_table():
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2)
    table.insert(tf.range(3, dtype=tf.int64), tf.range(3, dtype=tf.int64))
    return D.range(3).map(table.lookup)


def _registering():
    def step(i):
        variant = tf.data.experimental.to_variant(D.range(3))
        return tf.raw_ops.RegisterDatasetV2(dataset=variant, address="127.0.0.1:9", protocol="grpc", external_state_policy=1)

    return D.range(3).map(step)


def _gathering():
    return D.range(3).map(tf.nondifferentiable_batch_function(1, 4, 1000)(lambda v: v))


DATASETS = {
    "padding larger than memory": (lambda: _padded([2**40]), ValueError, "GRAPH_LIMIT"),
    "padding larger than memory in two dimensions": (lambda: _padded([2**20, 2**20]), ValueError, "GRAPH_LIMIT"),
    "a Python function in a map": (_python_step, NotImplementedError, "PY_FUNCTION"),
    "a Python generator": (_python_source, NotImplementedError, "PY_FUNCTION"),
    "a Python function before a batch": (lambda: _python_step().batch(2), NotImplementedError, "PY_FUNCTION"),
    "datasets as elements": (lambda: D.range(3).window(2), NotImplementedError, "UNSUPPORTED"),
    "a function that writes a file": (lambda: _writer("/tmp/pecan-must-not-exist"), PermissionError, "OP_FORBIDDEN"),
    "a connection to another service": (_registering, PermissionError, "RegisterDatasetV2.*OP_FORBIDDEN"),
    "a distributed dataset": (
        lambda: D.range(3).apply(pecan.distribute()).map(lambda i: i + 1),
        NotImplementedError,
        "distributed already",
    ),
    "a distributed dataset in a function": (
        lambda: (lambda inner: D.range(3).flat_map(lambda i: inner))(D.range(3).apply(pecan.distribute())),
        NotImplementedError,
        "distributed already",
    ),
    "a step that moves elements to a device": (
        lambda: D.range(3).apply(tf.data.experimental.copy_to_device("/cpu:0")),
        NotImplementedError,
        "cannot leave this process.*after distribute",
    ),
    "a table that cannot be serialized": (_dense_table, ValueError, "lookup table.*StaticHashTable.*EXTERNAL_STATE"),
    "elements that depend on the time": (
        lambda: D.range(3).filter(lambda i: tf.timestamp() > 5),
        ValueError,
        "FilterDataset.*no seed decides.*allow_nondeterministic.*NONDETERMINISTIC",
    ),
    "a named queue that other jobs would share": (_gathering, ValueError, "BatchFunction.*EXTERNAL_STATE"),
    "a running iterator": (_iterator, ValueError, "EXTERNAL_STATE"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_that_cannot_be_distributed_is_refused_at_the_call(cluster, name):
    make, kind, reason = DATASETS[name]
    link = session.connect(cluster.target.removeprefix("pecan://"), 10)
    before = link.status().get("datasets", [])
    with pytest.raises(kind, match=reason) as caught:
        make().apply(pecan.distribute(cluster.target))
    assert isinstance(caught.value, pecan.PecanError)
    assert link.status().get("datasets", []) == before


def test_values_that_are_not_datasets_are_refused():
    for value in (None, 5, [1, 2], tf.constant(1), iter(D.range(3))):
        with pytest.raises(TypeError, match="tf.data.Dataset"):
            pecan.distribute()(value)
    with pytest.raises(TypeError, match="not the dataset"):
        pecan.distribute(D.range(3))


def test_distribute_is_refused_inside_a_tf_function():
    @tf.function
    def build():
        return len(list(D.range(3).apply(pecan.distribute())))

    with pytest.raises(ValueError, match="inside a tf.function"):
        build()


def test_no_dispatcher_is_an_error_in_time():
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="127.0.0.1:1") as caught:
        D.range(3).apply(pecan.distribute("127.0.0.1:1", dispatcher_timeout_s=1))
    assert time.monotonic() - began < 3
    assert isinstance(caught.value, pecan.ServiceUnavailable)
    assert isinstance(caught.value, tf.errors.UnavailableError)


def test_another_program_at_the_port_is_an_error_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(pecan.PecanError, match=target):
            D.range(3).apply(pecan.distribute(target, dispatcher_timeout_s=1))


def test_a_port_in_use_is_an_error():
    with pecan.DispatchServer() as first:
        port = int(first.target.rpartition(":")[2])
        with pytest.raises(RuntimeError, match="in use"):
            pecan.DispatchServer(pecan.DispatcherConfig(port=port))


def test_a_worker_without_a_dispatcher_is_an_error_in_time():
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="pecan-worker"):
        pecan.WorkerServer(pecan.WorkerConfig("127.0.0.1:1", dispatcher_timeout_ms=1000))
    assert time.monotonic() - began < 20


def test_a_server_is_started_once():
    server = pecan.DispatchServer(start=False)
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        _ = server.target
    server.start()
    server.start()
    assert server.target.startswith("pecan://127.0.0.1:")
    server.stop()
    server.stop()
    with pytest.raises(RuntimeError, match="create a new one"):
        server.start()


def test_another_dataset_under_a_job_name_is_refused(cluster):
    first = D.range(5).apply(pecan.distribute(cluster.target, job_name="taken"))
    with pytest.raises(ValueError, match="taken") as caught:
        D.range(6).apply(pecan.distribute(cluster.target, job_name="taken"))
    assert isinstance(caught.value, pecan.JobMismatchError)
    assert isinstance(caught.value, tf.errors.InvalidArgumentError)
    assert sorted(first.as_numpy_iterator()) == list(range(5))


def test_other_options_under_a_job_name_are_refused(cluster):
    dataset = D.range(5).apply(pecan.distribute(cluster.target, job_name="options"))
    with pytest.raises(pecan.JobMismatchError):
        D.range(5).apply(pecan.distribute(cluster.target, job_name="options", deterministic=True))
    assert sorted(dataset.as_numpy_iterator()) == list(range(5))


def test_a_job_mismatch_names_both_values(cluster):
    def make(**options):
        return D.range(5).apply(pecan.distribute(cluster.target, job_name="differences", **options))

    first = make(compression=None)
    with pytest.raises(pecan.JobMismatchError) as caught:
        make(compression="snappy")
    assert 'job "differences" is being read with compression none instead of snappy;' in str(caught.value)
    with pytest.raises(pecan.JobMismatchError) as caught:
        make(compression=None, deterministic=True, max_element_bytes=300)
    assert "mode exactly_once instead of deterministic, max_element_bytes 2147483648 instead of 300" in str(caught.value)
    assert sorted(first.as_numpy_iterator()) == list(range(5))


def test_job_names_ignore_case(cluster):
    first = D.range(5).apply(pecan.distribute(cluster.target, job_name="Folded"))
    with pytest.raises(pecan.JobMismatchError):
        D.range(6).apply(pecan.distribute(cluster.target, job_name="foldeD"))
    assert sorted(first.as_numpy_iterator()) == list(range(5))


def test_a_string_that_looks_like_an_operation_is_a_string(cluster):
    dataset = D.from_tensor_slices(["PecanOpen", "PecanPull"]).apply(pecan.distribute(cluster.target))
    assert sorted(dataset.as_numpy_iterator()) == [b"PecanOpen", b"PecanPull"]


def test_an_error_while_reading_names_pecan_and_its_reason(cluster):
    dataset = D.range(3).map(lambda i: tf.debugging.check_numerics(1.0 / tf.cast(i * 0, tf.float32), "zero"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)passed to pecan .*\[pecan:ELEMENT_FAILED\]"):
        list(dataset.apply(pecan.distribute(cluster.target)).map(lambda x: x))


@pytest.mark.parametrize("name", ["a/b", "x" * 64, "..", "-a", "ü"])
def test_invalid_job_names_are_refused(cluster, name):
    with pytest.raises(ValueError, match="BAD_NAME"):
        D.range(5).apply(pecan.distribute(cluster.target, job_name=name))


def test_another_dataset_under_an_id_is_refused(cluster):
    pecan.register_dataset(cluster.target, D.range(5), dataset_id="one")
    assert pecan.register_dataset(cluster.target, D.range(5), dataset_id="one").numpy() == b"one"
    with pytest.raises(pecan.JobMismatchError):
        pecan.register_dataset(cluster.target, D.range(5).map(tf.as_string), dataset_id="one")


@pytest.mark.parametrize("identity", ["a/b", "..", "x" * 129, "a\0b", "\0", "\udcff", "a\nb", b"\xff\0"])
def test_invalid_dataset_ids_are_refused(cluster, identity):
    with pytest.raises(pecan.InvalidArgumentError, match="BAD_NAME"):
        pecan.from_dataset_id(None, cluster.target, identity)
    with pytest.raises(pecan.InvalidArgumentError, match="BAD_NAME"):
        pecan.register_dataset(cluster.target, D.range(5), dataset_id=identity)


@pytest.mark.parametrize(
    "spec", [5, "int64", tf.int64, (tf.TensorSpec([], tf.int64), 3), [tf.TensorSpec([], tf.int64)], {"a": [None]}]
)
def test_an_invalid_spec_is_refused(cluster, spec):
    identity = pecan.register_dataset(cluster.target, D.range(5))
    with pytest.raises(pecan.InvalidTypeError, match="`element_spec` must"):
        pecan.from_dataset_id(None, cluster.target, identity, spec)


def test_an_unknown_dataset_id_is_refused(cluster):
    for spec in (None, tf.TensorSpec([], tf.int64)):
        with pytest.raises(pecan.NotFoundError, match="DATASET_UNKNOWN") as caught:
            pecan.from_dataset_id("distributed_epoch", cluster.target, "nobody", spec)
        assert isinstance(caught.value, tf.errors.NotFoundError)


@pytest.mark.parametrize(
    "spec, text",
    [
        (tf.TensorSpec([], tf.string), "component 0 is string, but the dataset gives int64"),
        (tf.TensorSpec([3], tf.int64), "component 0 has rank 1, but the dataset gives rank 0"),
        ((tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32)), "has 2 components, but the dataset gives 1"),
    ],
)
def test_a_spec_of_another_dataset_is_refused(cluster, spec, text):
    identity = pecan.register_dataset(cluster.target, D.range(5))
    with pytest.raises(ValueError, match="SPEC_MISMATCH") as caught:
        pecan.from_dataset_id(None, cluster.target, identity, spec)
    assert text in str(caught.value)
    assert isinstance(caught.value, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize("size", [2, 3])
def test_elements_that_contradict_a_more_exact_spec_fail(cluster, size):
    """Small rows are sent in blocks. The error shows the shape of the element, not of the block."""
    dataset = D.range(64).map(lambda i: tf.ensure_shape(tf.zeros(tf.stack([0 * i + 3])), [None]))
    identity = pecan.register_dataset(cluster.target, dataset)
    ours = pecan.from_dataset_id(None, cluster.target, identity, tf.TensorSpec([size], tf.float32))
    if size == 3:
        assert len(list(ours)) == 64
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="ELEMENT_SPEC") as caught:
        list(ours)
    assert "is float32 of shape [3], the dataset's element_spec says float32 of shape [2]" in str(caught.value)


def test_an_element_that_is_too_large_fails(cluster):
    dataset = D.range(3).map(lambda i: tf.fill([1000 * (i % 2 * 999 + 1)], i))
    ours = dataset.apply(pecan.distribute(cluster.target, max_element_bytes=100_000))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="ELEMENT_TOO_LARGE"):
        list(ours)
    assert len(list(ours.ignore_errors())) == 2


def test_a_file_that_workers_cannot_see_is_an_error(cluster, tmp_path):
    path = str(tmp_path / "nowhere.tfrecord")
    with pytest.raises(tf.errors.NotFoundError, match="nowhere.tfrecord"):
        list(tf.data.TFRecordDataset(path).apply(pecan.distribute(cluster.target)))


STATIC = {
    "no files": (lambda: D.range(10), "FILE"),
    "no hint": (lambda: D.range(10), "HINT"),
}


@pytest.mark.parametrize("name", STATIC)
def test_a_sharding_policy_that_the_dataset_does_not_support_is_refused(cluster, name):
    make, policy = STATIC[name]
    with pytest.raises((pecan.PecanError, tf.errors.OpError), match="SHARDING"):
        list(make().apply(pecan.distribute(cluster.target, sharding=pecan.ShardingPolicy[policy])))


def test_file_sharding_with_fewer_files_than_listed_workers_is_refused(tmp_path):
    """As in tf.data service, the dispatcher's list of workers counts, not the connected workers."""
    names = [str(tmp_path / f"part-{k}.txt") for k in range(2)]
    for name in names:
        tf.io.write_file(name, "a\nb\n")
    config = pecan.DispatcherConfig(worker_addresses=[f"127.0.0.1:{port}" for port in (7001, 7002, 7003)])
    with pecan.DispatchServer(config) as dispatcher, pytest.raises(ValueError, match="SHARDING_FILES") as caught:
        tf.data.TextLineDataset(names).apply(
            pecan.distribute(dispatcher.target, sharding=pecan.ShardingPolicy.FILE, dispatcher_timeout_s=5)
        )
    assert "each of the 3 workers of the dispatcher's list (--worker-addresses), and the dataset has 2" in str(caught.value)
    assert isinstance(caught.value, tf.errors.InvalidArgumentError)


def test_file_sharding_of_one_file_without_a_list_of_workers(cluster, tmp_path):
    name = str(tmp_path / "one.txt")
    tf.io.write_file(name, "a\nb\nc\n")
    ours = tf.data.TextLineDataset(name).apply(pecan.distribute(cluster.target, sharding=pecan.ShardingPolicy.FILE))
    assert list(ours.as_numpy_iterator()) == [b"a", b"b", b"c"]
