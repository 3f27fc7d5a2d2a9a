"""Adversarial pipelines for AutoOrder: a step that would change elements does not move, and the reasons say why.

The last step of each pipeline is cheap and drops most values, and the step before it is expensive. So the last step moves
before that step if nothing prevents it. The test requests proposals under every tolerance and for the published policy,
with these measurements and with random ones. It runs every proposed order. Under *exact* the elements are the same to the
last bit. Under no tolerance does an order have another number of elements, other types or a new error. A trial decides
whether values differ too much (`go test ./service/worker/trial -run TestTrialsAcceptGoodOrdersAndRefuseBadOnes`).
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable

import graph_oracle as oracle
import numpy as np
import pytest
import tensorflow as tf
from graph_orders import (
    CROP,
    FORCING,
    Proposal,
    Step,
    apply_steps,
    asserts,
    checked_proposals,
    filter_step,
    images,
    on_image,
    on_label,
    steps_in,
)

D = tf.data.Dataset
TOTAL = tf.Variable(0, dtype=tf.int64)


@dataclasses.dataclass(frozen=True)
class Adversary:
    """Steps, and the reason why the last step stays, for each tolerance. An empty reason means that it may move."""

    steps: tuple[Step, ...]
    exact: str
    approximate: str | None = None
    any: str | None = None
    source: Callable[[], tf.data.Dataset] = images

    @property
    def dataset(self) -> tf.data.Dataset:
        return apply_steps(self.source(), self.steps)

    @property
    def last(self) -> int:
        """Position of the last step. The first dataset of the source has position 0."""
        return len(steps_in(self.source())) + len(self.steps) - 1

    def why(self, setting: str) -> str:
        approximate = self.exact if self.approximate is None else self.approximate
        anything = approximate if self.any is None else self.any
        return {"EXACT": self.exact, "APPROXIMATE": approximate, "ANY": anything}[setting]


SOME = filter_step(lambda x, y: y > 5, "some")


def counted(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.cast(TOTAL.assign_add(1), tf.uint8), y


def boxes() -> tf.data.Dataset:
    """Rows of four numbers. Every third element has no rows."""
    return D.range(8).map(lambda i: (tf.ones([i % 3, 4]) * tf.cast(i, tf.float32), i), name="source")


def ragged() -> tf.data.Dataset:
    return D.range(8).map(lambda i: (tf.RaggedTensor.from_row_lengths(tf.range(2 * i), [i, i]), i), name="source")


def none() -> tf.data.Dataset:
    return images().filter(lambda x, y: y > 100)


def half_black() -> tf.data.Dataset:
    return images(32, tf.int32).map(lambda x, y: (tf.concat([1 + x[:16], tf.zeros_like(x[16:])], axis=0), y), name="source")


def waves() -> tf.data.Dataset:
    """Complex numbers."""
    return images().map(lambda x, y: (tf.complex(tf.cast(x, tf.float32), 1.0), y), name="source")


def uneven_rows() -> tf.data.Dataset:
    """Four or more rows of two numbers."""
    return D.range(8).map(lambda i: (tf.ones([4 + i % 3, 2]), i), name="source")


def four(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(tf.shape(x)[0], 4), [tf.shape(x)])]):
        return x * 2


# Zeros above and below an image.
FRAME = [[16, 16], [0, 0], [0, 0]]


def rotated(x: tf.Tensor) -> tf.Tensor:
    """The image shifted by three pixels, with zeros at its edge."""
    shift = tf.constant([[1.0, 0, 3, 0, 1, 0, 0, 0]])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=x[None], transforms=shift, output_shape=[32, 32], fill_value=0.0, interpolation="NEAREST"
    )[0]


def scaled(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) * 300


ADVERSARIES = {
    # Random values.
    "a random crop past a random flip": Adversary(
        (
            on_image(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips"),
            on_image(lambda x: tf.image.random_crop(x, [16, 16, 3], seed=2), "crops"),
        ),
        "one moves values along dimension",
        "both change values by random numbers",
        "",
    ),
    "a random filter past a random step": Adversary(
        (
            on_image(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips"),
            filter_step(lambda x, y: tf.random.uniform([], seed=4) > 0.5, "chance"),
        ),
        "the random values of one step would depend on which elements the other step drops",
    ),
    "a filter past random noise": Adversary(
        (on_image(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([], seed=1), "noise"), SOME),
        "the random values of one step would depend on which elements the other step drops",
    ),
    # Side effects.
    "a step that counts": Adversary((lambda d: d.map(counted, name="counts"), SOME), "no step can move past counts"),
    "a step that checks": Adversary((lambda d: d.map(asserts, name="asserts"), SOME), "checks elements (Assert)", ""),
    # Sizes that another step changes.
    "a label computed from a size": Adversary(
        (lambda d: d.map(lambda x, y: (x, y + tf.shape(x, tf.int64)[0]), name="measures"), CROP),
        "measures reads component 0, which crop changes",
        source=lambda: images(None),
    ),
    "values computed from a size": Adversary(
        (on_image(lambda x: tf.cast(x, tf.float32) / tf.cast(tf.shape(x)[0], tf.float32), "shares"), CROP),
        "one changes the size of dimension 0, and the other's result depends on that size",
        any="",
        source=lambda: images(None),
    ),
    "a checked size": Adversary(
        (on_image(lambda x: tf.ensure_shape(x, [None, 32, 3]), "sure"), CROP),
        "one changes the size of dimension 1, and the other's result depends on that size",
        any="its function was traced for component 0",
    ),
    # Constants that a step inserts.
    "zeros around a narrowed image": Adversary(
        (on_image(lambda x: tf.pad(x, FRAME), "pads"), on_image(lambda x: tf.cast(x * 2, tf.uint8), "narrows")),
        "",
        source=lambda: images(32, tf.int32),
    ),
    "zeros around an image that becomes brighter": Adversary(
        (on_image(lambda x: tf.pad(x, FRAME), "pads"), on_image(lambda x: tf.cast(x + 1, tf.uint8), "narrows")),
        "one inserts a constant, and the other may change that constant",
        any="",
        source=lambda: images(32, tf.int32),
    ),
    "zeros around a negated image": Adversary(
        (on_image(lambda x: tf.pad(x, FRAME), "pads"), on_image(lambda x: tf.cast(-x, tf.float32), "negates")),
        "one inserts a constant, and the other may change that constant",
        any="",
        source=lambda: images(32, tf.float64),
    ),
    "zeros around an image of infinite weights": Adversary(
        (
            on_image(lambda x: tf.pad(x, FRAME), "pads"),
            on_image(lambda x: tf.cast(x * tf.constant([1, 2, np.inf], tf.float64), tf.float32), "weighs"),
        ),
        "one inserts a constant, and the other may change that constant",
        any="",
        source=lambda: images(32, tf.float64),
    ),
    "an image cut beside its frame": Adversary(
        (on_image(lambda x: tf.pad(x, FRAME, constant_values=3), "pads"), on_image(lambda x: x[:, :, :1], "red")), ""
    ),
    "two frames of other constants": Adversary(
        (
            on_image(lambda x: tf.pad(x, FRAME, constant_values=1), "ones"),
            on_image(lambda x: tf.pad(x, [[0, 0], [0, 0], [1, 0]], constant_values=2)[:, :, :1], "twos"),
        ),
        "both insert constants, and these differ",
        any="",
    ),
    "a frame that a step computes, and another frame": Adversary(
        (
            on_image(lambda x: tf.pad(x, FRAME) + 1, "ones"),
            on_image(lambda x: tf.pad(x, [[0, 0], [0, 0], [1, 0]], constant_values=1)[:, :, :1], "more"),
        ),
        "one inserts a constant, and the other may change that constant",
        any="",
    ),
    "a rotation that fills with zeros": Adversary(
        (on_image(rotated, "rotates"), on_image(lambda x: tf.cast(x * 2, tf.uint8), "narrows")), "", source=lambda: images(32, tf.int32)
    ),
    # Overflows.
    "a cast that overflows": Adversary(
        (on_image(scaled, "scales"), on_image(lambda x: tf.cast(x, tf.uint8), "narrows")), "computes with it"
    ),
    "sums of integers that overflow when they are narrow": Adversary(
        (on_image(lambda x: (tf.cast(x, tf.int32) + 200) // 2, "means"), on_image(lambda x: tf.cast(x, tf.uint8), "narrows")),
        "computes with it",
    ),
    "a cast that saturates": Adversary(
        (
            on_image(lambda x: tf.cast(x, tf.int32) * 3, "scales"),
            on_image(lambda x: tf.saturate_cast(x, tf.uint8), "narrows"),
        ),
        "computes with it",
    ),
    "an early cast to half precision": Adversary(
        (on_image(scaled, "scales"), on_image(lambda x: tf.cast(x, tf.float16), "narrows")), "computes with it"
    ),
    # NaN and infinity.
    "a filter of NaN values": Adversary(
        (
            on_image(lambda x: tf.math.log(tf.cast(x, tf.float32) - 5), "log"),
            filter_step(lambda x, y: tf.reduce_all(tf.math.is_finite(x)), "whole"),
        ),
        "reads component 0, which log changes",
    ),
    "a mean over possible NaN values": Adversary(
        (on_image(lambda x: 1 / x, "inverts"), on_image(lambda x: tf.image.resize(x, [8, 8]), "halves")),
        "both compute values",
        "both compute values, and one of them computes more than weighted sums",
        "",
        source=lambda: images(32, tf.float32),
    ),
    "a quotient that is NaN, and a crop": Adversary(
        (on_image(lambda x: tf.cast(x // 200, tf.float32) / tf.cast(x // 200, tf.float32), "divides"), CROP), ""
    ),
    # Empty elements, batches and datasets.
    "the first row of possibly none": Adversary(
        (filter_step(lambda x, y: y % 3 > 0, "any_row"), on_image(lambda x: x[0], "first")),
        "can fail (StridedSlice) for elements that any_row drops",
        source=boxes,
    ),
    "a mean over no rows": Adversary(
        (
            on_image(lambda x: x - tf.reduce_mean(x, axis=0), "centres"),
            filter_step(lambda x, y: tf.reduce_all(tf.math.is_finite(tf.reduce_mean(x))), "whole"),
        ),
        "reads component 0, which centres changes",
        source=boxes,
    ),
    "elements without rows": Adversary((on_image(tf.sqrt, "roots"), on_image(lambda x: x[:1], "few")), "", source=boxes),
    "an empty dataset": Adversary((on_image(lambda x: x // 2, "halves"), CROP), "", source=none),
    "batches with a partial last one": Adversary(
        (lambda d: d.batch(3), on_image(lambda x: x - tf.reduce_max(x, axis=0), "less"), on_image(lambda x: x[:, :8], "rows")),
        "it is not known what Sub does to it",
        any="its function was traced for component 0",
    ),
    # Components of several tensors.
    "ragged rows": Adversary(
        (on_image(lambda x: x * 2, "doubles"), on_image(lambda x: x[:, :1], "narrow")), "its number of dimensions is not known", source=ragged
    ),
    "a filter past ragged rows": Adversary((on_image(lambda x: x * 2, "doubles"), SOME), "", source=ragged),
    "a filter that looks at ragged rows": Adversary(
        (on_image(lambda x: x * 2, "doubles"), filter_step(lambda x, y: tf.reduce_sum(x) > 6, "large")),
        "reads component 0, which doubles changes",
        source=ragged,
    ),
    # Divisions that only another step makes safe.
    "a filter that divides by values that a map made nonzero": Adversary(
        (on_label(lambda y: tf.where(y == 0, tf.ones_like(y), y), "guard"), filter_step(lambda x, y: 10 // y > 2, "divides")),
        "reads component 1, which guard changes",
    ),
    "a filter that divides by values that a filter drops": Adversary(
        (filter_step(lambda x, y: y != 0, "nonzero"), filter_step(lambda x, y: 10 // y > 2, "divides")),
        "can fail (FloorDiv) for elements that nonzero drops",
    ),
    "a map that divides by values that a filter drops": Adversary(
        (filter_step(lambda x, y: y != 0, "nonzero"), lambda d: d.map(lambda x, y: (x[:4] // tf.cast(y, tf.uint8), y), name="divides")),
        "can fail (FloorDiv) for elements that nonzero drops",
    ),
    "a map that divides by values that a crop removes": Adversary(
        (on_image(lambda x: x[:16], "crop"), on_image(lambda x: 1000 // x, "divides")),
        "can fail (FloorDiv) for values that crop changes, adds or removes",
        source=half_black,
    ),
    "a map that divides by values that a map made nonzero": Adversary(
        (on_image(lambda x: tf.where(x == 0, 1, x), "guard"), on_image(lambda x: 1000 % x, "divides")),
        "can fail (FloorMod) for values that guard changes, adds or removes",
        source=half_black,
    ),
    "a gather from elements that a filter drops": Adversary(
        (filter_step(lambda x, y: y > 100, "none"), on_image(lambda x: tf.gather(x, [2, 99]), "gathers")),
        "can fail (GatherV2) for elements that none drops",
    ),
    "a check of the size that a crop produces": Adversary(
        (on_image(lambda x: x[:4], "crop"), on_image(four, "checks")),
        "one changes the size of dimension 0, and the other",
        source=uneven_rows,
    ),
    # The last bits of quotients of complex numbers depend on their position in memory.
    "a quotient of complex numbers, and a crop": Adversary(
        (on_image(lambda x: x / tf.constant(1.3 + 0.7j, tf.complex64), "divides"), on_image(lambda x: x[3:24], "crop")),
        "the last bits of the other's result can depend on positions in memory",
        "",
        source=waves,
    ),
    "a map that decodes elements that a filter drops": Adversary(
        (
            on_image(tf.io.serialize_tensor, "writes"),
            on_image(lambda x: tf.where(tf.strings.length(x) > 0, x, "no picture"), "damages"),
            filter_step(lambda x, y: y > 5, "whole"),
            on_image(lambda x: tf.io.parse_tensor(x, tf.uint8)[:2], "decodes"),
        ),
        "can fail (ParseTensor) for elements that whole drops",
    ),
}


def forcing_metrics(dataset: tf.data.Dataset, last: int) -> list[list[float]]:
    """The step before the last is expensive, and the last one drops most values."""
    return [*[FORCING[0]] * (last - 1), FORCING[2], FORCING[3], *[FORCING[3]] * (len(steps_in(dataset)) - last - 1)]


def stays(proposal: Proposal, last: int) -> bool:
    """Whether the last step of an adversary stays downstream of the step before it."""
    return proposal.order == [] or proposal.order.index(last - 1) > proposal.order.index(last - 2)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_proposed_order_changes_the_dataset(ordergraph, tmp_path, name):
    adversary = ADVERSARIES[name]
    dataset, last = adversary.dataset, adversary.last
    proposals = checked_proposals(ordergraph, tmp_path, name, dataset, forcing_metrics(dataset, last), len(steps_in(dataset)))
    for setting in ("EXACT", "APPROXIMATE", "ANY"):
        forced, why = proposals[setting], adversary.why(setting)
        assert stays(forced, last) == (why != ""), (setting, forced)
        assert why in forced.reasons[last - 1], (setting, forced.reasons)


def prints(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    tf.print("seen")
    return x, y


def in_python(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.numpy_function(lambda value: value, [x], tf.uint8), y


@pytest.mark.parametrize(("effect", "why"), [(prints, "would print on a worker"), (in_python, "Python")])
def test_a_step_with_effects_outside_the_graph_is_refused(ordergraph, tmp_path, effect, why):
    path = tmp_path / "dataset.pb"
    path.write_bytes(oracle.serialize(images().map(effect).apply(SOME)))
    done = subprocess.run([ordergraph, "steps", path], capture_output=True, text=True)
    assert done.returncode == 1
    assert why in done.stderr
