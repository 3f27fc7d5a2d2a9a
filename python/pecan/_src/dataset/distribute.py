"""`distribute()`, `register_dataset()` and `from_dataset_id()`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan._src import checks, errors, options

if TYPE_CHECKING:
    import tensorflow as tf

    from pecan._src.client.session import Session

_USAGE = 'dataset.apply(pecan.distribute()) or dataset.apply(pecan.distribute("host:port"))'


def distribute(
    service: Any = None,
    *positional: Any,
    processing_mode: Any = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = "auto",
    compression: str | None = "auto",
    cross_trainer_cache: Any = None,
    target_workers: str = "AUTO",
    sharding: Any = None,
    deterministic: bool = False,
    allow_nondeterministic: bool = False,
    local_workers: int | str = "auto",
    max_outstanding_bytes: int = options.DEFAULT_MAX_OUTSTANDING_BYTES,
    max_element_bytes: int | None = None,
    payload_checksum: bool = False,
    dispatcher_timeout_s: float | None = None,
    seed: int | None = None,
    order: str = options.DEFAULT_ORDER,
    order_tolerance: str | None = None,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Lets Pecan's workers run a dataset.

    Everything before it runs on workers, everything after it in this process. The dataset that comes back has the same
    elements and batches, each once per epoch, and works wherever a `tf.data.Dataset` does.

    The next epoch is opened while one is being read, and each worker makes one element of it, wanted or not. Where the
    pipeline has a `shuffle` that fills its buffer: the first element comes out of a full one.

    With `order="auto"` Pecan runs the steps in the order that costs least, as far as that changes nothing that matters.
    The idea, and the order "paper", are those of Graur et al., "Pecan: Cost-Efficient ML Data Preprocessing with
    Automatic Transformation Ordering and Hybrid Placement" (USENIX ATC 2024).

    Example:
        >>> dataset = dataset.apply(pecan.distribute())                # a private cluster beside this process
        >>> dataset = dataset.apply(pecan.distribute("host:5050"))     # a running service

    Args:
        service: The dispatcher, "host:port" or "pecan://host:port". None starts a private dispatcher and workers on
            this host, shared by all datasets of the process, and ends them with it.
        *positional: For calls written for tf.data service only, `distribute(processing_mode, service)`.
        processing_mode: A `ShardingPolicy` (Pecan's or TensorFlow's), "parallel_epochs" (OFF) or "distributed_epoch"
            (DYNAMIC); or what is promised: "exactly_once" (the default), "deterministic", "at_least_once",
            "at_most_once", "off".
        job_name: Trainers that give the same name share the job: each element goes to one of them.
        consumer_index: For coordinated reads, which are not offered yet.
        num_consumers: For coordinated reads, which are not offered yet.
        max_outstanding_requests: How many elements may be asked for and not yet taken; None leaves it to
            `max_outstanding_bytes`, which bounds them in any case and alone where an element's size is not known.
        data_transfer_protocol: "auto" is shared memory from workers on this host and TCP from others; "tcp" or "shm".
        compression: "auto" compresses where measurement says it pays, never on one host; "snappy" always; None never.
        cross_trainer_cache: Not offered yet.
        target_workers: "AUTO" or "ANY": all workers are read. "LOCAL" is not offered.
        sharding: A `ShardingPolicy`, for those who give their promise as `processing_mode`.
        deterministic: Gives the same elements in the same order for the same dataset and seed, whatever the number of
            workers and whichever fails.
        allow_nondeterministic: Reads a dataset that cannot keep the promise of the mode in a weaker one, and says so in
            the log, instead of refusing it: values that nothing decides go from "deterministic" to "exactly_once", and
            elements that nothing decides to "at_least_once".
        local_workers: How many workers the private cluster has at least; "auto" goes by the host's cores.
        max_outstanding_bytes: Memory that one iterator uses for elements that are under way or wait to be taken.
        max_element_bytes: Largest element accepted; None for 2 GiB.
        payload_checksum: Checks the bytes of elements between hosts, for half of the speed; headers always are.
        dispatcher_timeout_s: How long, in seconds, the dispatcher may be out of reach before calls fail, and how long
            an iterator waits before it fails where the dispatcher is away, no worker is registered, or none can be
            reached. It may be asked again then. However long a worker takes for an element is no failure. None is
            10 s for calls and a minute for iterators, in which servers can be started anew; the private cluster has
            that minute in any case.
        seed: Random steps draw from seeds made of this one, the epoch and the stream; None chooses one per job.
        order: Who decides in which order the steps run. "auto" (the default): what they cost, as measured
            while the job runs: maps and filters move where that saves CPU, as a crop does before costly work on every
            pixel. Before anything changes a worker runs a sample of elements both ways, for 2 % at most of the CPU
            that an epoch takes (or of what was spent so far, where epochs are short), and the new order has to be
            faster for certain and the elements equal enough. "off": you do, as written. "paper": by how much
            steps make elements smaller or larger, as published; for comparison. Which elements there are, their number
            and their sequence never change. `keep_position` holds a step, and `explain` tells what moved and why.
        order_tolerance: How far the values of elements may differ in another order. "approximate" (the default, also
            as None): integers by 1, float16 and bfloat16 by 2 %, float32 and float64 by 0.1 % of the range that
            the component has in the sample, for each of its values. "exact" (the default in deterministic mode, so that
            two runs give the same bytes however long measuring took): not at all, to the last bit. "any": as may be,
            and the difference is recorded; order="paper" implies it.

    Returns:
        A function for `dataset.apply`.

    Raises:
        PecanError: At once, for arguments that cannot be right; when it is applied, for datasets that cannot be
            distributed and services that cannot be reached. Each is a builtin kind of error as well (`ValueError`,
            `TypeError`, `NotImplementedError`, `ConnectionError`, ...).
    """
    service, processing_mode = _arguments(service, positional, processing_mode)
    chosen = options.read_options(
        processing_mode=processing_mode,
        sharding=sharding,
        deterministic=deterministic,
        allow_nondeterministic=allow_nondeterministic,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression=compression,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        max_outstanding_bytes=max_outstanding_bytes,
        max_element_bytes=max_element_bytes,
        payload_checksum=payload_checksum,
        dispatcher_timeout_s=dispatcher_timeout_s,
        seed=seed,
        order=order,
        order_tolerance=order_tolerance,
    )
    target = None if service is None else checks.service_target(service)
    workers = options.local_workers(local_workers)
    if target is not None and workers is not None:
        raise errors.InvalidArgumentError(
            f"`local_workers`={workers} is for the private cluster, and `service`={service!r} names a running one: "
            "leave one of them out"
        )

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        from pecan._src.dataset import graph as graphs
        from pecan._src.dataset import reader

        graph = graphs.serialize(dataset, "distribute()", chosen)
        session = _session(target, workers, chosen.dispatcher_timeout_s)
        dataset_id = graphs.register(session, graph, chosen.compression, None)
        # A private dispatcher is not restarted: when it ends, what reads from it fails, and a new cluster is made.
        reading, kept = chosen, None if target is None else graph
        if target is None:
            patience = max(chosen.outage_timeout_s, options.DEFAULT_OUTAGE_TIMEOUT_S)
            reading = dataclasses.replace(chosen, outage_timeout_s=patience)
        return reader.read(session, dataset_id, dataset.element_spec, graph.specs, reading, graph.cardinality, kept)

    # Inside a tf.function this is refused, and shall not be rewritten by AutoGraph first.
    apply.autograph_info__ = None  # type: ignore[attr-defined]
    return apply


