"""Pecan: input processing for machine learning as a shared service.

    dataset = dataset.apply(pecan.distribute())

Importing this package loads neither TensorFlow nor Pecan's shared object. The first call that needs them loads them.
"""

from typing import TYPE_CHECKING, Any

from pecan._src.dataset.cache import cache, cache_candidate
from pecan._src.dataset.distribute import distribute
from pecan._src.dataset.keep_position import keep_position, keep_position_of
from pecan._src.dataset.registered import from_dataset_id, register_dataset
from pecan._src.errors import (
    AuthError,
    DataLossError,
    InvalidArgumentError,
    InvalidGraphError,
    InvalidTypeError,
    JobMismatchError,
    LimitError,
    NotFoundError,
    PecanError,
    PreconditionError,
    ServerError,
    ServiceUnavailable,
    UnsupportedError,
    UnsupportedOpError,
    UsedAfterForkError,
)
from pecan._src.explain.cache import CacheCandidate, CacheExplanation
from pecan._src.explain.explain import explain
from pecan._src.explain.explanation import Explanation
from pecan._src.explain.order import ExplainedStep, OrderDifference, OrderExplanation
from pecan._src.explain.placement import PlacementCandidate, PlacementExplanation, WorkerPrices
from pecan._src.options import ShardingPolicy
from pecan._src.servers.config import DispatcherConfig, WorkerConfig
from pecan._src.servers.server import DispatchServer, LocalCluster, WorkerServer
from pecan._src.version import VERSION as __version__

if TYPE_CHECKING:
    from pecan._src.dataset.resume import Iterator, load_state_dict, state_dict

# Subclasses of TensorFlow's classes. They are loaded at first access, so that the import does not load TensorFlow.
_WITH_TENSORFLOW = ("Iterator", "load_state_dict", "state_dict")
# Misspellings of keep_position: the first is in the instructions of Pecan's predecessor, the others are typos.
_MISSPELT = ("keep_posistion", "keep_postion", "keep_postition", "keep_positon")


def __getattr__(name: str) -> Any:
    if name in _WITH_TENSORFLOW:
        from pecan._src.dataset import resume

        return getattr(resume, name)
    hint = ": did you mean keep_position?" if name in _MISSPELT else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)


__all__ = [
    "AuthError",
    "CacheCandidate",
    "CacheExplanation",
    "DataLossError",
    "DispatchServer",
    "DispatcherConfig",
    "ExplainedStep",
    "Explanation",
    "InvalidArgumentError",
    "InvalidGraphError",
    "InvalidTypeError",
    "Iterator",
    "JobMismatchError",
    "LimitError",
    "LocalCluster",
    "NotFoundError",
    "OrderDifference",
    "OrderExplanation",
    "PecanError",
    "PlacementCandidate",
    "PlacementExplanation",
    "PreconditionError",
    "ServerError",
    "ServiceUnavailable",
    "ShardingPolicy",
    "UnsupportedError",
    "UnsupportedOpError",
    "UsedAfterForkError",
    "WorkerConfig",
    "WorkerPrices",
    "WorkerServer",
    "__version__",
    "cache",
    "cache_candidate",
    "distribute",
    "explain",
    "from_dataset_id",
    "keep_position",
    "keep_position_of",
    "load_state_dict",
    "register_dataset",
    "state_dict",
]
