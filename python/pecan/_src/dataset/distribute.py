"""`distribute()`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan._src import checks, errors, options, workers

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
    local_worker_nice: int | None = None,
    max_outstanding_bytes: int = options.DEFAULT_MAX_OUTSTANDING_BYTES,
    max_element_bytes: int | None = None,
    payload_checksum: bool = False,
    dispatcher_timeout_s: float | None = None,
    seed: int | None = None,
    order: str = options.DEFAULT_ORDER,
    order_tolerance: str | None = None,
    cache: str = options.DEFAULT_CACHE,
    streams: int | str = "auto",
    objective: str | None = None,
    budget_per_hour: float | None = None,
    worker_limits: dict[str, tuple[int, int | None]] | None = None,
    trainer_type: str = "",
    weight: float = 1.0,
    tenant: str = options.DEFAULT_TENANT,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Runs a dataset on Pecan's workers.

    Steps before `distribute()` run on workers. Steps after it run in this process. The resulting dataset has the same
    elements and batches, each once per epoch, and works wherever a `tf.data.Dataset` does.

    While one epoch is read, the service opens the next one, and each worker computes one element of it. A pipeline with
    a `shuffle` therefore fills its shuffle buffer ahead of time. Workers do this even if nobody reads the next epoch.

    With `order="auto"`, Pecan runs the steps in the cheapest order that gives equal elements within `order_tolerance`.
    This follows Graur et al., "Pecan: Cost-Efficient ML Data Preprocessing with Automatic Transformation Ordering and
    Hybrid Placement" (USENIX ATC 2024). `order="paper"` is the published algorithm.

    Example:
        >>> dataset = dataset.apply(pecan.distribute())                # a private cluster on this host
        >>> dataset = dataset.apply(pecan.distribute("host:5050"))     # a running service

    Args:
        service: Address of the dispatcher, "host:port" or "pecan://host:port". None starts a private dispatcher and
            workers on this host. All datasets of the process share them, and they stop when the process ends.
        *positional: Only for calls written for tf.data service: `distribute(processing_mode, service)`.
        processing_mode: A `ShardingPolicy` (Pecan's or TensorFlow's), "parallel_epochs" (OFF) or "distributed_epoch"
            (DYNAMIC). Or a guarantee: "exactly_once" (the default), "deterministic", "at_least_once", "at_most_once"
            or "off".
        job_name: Name of the job. Trainers that give the same name share the job: each element goes to one of them.
            None creates a job of its own.
        consumer_index: Reserved for coordinated reads, which Pecan does not support yet.
        num_consumers: Reserved for coordinated reads, which Pecan does not support yet.
        max_outstanding_requests: Most elements that one iterator has requested and not yet returned. None sets no
            such bound. `max_outstanding_bytes` always applies; it is the only bound if an element's size is unknown.
        data_transfer_protocol: "auto" uses shared memory for workers on this host and TCP for others. "tcp" and "shm"
            force one of them.
        compression: "auto" compresses if measurements show a gain, and never on one host. "snappy" always
            compresses. None never does.
        cross_trainer_cache: Reserved; Pecan does not support it yet.
        target_workers: "AUTO" or "ANY": all workers may serve the job. "LOCAL": only workers on this host. Raises if
            there is none and none may be started.
        sharding: A `ShardingPolicy`, for calls whose `processing_mode` is a guarantee.
        deterministic: Returns the same elements in the same order for the same dataset and seed. The number of workers
            and their failures change nothing.
        allow_nondeterministic: Accepts a dataset that cannot keep the guarantee of its mode, and runs it in a weaker
            mode with a warning in the log. Nondeterministic values weaken "deterministic" to "exactly_once";
            a nondeterministic set of elements weakens the mode to "at_least_once". If False, such a dataset raises.
        local_workers: Workers that this process starts on its host, 0 to 1024. They serve only jobs that this process
            reads, and end with it. All its datasets that read from one service share them. A number starts at least
            that many; with an `objective`, the service decides how many of them serve. "auto" with an `objective`
            starts as many as the service wants, at most one per two cores and 8. "auto" without one starts none for a
            service. A private cluster begins with one per four cores. It adds workers while the trainer waits for
            elements, and stops those that the trainer does not need.
        local_worker_nice: What is added to the nice value of local workers, 0 to 19: the threads of this process come
            first. A running worker keeps its value if a later one is smaller. If it is not 0, they also get a cgroup
            with a tenth of the usual weight, where permitted. None adds 10; in a private cluster without an
            `objective` it adds nothing.
        max_outstanding_bytes: Bytes of memory that one iterator uses for elements that it has requested and not yet
            returned.
        max_element_bytes: Size of the largest accepted element in bytes. None means 2 GiB, which is also the maximum.
        payload_checksum: Verifies the bytes of elements that travel between hosts, which halves the speed. Headers are
            always verified.
        dispatcher_timeout_s: Seconds without the dispatcher after which a call fails. An iterator fails after the same
            time if the dispatcher is unreachable, no worker is registered, or no worker is reachable; a later
            `next()` tries again. Slow elements never cause a timeout. None means 10 s for calls and 60 s for
            iterators, enough to restart a server. In the private cluster, an iterator waits at least 60 s.
        seed: Seed of 64 bits for random steps, which combine it with the epoch and the stream. None lets the service
            choose one per job.
        order: How the order of the steps is chosen. "auto" (the default) moves maps and filters if measurements of the
            running job predict less CPU. An example: a crop before expensive work on every pixel. A worker first runs a
            sample of elements in both orders. The new order must be significantly faster and its elements equal
            within `order_tolerance`. Such trials use at most 2 % of the job's CPU, as far as its length is known or
            expected from earlier jobs. "off" runs the steps as written. "paper" orders them by how much they shrink or
            enlarge elements, as published, for comparison; "paper_unguarded" does so without a trial. The elements,
            their number and their sequence never change. `keep_position` pins a step, and `explain` shows what moved
            and why.
        order_tolerance: Largest accepted difference between the values of the two orders. "approximate" (the default)
            accepts 1 for integers, 2 % for float16 and bfloat16, and 0.1 % for float32 and float64. Percentages refer
            to the range of the component in the sample. "exact" accepts no difference in any bit. It is the default
            in deterministic mode, so that two runs give the same bytes. "any" accepts and records every difference;
            order="paper" implies "any". None takes the default of the mode.
        cache: Which steps may be cached. "candidates" (the default): those that `cache_candidate` marks. "auto": also
            those that the service finds, and the end of the pipeline. "paper": also the step after the source and the
            end of the pipeline, as Graur et al. published it ("Cachew", USENIX ATC 2022), for comparison. "off": none,
            and `pecan.cache` passes elements on. It never changes an element. The service decides by measurements
            which of them is cached, if any; the log and `explain` say why. With `pecan.cache`, nothing is decided.
        streams: Number of streams into which the dataset is divided. "auto" (the default) follows the data: each
            stream has enough work to be worth opening, and there are never more streams than the source has splits.
            A number overrides that, up to the number of splits. The number of workers does not change it. `explain`
            shows the number and what limits it.
        objective: What the service minimises when it chooses how many of its workers serve the job. "cost": the price
            of an element. "time": the time between two elements. "budget": the time, below a price per hour. Prices are
            in the dispatcher's table (`--prices`); without one, "cost" and "time" both mean full speed with few
            workers. None (the default) lets all workers of a service serve the job. In a private cluster with
            `local_workers="auto"` it means "cost". An objective needs ShardingPolicy.DYNAMIC or no policy; a private
            cluster keeps its number of workers with another policy. See `local_workers` for what this process starts.
        budget_per_hour: With objective="budget", the most that an hour of the job may cost, with its trainers.
        worker_limits: Least and greatest number of workers of each kind, such as `{"remote": (1, 8), "local": (0, 2)}`.
            None as a maximum means no limit. The search uses no more workers than exist or may be started.
        trainer_type: Machine of the trainer in the table of prices: its type, such as "v2-8", with "@ZONE" and ":spot"
            where they apply. Later jobs with the same dataset and `trainer_type` begin with the numbers that this job
            finds.
        weight: The job's part of the service's slots, from 0.01 to 100. While streams of several jobs wait for a slot,
            a job of weight 3 runs three times as many streams as one of weight 1. The iterators of one job share its
            part. Jobs of different tenants do not compare weights.
        tenant: Who the job belongs to: 1 to 63 lower-case letters, digits, dots, underscores or hyphens. Slots are
            divided among tenants first, and then among the jobs of each. The dispatcher's table (`--tenants`) can give
            tenants weights and quotas, and then refuses jobs of other tenants.

    Returns:
        A function for `tf.data.Dataset.apply`.

    Raises:
        PecanError: Immediately for invalid arguments. When the function is applied, for datasets that workers cannot
            run and for unreachable services. Each error is also of a built-in class (`ValueError`, `TypeError`,
            `NotImplementedError`, `ConnectionError`, ...).
    """
    service, processing_mode = _arguments(service, positional, processing_mode)
    chosen = options.from_parameters(locals())
    target = None if service is None else checks.service_target(service)

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        from pecan._src.dataset import graph as graphs
        from pecan._src.dataset import reader

        graph = graphs.serialize(dataset, "distribute()", chosen)
        session = open_session(target, chosen.dispatcher_timeout_s, chosen.local_workers)
        dataset_id = graphs.register(session, graph, chosen.compression, None)
        if target is not None:
            return reader.read(
                session,
                dataset_id,
                dataset.element_spec,
                graph.specs,
                chosen,
                graph.cardinality,
                graph,
            )
        # Nothing restarts a private dispatcher. After its death its readers fail, and the next call starts a new
        # cluster, so its readers need no copy of the graph.
        timeout = max(chosen.outage_timeout_s, options.DEFAULT_OUTAGE_TIMEOUT_S)
        patient = dataclasses.replace(chosen, outage_timeout_s=timeout)
        return reader.read(
            session,
            dataset_id,
            dataset.element_spec,
            graph.specs,
            patient,
            graph.cardinality,
            dataclasses.replace(graph, keep=False),
        )

    # serialize() refuses calls inside a tf.function. AutoGraph must not rewrite the function before that.
    apply.autograph_info__ = None  # type: ignore[attr-defined]
    return apply