def _arguments(service: Any, positional: tuple[Any, ...], processing_mode: Any) -> tuple[Any, Any]:
    """Sorts the positional arguments, among them tf.data service's order."""
    if type(service).__module__.startswith("tensorflow.") and hasattr(service, "element_spec"):
        raise errors.InvalidTypeError(f"distribute() takes the service, not the dataset: write {_USAGE}")
    if options.as_policy(service) is None:
        if positional:
            raise errors.InvalidTypeError(
                f"distribute() takes the service as its only positional argument, got {1 + len(positional)}: give the "
                f"others by name, as in {_USAGE}"
            )
        if isinstance(service, str) and service in options.GUARANTEES:
            raise errors.InvalidArgumentError(
                f"{service!r} is a processing mode, not a service: write processing_mode={service!r}"
            )
        return service, processing_mode
    if processing_mode is not None:
        raise errors.InvalidTypeError(
            f"distribute() got the processing mode twice, {service!r} and {processing_mode!r}: give the service first, "
            "and processing_mode by name"
        )
    if len(positional) > 1:
        raise errors.InvalidTypeError(
            "distribute(processing_mode, service, ...) is taken as tf.data service takes it up to the service: give "
            "what follows by name"
        )
    return (positional[0] if positional else None), service


def _session(target: str | None, workers: int | None, timeout_s: float) -> Session:
    from pecan._src.client import native, session
    from pecan._src.servers import private_cluster

    native.load()  # refuses in a forked child, before anything is started there
    if target is not None:
        return session.connect(target, timeout_s)
    cluster = private_cluster.cluster(workers)
    cluster.check()
    return session.connect(cluster.target, timeout_s)


