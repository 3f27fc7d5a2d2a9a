"""`register_dataset()` and `from_dataset_id()`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pecan._src import checks, errors, options
from pecan._src.dataset.distribute import open_session

if TYPE_CHECKING:
    import tensorflow as tf


def register_dataset(
    service: Any,
    dataset: tf.data.Dataset,
    compression: str | None = "auto",
    dataset_id: str | None = None,
    *,
    dispatcher_timeout_s: float | None = None,
) -> tf.Tensor:
    """Registers a dataset at a service. `from_dataset_id` reads it by its id.

    The service stores equal datasets once, under one id, unless you choose the id.

    Args:
        service: Address of the dispatcher, "host:port" or "pecan://host:port".
        dataset: The dataset.
        compression: Default for readers of the dataset, as in `distribute`.
        dataset_id: The id: 1 to 128 letters, digits, dots, underscores or hyphens. None takes the dataset's
            fingerprint.
        dispatcher_timeout_s: Seconds without the dispatcher after which the call fails; None means 10 s.

    Returns:
        The id, a scalar tensor of dtype `tf.string`.

    Raises:
        PecanError: As in `distribute`.
        JobMismatchError: If another dataset has that id.
    """
    target = checks.service_target(service)
    default_compression = options.compression_name(compression)
    timeout, _ = options.timeouts(dispatcher_timeout_s)
    if dataset_id is not None and not isinstance(dataset_id, (str, bytes)):
        raise errors.InvalidTypeError(
            f"`dataset_id` must be a string, got {dataset_id!r} of type {type(dataset_id).__name__}"
        )
    wanted = checks.dataset_id(dataset_id)

    import tensorflow as tf

    from pecan._src.dataset import graph as graphs

    graph = graphs.serialize(dataset, "register_dataset()")
    return tf.constant(graphs.register(open_session(target, timeout), graph, default_compression, wanted))


def from_dataset_id(
    processing_mode: Any,
    service: Any,
    dataset_id: Any,
    element_spec: Any = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = "auto",
    cross_trainer_cache: Any = None,
    target_workers: str = "AUTO",
    *,
    compression: str | None = "auto",
    sharding: Any = None,
    deterministic: bool = False,
    allow_nondeterministic: bool = False,
    max_outstanding_bytes: int = options.DEFAULT_MAX_OUTSTANDING_BYTES,
    max_element_bytes: int | None = None,
    payload_checksum: bool = False,
    dispatcher_timeout_s: float | None = None,
    seed: int | None = None,
    order: str = options.DEFAULT_ORDER,
    order_tolerance: str | None = None,
    cache: str = options.DEFAULT_CACHE,
    streams: int | str = "auto",
    local_workers: int | str = "auto",
    local_worker_nice: int | None = None,
    objective: str | None = None,
    budget_per_hour: float | None = None,
    worker_limits: dict[str, tuple[int, int | None]] | None = None,
    trainer_type: str = "",
    weight: float = 1.0,
    tenant: str = options.DEFAULT_TENANT,
) -> tf.data.Dataset:
    """Returns a dataset that reads a registered dataset.

    Args:
        processing_mode: As in `distribute`; None means "exactly_once".
        service: Address of the dispatcher, "host:port" or "pecan://host:port".
        dataset_id: The id from `register_dataset`, a string or a scalar string tensor.
        element_spec: Structure of the elements; None takes the registered one from the service.
        job_name: As in `distribute`.
        consumer_index: As in `distribute`.
        num_consumers: As in `distribute`.
        max_outstanding_requests: As in `distribute`.
        data_transfer_protocol: As in `distribute`.
        cross_trainer_cache: As in `distribute`.
        target_workers: As in `distribute`.
        compression: As in `distribute`; "auto" takes the value given to `register_dataset`.
        sharding: As in `distribute`.
        deterministic: As in `distribute`.
        allow_nondeterministic: As in `distribute`.
        max_outstanding_bytes: As in `distribute`.
        max_element_bytes: As in `distribute`.
        payload_checksum: As in `distribute`.
        dispatcher_timeout_s: As in `distribute`.
        seed: As in `distribute`.
        order: As in `distribute`.
        order_tolerance: As in `distribute`.
        cache: As in `distribute`.
        streams: As in `distribute`.
        local_workers: As in `distribute`.
        local_worker_nice: As in `distribute`.
        objective: As in `distribute`.
        budget_per_hour: As in `distribute`.
        worker_limits: As in `distribute`.
        trainer_type: As in `distribute`.
        weight: As in `distribute`.
        tenant: As in `distribute`.

    Returns:
        The dataset.

    Raises:
        PecanError: As in `distribute`.
        NotFoundError: If no dataset has that id.
        InvalidGraphError: If `element_spec` does not match the dataset.
    """
    chosen = options.from_parameters(locals())
    target = checks.service_target(service)

    import tensorflow as tf

    from pecan._src.dataset import reader, structure

    if not tf.executing_eagerly():
        raise errors.InvalidArgumentError(
            "from_dataset_id() was called inside a tf.function or with eager execution off: call it outside, and pass "
            "the dataset to the function"
        )
    wanted = checks.dataset_id(dataset_id)
    if wanted is None:
        raise errors.InvalidTypeError("`dataset_id` must be given")
    structure.check_spec(element_spec)
    session = open_session(target, chosen.dispatcher_timeout_s, chosen.local_workers)
    given = None if element_spec is None else structure.components_json(structure.Structure(element_spec).flat)
    known = session.dataset(wanted, given)
    if element_spec is None:
        if not known["element_spec"]:
            raise errors.InvalidArgumentError(
                f"dataset {wanted!r} was registered without its element spec, because its structure has user-defined "
                "classes: give element_spec=dataset.element_spec"
            )
        element_spec = structure.decode_spec(known["element_spec"])
    specs = tuple(structure.Structure(element_spec).flat)
    if chosen.compression == "auto" and known["compression"]:
        chosen = dataclasses.replace(chosen, compression=known["compression"])
    return reader.read(session, wanted, element_spec, specs, chosen, None)
