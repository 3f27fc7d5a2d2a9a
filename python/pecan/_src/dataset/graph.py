"""From a tf.data.Dataset to a registered one: its graph, checked before any service is asked."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

import tensorflow as tf

from pecan._src import errors
from pecan._src.client import native
from pecan._src.client.session import Session
from pecan._src.dataset import structure
from pecan._src.options import ReadOptions


class FrozenStateWarning(UserWarning):
    """The dataset holds state that travels with the value it has now."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """A serialised dataset.

    Attributes:
        data: The GraphDef.
        specs: The plain tensors that its elements consist of.
        spec_text: The element spec as the user sees it, encoded.
        cardinality: tf.data's cardinality of the dataset.
        kept: Whether it is small enough to be kept beside the one that TensorFlow has, for a service that forgets it.
    """

    data: bytes
    specs: tuple[tf.TensorSpec, ...]
    spec_text: str
    cardinality: int
    kept: bool


def serialize(dataset: Any, what: str, options: ReadOptions | None = None) -> Graph:
    """Serialises a dataset and has Pecan's validator look at it, before any service is asked.

    Args:
        dataset: The user's dataset.
        what: The function that was called, for messages.
        options: How it will be read; None where that is not known yet.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.InvalidTypeError(
            f"{what} needs a tf.data.Dataset, got {type(dataset).__name__}: write dataset.apply(pecan.distribute(...))"
        )
    if not tf.executing_eagerly():
        raise errors.InvalidArgumentError(
            f"{what} was called inside a tf.function or with eager execution off, where a dataset cannot be "
            "serialised: call it outside, and hand the dataset that it gives to the function"
        )
    shape = structure.Structure(dataset.element_spec)
    flat = dataset.map(shape.take_apart) if shape.composite else dataset
    policy = dataset.options().experimental_external_state_policy
    if policy is None:
        # The validator decides what state may travel, op by op.
        policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        data = flat._as_serialized_graph(external_state_policy=policy).numpy()
    except tf.errors.FailedPreconditionError as error:
        if policy != tf.data.experimental.ExternalStatePolicy.FAIL:
            raise errors.make(
                f"the dataset holds a step that cannot leave this process: {error.message}. Apply it after "
                "distribute(), as copy_to_device and prefetch_to_device have to be [pecan:UNSUPPORTED]",
                "UNSUPPORTED",
                12,
            ) from None
        raise errors.make(
            f"the dataset has state that its option experimental_external_state_policy=FAIL forbids to leave behind: "
            f"{error.message} [pecan:EXTERNAL_STATE]",
            "EXTERNAL_STATE",
            9,
        ) from None
    except (tf.errors.OpError, ValueError) as error:
        raise errors.make(
            f"the dataset cannot be serialised: {error} [pecan:GRAPH_STRUCTURE]", "GRAPH_STRUCTURE", 9
        ) from None
    if not data:
        raise errors.make(
            "the dataset takes more than 2 GiB to serialise, most of it constants such as those of from_tensor_slices: "
            "keep them in files [pecan:MESSAGE_TOO_LARGE]",
            "MESSAGE_TOO_LARGE",
            8,
        )
    reading = {} if options is None else mode(options)
    checked = native.load().call_json("CheckGraph", data, json.dumps(reading))
    for notice in checked["notices"] or ():
        warnings.warn(notice, FrozenStateWarning, stacklevel=4)
    specs = tuple(tf.nest.flatten(flat.element_spec))
    return Graph(data, specs, _spec_text(dataset.element_spec), int(dataset.cardinality().numpy()), checked["kept"])


def mode(options: ReadOptions) -> dict[str, Any]:
    """What decides whether a dataset can be read so."""
    return {"mode": options.mode, "allow_nondeterministic": options.allow_nondeterministic}


def _spec_text(element_spec: Any) -> str:
    try:
        return structure.encode_spec(element_spec)
    except Exception:  # noqa: BLE001 - attrs and extension types have no code; from_dataset_id asks for the spec
        return ""


def register(session: Session, graph: Graph, compression: str, dataset_id: str | None) -> str:
    """Stores a dataset at the service and gives its id."""
    return str(session.register(header(graph, compression, dataset_id), graph.data)["dataset_id"])


def header(graph: Graph, compression: str, dataset_id: str | None) -> dict[str, Any]:
    """What the service is told of a dataset beside its graph."""
    return {
        "dataset_id": dataset_id or "",
        "components": structure.components_json(graph.specs),
        "element_spec": graph.spec_text,
        "tensorflow_version": tf.__version__,
        "compression": compression,
    }
