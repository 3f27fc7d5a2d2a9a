"""`pecan.explain`: asks the dispatcher for its decisions on a job, and their reasons."""

from __future__ import annotations

from typing import Any

from pecan._src import checks, errors, options
from pecan._src.explain import explanation, response


def explain(
    dataset_or_job: Any,
    service: Any = None,
    *,
    dispatcher_timeout_s: float | None = None,
) -> explanation.Explanation:
    """Explains what was decided for a job: the order of its steps, its workers, and which steps may be cached.

    Args:
        dataset_or_job: A dataset from `distribute()`, a dataset built on one, or the name or id of a job.
        service: Address of the job's dispatcher, "host:port" or "pecan://host:port". None means the private cluster of
            this process. Only with a job's name or id: a dataset knows its dispatcher.
        dispatcher_timeout_s: Seconds without the dispatcher after which the call fails; None means 10 s. Only with a
            job's name or id.

    Returns:
        An explanation. `print()` shows it as text, a notebook as tables.

    Raises:
        PecanError: If the job does not exist (also a `LookupError`), for invalid arguments, and if the service is
            unreachable.

    Example:
        >>> print(pecan.explain(dataset))
        >>> pecan.explain(dataset).placement.candidates
        >>> pecan.explain(dataset).cache.candidates
        >>> pecan.explain("train", "host:5050").moved
    """
    if not isinstance(dataset_or_job, str):
        return response.from_json(_of_dataset(dataset_or_job, service, dispatcher_timeout_s))
    name = checks.name("job_name", dataset_or_job)
    timeout, _ = options.timeouts(dispatcher_timeout_s)
    from pecan._src.client import session
    from pecan._src.servers import private_cluster

    if service is not None:
        target = checks.service_target(service)
    else:
        cluster = private_cluster.running()
        if cluster is None:
            raise errors.InvalidArgumentError(
                f"explain({name!r}) needs the address of the job's dispatcher, because this process has no private "
                'cluster: write pecan.explain("train", "host:5050")'
            )
        target = cluster.target
    return response.from_json(session.connect(target, timeout).explain(name or ""))


def _of_dataset(dataset: Any, service: Any, dispatcher_timeout_s: float | None) -> dict[str, Any]:
    """Requests the explanation of the job that a dataset reads."""
    if not hasattr(dataset, "element_spec"):
        raise errors.InvalidTypeError(
            f"explain() needs a dataset from distribute(), or the name of a job, got {type(dataset).__name__}: write "
            'pecan.explain(dataset) or pecan.explain("train", "host:5050")'
        )
    if service is not None or dispatcher_timeout_s is not None:
        raise errors.InvalidArgumentError(
            "explain() uses the dispatcher of the dataset: leave `service` and `dispatcher_timeout_s` out, or give the "
            "job's name instead of the dataset"
        )
    from pecan._src.client import native
    from pecan._src.dataset import resume

    job = resume.job_of(dataset, "explain()")
    answer: dict[str, Any] = native.load().wait_json("ExplainJob", job)
    return answer
