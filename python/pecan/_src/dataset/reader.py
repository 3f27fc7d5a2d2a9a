"""From a job to a tf.data.Dataset.

What comes back is built of TensorFlow's own datasets around Pecan's operations (native/op):

    from_tensors(job) → flat_map: open → endless range → map: next → ...

`flat_map` opens an iteration for every iterator, also under `repeat` and `prefetch`; the tensors of job and iteration
are their destructors.
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

_ENDLESS = 1 << 62
_UNKNOWN = -2  # tf.data.UNKNOWN_CARDINALITY
# How the plan begins to say why cache() cannot do its work (service/graph/split, cache.go).
_NOT_CACHED = "cache() does nothing here"
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
    """A dataset that reads a registered one.

    Args:
        session: The service.
        dataset_id: Which dataset.
        element_spec: Structure of the elements that come back.
        specs: The plain tensors that they travel as.
        options: How to read.
        cardinality: tf.data's cardinality of the registered dataset, None where it is not at hand.
        graph: The dataset itself, for a service that may forget it; None where it does not, or it is not at hand.
    """
    request = {
        "dataset_id": dataset_id,
        "job_name": options.job_name or "",
        **graphs.mode(options),
        "sharding": options.sharding,
        "seed": options.seed,
        "compression": options.compression,
        "protocol": options.protocol,
        "max_outstanding_bytes": _outstanding(options, specs),
        "max_element_bytes": options.max_element_bytes or 0,
        "payload_checksum": options.payload_checksum,
        "order": options.order,
        "order_tolerance": options.order_tolerance,
        "timeout_s": options.outage_timeout_s,
        "components": structure.components_json(specs),
    }
    if graph is None or not graph.kept:
        job = session.create_job(request, None, b"")
    else:
        job = session.create_job(request, graphs.header(graph, options.compression, dataset_id), graph.data)
    _announce(session, job, options)
    loaded = native.load()
    loaded.watch_interrupts()
    try:
        with tf.device("CPU:0"):
            tensor = loaded.ops.pecan_job(handle=job["handle"])
    except BaseException:
        loaded.call("ForgetJob", job["handle"])
        raise
    result = _elements(loaded.ops, tensor, specs, blocks=job["blocks"])
    shape = structure.Structure(element_spec)
    if shape.composite:
        result = result.map(lambda *tensors: shape.put_together(tensors))
    result = _with_structure(result, element_spec)
    result = _with_cardinality(result, _agreed(job["cardinality"], cardinality, whole=job["whole"]))
    settings = tf.data.Options()
    # Sharding it again would drop elements: each trainer of a job has its share already.
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # An iterator waits for its autotuning thread when it is deleted. That thread may miss its only wake-up, which comes
    # before what it looks at is set, and then sleeps on for as long as the iterator is old, a minute at most.
    settings.autotune.enabled = False
    if any(spec.dtype == tf.dtypes.experimental.float8_e5m2 for spec in specs):
        # TensorFlow's optimizers fail for any pipeline with this dtype in it.
        settings.experimental_optimization.apply_default_optimizations = False
    result = result.with_options(settings)
    resume.remember(result, job["handle"])
    return result


def _announce(session: Session, job: dict[str, Any], options: ReadOptions) -> None:
    """Says in the trainer's log what is promised, and loudly where that is less than what was asked for."""
    plan = job["plan"]
    name = options.job_name or job["job_id"]
    # What every worker gives in whole runs as it is written.
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
        if why.startswith(_NOT_CACHED):
            _log.warning("%s: job %s: pecan.%s", session.target, name, why)
    if job["requested_mode"]:
        why = next((text for text in plan["reasons"] if text.startswith("The job runs in mode")), "")
        _log.warning(
            "%s: job %s runs in mode %s and not %s: %s", session.target, name, job["mode"], job["requested_mode"], why
        )


def _outstanding(options: ReadOptions, specs: tuple[tf.TensorSpec, ...]) -> int:
    if options.max_outstanding_requests is None:
        return options.max_outstanding_bytes
    if any(spec.dtype == tf.string or not spec.shape.is_fully_defined() for spec in specs):
        return options.max_outstanding_bytes
    size = sum(spec.dtype.size * math.prod(spec.shape.as_list()) for spec in specs)
    return max(1, min(options.max_outstanding_bytes, options.max_outstanding_requests * max(1, int(size))))