def register_dataset(
    service: Any,
    dataset: tf.data.Dataset,
    compression: str | None = "auto",
    dataset_id: str | None = None,
    *,
    dispatcher_timeout_s: float | None = None,
) -> tf.Tensor:
    """Stores a dataset at a service, to be read by its id with `from_dataset_id`.

    Equal datasets are stored once and get one id, unless you choose it.

    Args:
        service: The dispatcher, "host:port" or "pecan://host:port".
        dataset: What to store.
        compression: As in `distribute`; who reads the dataset gets it unless they say otherwise.
        dataset_id: The id; None takes the dataset's fingerprint.
        dispatcher_timeout_s: How long, in seconds, the dispatcher may be out of reach; None is 10 s.

    Returns:
        The id, as a scalar string tensor.

    Raises:
        PecanError: As `distribute`; a `JobMismatchError` if another dataset has that id.
    """
    target = checks.service_target(service)
    word = options.compression_word(compression)
    timeout, _ = options.timeouts(dispatcher_timeout_s)
    if dataset_id is not None and not isinstance(dataset_id, (str, bytes)):
        raise errors.InvalidTypeError(
            f"`dataset_id` must be a string, got {dataset_id!r} of type {type(dataset_id).__name__}"
        )
    wanted = checks.dataset_id(dataset_id)

    import tensorflow as tf

    from pecan._src.dataset import graph as graphs

    graph = graphs.serialize(dataset, "register_dataset()")
    return tf.constant(graphs.register(_session(target, None, timeout), graph, word, wanted))


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
) -> tf.data.Dataset:
    """A dataset that reads a registered one.

    Args:
        processing_mode: As in `distribute`; None is "exactly_once".
        service: The dispatcher, "host:port" or "pecan://host:port".
        dataset_id: What `register_dataset` gave, a string or a tensor.
        element_spec: Structure of the elements; None asks the service for the one that was registered.
        job_name: As in `distribute`.
        consumer_index: As in `distribute`.
        num_consumers: As in `distribute`.
        max_outstanding_requests: As in `distribute`.
        data_transfer_protocol: As in `distribute`.
        cross_trainer_cache: As in `distribute`.
        target_workers: As in `distribute`.
        compression: As in `distribute`; "auto" takes what was given at the registration.
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

    Returns:
        The dataset.

    Raises:
        PecanError: As `distribute`; a `NotFoundError` if no dataset has that id, an `InvalidGraphError` if
            `element_spec` is not the dataset's.
    """
    chosen = options.read_options(
        processing_mode=processing_mode,
        sharding=sharding,
        deterministic=deterministic,
        allow_nondeterministic=allow_nondeterministic,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression=compression,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        max_outstanding_bytes=max_outstanding_bytes,
        max_element_bytes=max_element_bytes,
        payload_checksum=payload_checksum,
        dispatcher_timeout_s=dispatcher_timeout_s,
        seed=seed,
        order=order,
        order_tolerance=order_tolerance,
    )
    target = checks.service_target(service)

    import tensorflow as tf

    from pecan._src.dataset import reader, structure

    if not tf.executing_eagerly():
        raise errors.InvalidArgumentError(
            "from_dataset_id() was called inside a tf.function or with eager execution off: call it outside, and hand "
            "the dataset that it gives to the function"
        )
    wanted = checks.dataset_id(dataset_id)
    if wanted is None:
        raise errors.InvalidTypeError("`dataset_id` must be given")
    structure.check_spec(element_spec)
    session = _session(target, None, chosen.dispatcher_timeout_s)
    given = None if element_spec is None else structure.components_json(structure.Structure(element_spec).flat)
    known = session.dataset(wanted, given)
    if element_spec is None:
        if not known["element_spec"]:
            raise errors.InvalidArgumentError(
                f"the element spec of dataset {wanted!r} was not registered, since its structure has classes of your "
                "own: give element_spec=dataset.element_spec"
            )
        element_spec = structure.decode_spec(known["element_spec"])
    specs = tuple(structure.Structure(element_spec).flat)
    if chosen.compression == "auto" and known["compression"]:
        chosen = dataclasses.replace(chosen, compression=known["compression"])
    return reader.read(session, wanted, element_spec, specs, chosen, None)
