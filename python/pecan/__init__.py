"""Pecan: input processing for machine learning as a shared service.

    dataset = dataset.apply(pecan.distribute())

Importing this package loads neither TensorFlow nor Pecan's shared object; the first call that needs them does.
"""

from pecan._src.distribute import distribute, from_dataset_id, register_dataset
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
from pecan._src.options import ShardingPolicy
from pecan._src.servers import DispatcherConfig, DispatchServer, LocalCluster, WorkerConfig, WorkerServer
from pecan._src.version import VERSION as __version__

__all__ = [
    "AuthError",
    "DataLossError",
    "DispatchServer",
    "DispatcherConfig",
    "InvalidArgumentError",
    "InvalidGraphError",
    "InvalidTypeError",
    "JobMismatchError",
    "LimitError",
    "LocalCluster",
    "NotFoundError",
    "PecanError",
    "PreconditionError",
    "ServerError",
    "ServiceUnavailable",
    "ShardingPolicy",
    "UnsupportedError",
    "UnsupportedOpError",
    "UsedAfterForkError",
    "WorkerConfig",
    "WorkerServer",
    "__version__",
    "distribute",
    "from_dataset_id",
    "register_dataset",
]