def _elements(ops: Any, job: tf.Tensor, specs: tuple[tf.TensorSpec, ...], *, blocks: bool) -> tf.data.Dataset:
    """The elements as tuples of plain tensors."""
    types = [spec.dtype for spec in specs]
    batched = [tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype) for spec in specs]
    position = tf.TensorSpec([], tf.int64)

    def open_iteration(job: tf.Tensor) -> tf.Tensor:
        token = ops.pecan_open(job=job)
        token.set_shape([1])
        positions = tf.data.Dataset.range(_ENDLESS)

        def rows(position: tf.Tensor) -> list[tf.Tensor]:
            tensors: list[tf.Tensor] = ops.pecan_next_block(token=token, position=position, output_types=types)
            return tensors

        def element(position: tf.Tensor) -> list[tf.Tensor]:
            answer = ops.pecan_next(token=token, position=position, output_types=types)
            return [answer.ready, *answer.components]

        if blocks:
            inner = _map(positions, _function(rows, (position,)), batched)
            # The public unbatch puts a map before it that takes apart what is no plain tensor.
            apart = tf.raw_ops.UnbatchDataset(input_dataset=tf.data.experimental.to_variant(inner), **_output(specs))
            inner = tf.data.experimental.from_variant(apart, specs)
        else:
            # The last two steps only pick components, which tf.data does without calling a function.
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

    opened = _function(open_iteration, (tf.TensorSpec(job.shape, job.dtype),))
    elements = tf.raw_ops.FlatMapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(job)),
        other_arguments=opened.captured_inputs,
        f=opened,
        **_output(specs),
    )
    return tf.data.experimental.from_variant(elements, specs)


def _function(python_function: Any, signature: tuple[tf.TensorSpec, ...]) -> Any:
    """A function for a dataset's step, which TensorFlow makes ready in a fraction of the usual time.

    What it would look for at every `iter()` of a step (several devices, something to optimize) is not in ours.
    """
    attributes = {"_tf_data_function": True, "experimental_ints_on_device": True}
    return tf.function(
        python_function, input_signature=signature, autograph=False, experimental_attributes=attributes
    ).get_concrete_function()


def _map(dataset: tf.data.Dataset, function: Any, specs: Any) -> tf.data.Dataset:
    """A map whose function ends the dataset by failing with OUT_OF_RANGE, and runs on the caller's thread.

    The public map turns that error into another one. On the caller's thread, because a function that waits for an
    element would hold one of the few threads on which all of TensorFlow's work runs.
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
    """What a dataset operation is told of its elements; `pecan` names it in errors."""
    return {
        "output_types": [spec.dtype for spec in specs],
        "output_shapes": [spec.shape for spec in specs],
        "metadata": _METADATA,
    }


def _with_structure(dataset: tf.data.Dataset, element_spec: Any) -> tf.data.Dataset:
    """The same elements with the very structure that the user's dataset has."""
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(dataset), element_spec)


def _agreed(planned: int, local: int | None, *, whole: bool) -> int:
    """The cardinality that plan and TensorFlow both know, or tf.data's UNKNOWN.

    TensorFlow knows more than the plan where it looks into files (`load`). An iteration that is whole gives as many
    elements as a local one, so its word is taken where the plan has none.
    """
    if local is None or local == planned:
        return planned
    return local if whole and planned == _UNKNOWN and local >= tf.data.INFINITE_CARDINALITY else _UNKNOWN


def _with_cardinality(dataset: tf.data.Dataset, cardinality: int) -> tf.data.Dataset:
    """The same elements with a known cardinality.

    Not by assert_cardinality: elements whose map fails count in tf.data's cardinality, and who ignores such errors
    would at the end be given another one for ever. An endless repetition of nothing counts as infinite, and so does
    what it is appended to; it ends at once all the same.
    """
    if cardinality == _UNKNOWN:
        return dataset
    nothing = dataset.take(0).filter(lambda *_: False).repeat()
    endless = dataset.concatenate(nothing)
    return endless if cardinality == tf.data.INFINITE_CARDINALITY else endless.take(cardinality)
