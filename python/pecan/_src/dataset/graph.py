"""Serialises a `tf.data.Dataset`, checks its graph in this process, and registers it at a service."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import warnings
from typing import Any

import tensorflow as tf

from pecan._src import errors, home
from pecan._src.client import native
from pecan._src.client.session import Session
from pecan._src.dataset import structure
from pecan._src.options import ReadOptions

_log = logging.getLogger("pecan")

# Longest wait in seconds for the indexes of record files, if other runs need not get the same graph.
_EXTENTS_TIMEOUT_S = 2


class FrozenStateWarning(UserWarning):
    """The dataset contains state. Workers get a copy of its value at the time of the call."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """A serialised dataset.

    Attributes:
        data: The serialised GraphDef.
        specs: The plain tensors of an element, in the order in which workers send them.
        spec_text: The encoded element spec of the user's dataset; empty if it cannot be encoded.
        cardinality: tf.data's cardinality of the dataset: a number of elements, INFINITE (-1) or UNKNOWN (-2).
        keep: Whether the client keeps a copy of `data`, to register the dataset again if the service loses it. False
            for large graphs.
        file_bytes: Size of the files that the dataset names; 0 if it is not known.
        file_records: About the number of records in these files; 0 if it is not known.
        undivided: The GraphDef without extents of record files; empty if `data` can have none, or for large graphs.
    """

    data: bytes
    specs: tuple[tf.TensorSpec, ...]
    spec_text: str
    cardinality: int
    keep: bool
    file_bytes: int = 0
    file_records: int = 0
    undivided: bytes = b""


def serialize(dataset: Any, caller: str, options: ReadOptions | None = None) -> Graph:
    """Serialises a dataset and checks its graph, without any service.

    Args:
        dataset: The user's dataset.
        caller: Name of the public function that was called, for messages.
        options: The options of the reader; None if the reader is not known yet.

    Returns:
        The serialised dataset.

    Raises:
        PecanError: If the argument is not a dataset, its graph cannot be serialised, or workers cannot run it.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.InvalidTypeError(
            f"{caller} needs a tf.data.Dataset, got {type(dataset).__name__}: write "
            "dataset.apply(pecan.distribute(...))"
        )
    if not tf.executing_eagerly():
        raise errors.InvalidArgumentError(
            f"{caller} was called inside a tf.function or with eager execution off, where a dataset cannot be "
            "serialised: call it outside, and pass the resulting dataset to the function"
        )
    shape = structure.Structure(dataset.element_spec)
    flat = dataset.map(shape.flatten) if shape.composite else dataset
    policy = dataset.options().experimental_external_state_policy
    if policy is None:
        # CheckGraph below decides for each op whether its state may be copied.
        policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        data = flat._as_serialized_graph(external_state_policy=policy).numpy()
    except tf.errors.FailedPreconditionError as error:
        if policy != tf.data.experimental.ExternalStatePolicy.FAIL:
            raise errors.make(
                f"the dataset contains a step that cannot leave this process: {error.message}. Apply it after "
                "distribute(); copy_to_device and prefetch_to_device, too, belong there [pecan:UNSUPPORTED]",
                "UNSUPPORTED",
                12,
            ) from None
        raise errors.make(
            f"the dataset contains state, and its option experimental_external_state_policy=FAIL forbids to copy it "
            f"without that state: {error.message} [pecan:EXTERNAL_STATE]",
            "EXTERNAL_STATE",
            9,
        ) from None
    except (tf.errors.OpError, ValueError) as error:
        raise errors.make(
            f"the dataset cannot be serialised: {error} [pecan:GRAPH_STRUCTURE]", "GRAPH_STRUCTURE", 9
        ) from None
    if not data:
        raise errors.make(
            "the serialised dataset is larger than 2 GiB, mostly because of constants such as those of "
            "from_tensor_slices: store them in files [pecan:MESSAGE_TOO_LARGE]",
            "MESSAGE_TOO_LARGE",
            8,
        )
    wanted = extent_fields(options) | ({} if options is None else mode_fields(options))
    checked = native.load().wait_json("CheckGraph", data, json.dumps(wanted))
    for warning in checked["warnings"] or ():
        warnings.warn(warning, FrozenStateWarning, stacklevel=4)
    specs = tuple(tf.nest.flatten(flat.element_spec))
    cardinality = int(dataset.cardinality().numpy())
    undivided = b""
    if checked.get("late"):
        _log.warning(
            "%s: reading the indexes of the dataset's record files takes longer than %g s, so this job reads each file "
            "as a whole. The reading continues in the background, and later jobs use the indexes",
            caller,
            _EXTENTS_TIMEOUT_S,
        )
    if checked["kept"] and (checked.get("late") or checked.get("divided")):
        undivided = data
    if checked.get("divided"):
        data = base64.b64decode(checked["divided"])
    return Graph(
        data,
        specs,
        _spec_text(dataset.element_spec),
        cardinality,
        checked["kept"],
        checked["file_bytes"],
        checked["file_records"],
        undivided,
    )


def extent_fields(options: ReadOptions | None) -> dict[str, Any]:
    """Returns the fields of a request that say whether record files are divided, and how long their indexes may take.

    Readers that share a job or a registered dataset must get the same graph, however fast the disk is. A later run of a
    deterministic job must have the same order. In these cases nothing limits the time.
    """
    fields: dict[str, Any] = {"extents": True, "index_directory": home.directory("extents")}
    if options is None:
        return fields
    if options.sharding not in ("unspecified", "dynamic", "data", "file_or_data"):
        return {}
    waits = options.mode == "deterministic" or options.job_name is not None
    return fields | {"extents_timeout_s": 0 if waits else _EXTENTS_TIMEOUT_S}


def mode_fields(options: ReadOptions) -> dict[str, Any]:
    """Returns the fields of a request that decide whether a graph is valid for its reader."""
    return {"mode": options.mode, "allow_nondeterministic": options.allow_nondeterministic}


def _spec_text(element_spec: Any) -> str:
    try:
        return structure.encode_spec(element_spec)
    # attrs classes and extension types have no encoding. from_dataset_id() then needs its argument element_spec.
    except Exception:  # noqa: BLE001
        return ""


def register(session: Session, graph: Graph, compression: str, dataset_id: str | None) -> str:
    """Registers a dataset at the service and returns its id."""
    return str(session.register(header(graph, compression, dataset_id), graph.data)["dataset_id"])


def header(graph: Graph, compression: str, dataset_id: str | None) -> dict[str, Any]:
    """Returns the fields of a registration other than the graph, in the form that the Go package bindings reads."""
    return {
        "dataset_id": dataset_id or "",
        "components": structure.components_json(graph.specs),
        "element_spec": graph.spec_text,
        "tensorflow_version": tf.__version__,
        "compression": compression,
    }
