"""Builds the `tf.data.Dataset` that reads a job.

It consists of TensorFlow's own datasets around Pecan's operations (native/op):

    from_tensors(job) → flat_map: open → endless range → map: next → ...

`flat_map` opens a pass for every iterator, also under `repeat` and `prefetch`. The job and the pass end when
TensorFlow deletes their tensors.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import tensorflow as tf

from pecan._src.client import native
from pecan._src.client.session import Session
from pecan._src.dataset import graph as graphs
from pecan._src.dataset import resume, structure
from pecan._src.options import ReadOptions

_log = logging.getLogger("pecan")

_RANGE_END = 1 << 62  # no pass has as many elements
_UNKNOWN = -2  # tf.data.UNKNOWN_CARDINALITY
# Start of the plan's reason why cache() has no effect (service/graph/split, cache.go).
_CACHE_WARNING = "cache() does nothing here"
_METADATA = b"\n\x05pecan"  # a serialised tensorflow.data.Metadata whose name is "pecan"


def read(
    session: Session,
    dataset_id: str,
    element_spec: Any,
    specs: tuple[tf.TensorSpec, ...],
    options: ReadOptions,
    cardinality: int | None,
    graph: graphs.Graph | None = None,
) -> tf.data.Dataset:
    """Creates or joins a job, and returns the dataset that reads it.

    Args:
        session: The session with the dispatcher.
        dataset_id: The id of the registered dataset.
        element_spec: Element spec of the returned dataset.
        specs: Specs of the plain tensors of an element; see `structure`.
        options: The options of the reader.
        cardinality: tf.data's cardinality of the registered dataset; None if unknown in this process.
        graph: The registered dataset, to register it again if the service loses it. None if this process does not
            have it, or the service cannot lose it.

    Returns:
        A dataset with the given element spec.

    Raises:
        PecanError: If the service refuses the job or is unreachable.
    """
    request = {
        "dataset_id": dataset_id,
        "job_name": options.job_name or "",
        **graphs.mode_fields(options),
        "sharding": options.sharding,
        "seed": options.seed,
        "compression": options.compression,
        "protocol": options.protocol,
        "max_outstanding_bytes": _outstanding_bytes(options, specs),
        "max_element_bytes": options.max_element_bytes or 0,
        "payload_checksum": options.payload_checksum,
        "order": options.order,
        "order_tolerance": options.order_tolerance,
        "cache": options.cache,
        "streams": options.streams,
        "weight": options.weight,
        "tenant": options.tenant,
        "placement": options.placement,
        "target_workers": options.target_workers,
        "local_workers": options.local_workers.decided,
        "starts_local": options.local_workers.starts,
        "file_bytes": 0 if graph is None else graph.file_bytes,
        "file_records": 0 if graph is None else graph.file_records,
        "timeout_s": options.outage_timeout_s,
        "components": structure.components_json(specs),
    }
    header = None if graph is None else graphs.header(graph, options.compression, dataset_id)
    kept = graph.data if graph is not None and graph.keep else b""
    # A state covers one trainer, so a shared job loads none.
    undivided = graph.undivided if graph is not None and options.job_name is None else b""
    job = session.create_job(request, header, kept, undivided)
    _log_job(session, job, options)
    loaded = native.load()
    loaded.handle_interrupts()
    try:
        with tf.device("CPU:0"):
            tensor = loaded.ops.pecan_job(handle=job["handle"])
    except BaseException:
        loaded.call("ForgetJob", job["handle"])
        raise
    result = _read_elements(loaded.ops, tensor, specs, blocks=job["blocks"])
    shape = structure.Structure(element_spec)
    if shape.composite:
        result = result.map(lambda *tensors: shape.pack(tensors))
    # Restore the element spec: the one that the map infers may differ, for example for rows of RaggedTensors.
    result = tf.data.experimental.from_variant(tf.data.experimental.to_variant(result), element_spec)
    result = _with_cardinality(result, _common_cardinality(job["cardinality"], cardinality, whole=job["whole"]))
    settings = tf.data.Options()
    # tf.distribute must not shard the dataset: each trainer of a job already gets its own share of the elements.
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # TensorFlow joins an iterator's autotuning thread when it deletes the iterator. The notification of that thread can
    # precede the flag that it checks. The thread then sleeps for as long as the iterator has existed, at most a minute.
    settings.autotune.enabled = False
    if any(spec.dtype == tf.dtypes.experimental.float8_e5m2 for spec in specs):
        # TensorFlow's graph optimizers fail for every pipeline with this dtype.
        settings.experimental_optimization.apply_default_optimizations = False
    result = result.with_options(settings)
    resume.remember(result, job["handle"])
    return result


def _log_job(session: Session, job: dict[str, Any], options: ReadOptions) -> None:
    """Logs the guarantees of the job, and warns if they are weaker than requested."""
    plan = job["plan"]
    name = options.job_name or job["job_id"]
    # In mode "off" every worker runs the whole dataset, and no worker reorders it.
    as_written = "off" in (job["order"], job["mode"])
    _log.info(
        "%s: job %s %s: mode %s, class %s, %s streams, plan %s, seed %d, order %s, dispatcher %s",
        session.target,
        name,
        "created" if job["created"] else "joined",
        job["mode"],
        plan["class"],
        plan["streams"] or "a worker's own",
        plan["hash"][:12],
        job["seed"],
        "off" if as_written else f"{job['order']} ({job['order_tolerance']})",
        "with a work directory" if job["durable"] else "in memory only",
    )
    for why in plan["reasons"]:
        if why.startswith(_CACHE_WARNING):
            _log.warning("%s: job %s: pecan.%s", session.target, name, why)
    if job["requested_mode"]:
        why = next((text for text in plan["reasons"] if text.startswith("The job runs in mode")), "")
        _log.warning(
            "%s: job %s runs in mode %s and not %s: %s", session.target, name, job["mode"], job["requested_mode"], why
        )


def _outstanding_bytes(options: ReadOptions, specs: tuple[tf.TensorSpec, ...]) -> int:
    """Returns the smaller of both bounds in bytes. The bound in elements needs elements of a known size."""
    if options.max_outstanding_requests is None:
        return options.max_outstanding_bytes
    if any(spec.dtype == tf.string or not spec.shape.is_fully_defined() for spec in specs):
        return options.max_outstanding_bytes
    size = sum(spec.dtype.size * math.prod(spec.shape.as_list()) for spec in specs)
    return max(1, min(options.max_outstanding_bytes, options.max_outstanding_requests * max(1, int(size))))


def _read_elements(ops: Any, job: tf.Tensor, specs: tuple[tf.TensorSpec, ...], *, blocks: bool) -> tf.data.Dataset:
    """Returns the dataset whose elements are tuples of plain tensors.

    Args:
        ops: TensorFlow's wrappers of Pecan's operations.
        job: The tensor of the job.
        specs: Specs of the plain tensors.
        blocks: Whether one call of an operation returns several elements, as rows of each tensor.
    """
    types = [spec.dtype for spec in specs]
    batched = [tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype) for spec in specs]
    position = tf.TensorSpec([], tf.int64)

    def open_pass(job: tf.Tensor) -> tf.Tensor:
        iteration = ops.pecan_open(job=job)
        iteration.set_shape([1])
        positions = tf.data.Dataset.range(_RANGE_END)

        def rows(position: tf.Tensor) -> list[tf.Tensor]:
            tensors: list[tf.Tensor] = ops.pecan_next_block(iteration=iteration, position=position, output_types=types)
            return tensors

        def element(position: tf.Tensor) -> list[tf.Tensor]:
            answer = ops.pecan_next(iteration=iteration, position=position, output_types=types)
            return [answer.ready, *answer.components]

        if blocks:
            inner = _map(positions, _function(rows, (position,)), batched)
            # Dataset.unbatch() would add a map that flattens composite tensors.
            rows_of = tf.raw_ops.UnbatchDataset(input_dataset=tf.data.experimental.to_variant(inner), **_output(specs))
            inner = tf.data.experimental.from_variant(rows_of, specs)
        else:
            # Filter and last map only select components. tf.data does that without a function call.
            answer = (tf.TensorSpec([], tf.bool), *specs)
            inner = _map(positions, _function(element, (position,)), answer)
            ready = tf.raw_ops.FilterDataset(
                input_dataset=tf.data.experimental.to_variant(inner),
                other_arguments=[],
                predicate=_function(lambda ready, *components: ready, answer),
                **_output(answer),
            )
            inner = tf.data.experimental.from_variant(ready, answer)
            inner = _map(inner, _function(lambda ready, *components: list(components), answer), specs)
        return tf.data.experimental.to_variant(inner)

    opened = _function(open_pass, (tf.TensorSpec(job.shape, job.dtype),))
    elements = tf.raw_ops.FlatMapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(job)),
        other_arguments=opened.captured_inputs,
        f=opened,
        **_output(specs),
    )
    return tf.data.experimental.from_variant(elements, specs)


def _function(python_function: Any, signature: tuple[tf.TensorSpec, ...]) -> Any:
    """Returns a function for a step that TensorFlow instantiates in a fraction of the usual time.

    With these attributes, `iter()` skips placement on several devices and graph optimization. Pecan's functions need
    neither.
    """
    attributes = {"_tf_data_function": True, "experimental_ints_on_device": True}
    return tf.function(
        python_function, input_signature=signature, autograph=False, experimental_attributes=attributes
    ).get_concrete_function()


def _map(dataset: tf.data.Dataset, function: Any, specs: Any) -> tf.data.Dataset:
    """Returns a map whose function may end the dataset with OUT_OF_RANGE, and runs on the caller's thread.

    `Dataset.map` converts that error to another one. The function runs on the caller's thread because it waits for
    elements. Otherwise each wait would block one of the few threads that do all of TensorFlow's work.
    """
    mapped = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=function.captured_inputs,
        f=function,
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
        **_output(specs),
    )
    return tf.data.experimental.from_variant(mapped, tuple(specs))


def _output(specs: Any) -> dict[str, Any]:
    """Returns the attributes of a dataset operation that describe its elements. Errors name the step "pecan"."""
    return {
        "output_types": [spec.dtype for spec in specs],
        "output_shapes": [spec.shape for spec in specs],
        "metadata": _METADATA,
    }


def _common_cardinality(planned: int, local: int | None, *, whole: bool) -> int:
    """Returns the cardinality on which plan and TensorFlow agree, or UNKNOWN.

    TensorFlow sometimes knows a cardinality that the plan does not know, because it reads files (`load`). If `whole` is
    true, a pass has as many elements as a local one, so TensorFlow's value is valid.
    """
    if local is None or local == planned:
        return planned
    return local if whole and planned == _UNKNOWN and local >= tf.data.INFINITE_CARDINALITY else _UNKNOWN


def _with_cardinality(dataset: tf.data.Dataset, cardinality: int) -> tf.data.Dataset:
    """Returns a dataset with the same elements and the given cardinality.

    `assert_cardinality` is not suitable, because tf.data's cardinality includes elements whose map fails. A loop that
    ignores those errors would get another error at the end, without end. An endlessly repeated empty dataset counts as
    infinite, but ends immediately. A dataset concatenated with it counts as infinite too.
    """
    if cardinality == _UNKNOWN:
        return dataset
    empty = dataset.take(0).filter(lambda *_: False).repeat()
    infinite = dataset.concatenate(empty)
    return infinite if cardinality == tf.data.INFINITE_CARDINALITY else infinite.take(cardinality)