def _arguments(service: Any, positional: tuple[Any, ...], processing_mode: Any) -> tuple[Any, Any]:
    """Returns (service, processing mode). Also accepts the argument order of tf.data service."""
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
            "distribute(processing_mode, service, ...) accepts positional arguments only up to the service: give the "
            "others by name"
        )
    return (positional[0] if positional else None), service


def open_session(
    target: str | None, timeout_s: float, local: workers.LocalWorkers = workers.NO_LOCAL_WORKERS
) -> Session:
    """Returns the session with a service, or with the private cluster if `target` is None. Starts local workers."""
    from pecan._src.client import native, session
    from pecan._src.servers import local_workers, private_cluster

    native.load()  # raises in a forked child, before any process is started there
    if target is not None:
        link = session.connect(target, timeout_s)
        if local.starts:
            own = local_workers.of_service(target)
            own.keep(local.number or 0, local.nice)
            if local.decided:
                own.follow(link)
        return link
    cluster = private_cluster.cluster()
    usual = private_cluster.default_workers()
    if local.decided:
        # One stays whatever the dispatcher decides: without any, it could not know that they have a cache directory.
        cluster.workers.keep(1, local.nice, begin=min(usual, local.most or usual))
    else:
        cluster.workers.keep(usual if local.number is None else local.number, local.nice)
    cluster.check()
    link = session.connect(cluster.target, timeout_s)
    if local.decided:
        cluster.workers.follow(link)
    return link
