"""`pecan.explain`: asks the dispatcher why the steps of a job's dataset run in their order."""

from __future__ import annotations

from typing import Any

from pecan._src import checks, errors, options
from pecan._src.explain import explanation


def explain(
    dataset_or_job: Any,
    service: Any = None,
    *,
    dispatcher_timeout_s: float | None = None,
) -> explanation.OrderExplanation:
    """Asks why the steps of a job's dataset run in the order in which they do: what moved, what did not, and why.

    Args:
        dataset_or_job: What `distribute()` gave, or a dataset made of it; or the name or id of a job.
        service: The dispatcher that has the job of that name, "host:port" or "pecan://host:port"; None is the private
            cluster of this process. Not with a dataset, which knows its own.
        dispatcher_timeout_s: How long, in seconds, the dispatcher may be out of reach; None is 10 s. Not with a
            dataset.

    Returns:
        An explanation; print it.

    Raises:
        PecanError: If there is no such job (a `LookupError`), for arguments that cannot be right, and where the service
            cannot be reached.

    Example:
        >>> print(pecan.explain(dataset))
        >>> pecan.explain("train", "host:5050").moved
    """
    if not isinstance(dataset_or_job, str):
        return explanation.from_response(_of_dataset(dataset_or_job, service, dispatcher_timeout_s))
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
                f"explain({name!r}) needs to know whose job that is, since this process has no private cluster: give "
                'the dispatcher, as in pecan.explain("train", "host:5050")'
            )
        target = cluster.target
    return explanation.from_response(session.connect(target, timeout).explain(name or ""))


def _of_dataset(dataset: Any, service: Any, dispatcher_timeout_s: float | None) -> dict[str, Any]:
    """Asks for the job behind a dataset."""
    if not hasattr(dataset, "element_spec"):
        raise errors.InvalidTypeError(
            f"explain() needs what distribute() gave, or the name of a job, got {type(dataset).__name__}: write "
            'pecan.explain(dataset) or pecan.explain("train", "host:5050")'
        )
    if service is not None or dispatcher_timeout_s is not None:
        raise errors.InvalidArgumentError(
            "explain() asks the service that the dataset is read from: leave `service` and `dispatcher_timeout_s` out, "
            "or give the job's name in the place of the dataset"
        )
    from pecan._src.client import native
    from pecan._src.dataset import resume

    job = resume.job_of(dataset, "explain()")
    answer: dict[str, Any] = native.load().wait_json("ExplainJob", job)
    return answer
