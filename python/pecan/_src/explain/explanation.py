"""The explanation of a job: its order of steps, its placement and its cache candidates."""

from __future__ import annotations

import dataclasses
from typing import Any

from pecan._src.explain import cache as caches
from pecan._src.explain import order as orders
from pecan._src.explain import placement as placements
from pecan._src.explain import shown


@dataclasses.dataclass(frozen=True)
class Explanation(shown.Shown):
    """What was decided for a job, and why. `str()` returns it as text for people.

    The attributes of `order` are attributes of the explanation too: `explanation.moved` is `explanation.order.moved`.

    Attributes:
        order: The order of the job's steps. It compares equal to the job's `order` option, such as `"auto"`.
        placement: How many workers serve the job, and where; None if the job has no objective, so that all workers do.
        cache: Which steps may be cached, and why others may not.
        response: The complete answer of the dispatcher, pecan.v1.ExplainResponse in JSON form.
    """

    order: orders.OrderExplanation
    placement: placements.PlacementExplanation | None
    cache: caches.CacheExplanation
    response: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.order.job_id

    @property
    def tolerance(self) -> str:
        """Accepted difference of elements, as in `OrderExplanation`."""
        return self.order.tolerance

    @property
    def state(self) -> str:
        """State of the order, as in `OrderExplanation`."""
        return self.order.state

    @property
    def why(self) -> str:
        """Reason for the state of the order, in a sentence."""
        return self.order.why

    @property
    def steps(self) -> tuple[orders.ExplainedStep, ...]:
        """The steps in the registered order, starting at the source."""
        return self.order.steps

    @property
    def planned(self) -> tuple[orders.ExplainedStep, ...]:
        """The steps in the planned order. Without a plan this is the registered order."""
        return self.order.planned

    @property
    def moved(self) -> tuple[orders.ExplainedStep, ...]:
        """The steps that the plan moves, without those that only make room for them."""
        return self.order.moved

    @property
    def predicted_gain(self) -> float | None:
        """Share of CPU that the planned order is predicted to save; None without a prediction."""
        return self.order.predicted_gain

    @property
    def measured_gain(self) -> float | None:
        """Share of CPU that the planned order saved in its trial; None without a trial."""
        return self.order.measured_gain

    @property
    def measured_interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of `measured_gain`, (low, high); None without a trial."""
        return self.order.measured_interval

    @property
    def production_gain(self) -> float | None:
        """Share of CPU that the moved steps save in production; None without enough measurements."""
        return self.order.production_gain

    @property
    def differences(self) -> tuple[orders.OrderDifference, ...]:
        """Differences between the values of the two orders in the trial, one per component."""
        return self.order.differences

    @property
    def advice(self) -> str:
        """What a wider `order_tolerance` would save and change, in a sentence; "" if it would save little."""
        return self.order.advice

    def _parts(self, width: int | None) -> list[list[shown.Table]]:
        placed, cached = placements.tables(self.response, self.placement), caches.tables(self.cache, width)
        return [orders.tables(self.order, width), placed, cached]
