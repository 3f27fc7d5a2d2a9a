"""Pipelines that are written against AutoOrder: what would come out otherwise does not move, and `explain` says why.

The last step of each would go before the one below it if it could: it costs little, leaves little, and that one is dear. It is asked about
under every tolerance and for the published policy, with that and with whatever may be measured. What is proposed is run: under *exact* it
gives the same to the last bit, and nowhere another number of elements, other types or an error that was not there. Whether values that may
differ do so too much is for the trial (`go test ./service/worker/trial -run TestTrialsTellGoodOrdersFromBadOnes`).
"""

from __future__ import annotations

import dataclasses
import random
import subprocess
from collections.abc import Callable

import graph_oracle as oracle
import pytest
import tensorflow as tf
from test_proposals import (
    FORCING,
    Asked,
    asserts,
    fits,
    keeps,
    measured,
    on_label,
    on_picture,
    outcome,
    pictures,
    propose_all,
    steps_in,
    through,
)

D = tf.data.Dataset
Step = Callable[[tf.data.Dataset], tf.data.Dataset]
TOTAL = tf.Variable(0, dtype=tf.int64)
WAYS = {"EXACT": "AUTO", "APPROXIMATE": "AUTO", "ANY": "AUTO", "PAPER": "PAPER"}
MEASUREMENTS = 6


@dataclasses.dataclass(frozen=True)
class Adversary:
    """Steps, and why the last one stays where it is: under exact, and under the others ("" where it may go first)."""

    steps: tuple[Step, ...]
    exact: str
    approximate: str | None = None
    any: str | None = None
    source: Callable[[], tf.data.Dataset] = pictures

    @property
    def dataset(self) -> tf.data.Dataset:
        return through(self.source(), self.steps)

    def why(self, way: str) -> str:
        approximate = self.exact if self.approximate is None else self.approximate
        anything = approximate if self.any is None else self.any
        return {"EXACT": self.exact, "APPROXIMATE": approximate, "ANY": anything}[way]


SOME = keeps(lambda x, y: y > 5, "some")
CROP = on_picture(lambda x: x[4:20, 6:22], "crop")


def counted(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.cast(TOTAL.assign_add(1), tf.uint8), y


def boxes() -> tf.data.Dataset:
    """Rows of four numbers, none of them in every third element."""
    return D.range(8).map(lambda i: (tf.ones([i % 3, 4]) * tf.cast(i, tf.float32), i), name="source")


def ragged() -> tf.data.Dataset:
    return D.range(8).map(lambda i: (tf.RaggedTensor.from_row_lengths(tf.range(2 * i), [i, i]), i), name="source")


def none() -> tf.data.Dataset:
    return pictures().filter(lambda x, y: y > 100)


def half_black() -> tf.data.Dataset:
    return pictures(32, tf.int32).map(lambda x, y: (tf.concat([1 + x[:16], tf.zeros_like(x[16:])], axis=0), y), name="source")


def waves() -> tf.data.Dataset:
    """Complex numbers."""
    return pictures().map(lambda x, y: (tf.complex(tf.cast(x, tf.float32), 1.0), y), name="source")


def uneven_rows() -> tf.data.Dataset:
    """Four numbers and more, in rows of several sizes."""
    return D.range(8).map(lambda i: (tf.ones([4 + i % 3, 2]), i), name="source")


def four(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(tf.shape(x)[0], 4), [tf.shape(x)])]):
        return x * 2


def scaled(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) * 300


ADVERSARIES = {
    # What is drawn.
    "a crop at random past a flip at random": Adversary(
        (
            on_picture(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips"),
            on_picture(lambda x: tf.image.random_crop(x, [16, 16, 3], seed=2), "crops"),
        ),
        "one moves values along dimension",
        "both change values by random numbers",
        "",
    ),
    "a filter that draws past a step that draws": Adversary(
        (
            on_picture(lambda x: tf.image.random_flip_left_right(x, seed=1), "flips"),
            keeps(lambda x, y: tf.random.uniform([], seed=4) > 0.5, "chance"),
        ),
        "the random values of one step would depend on which elements the other step drops",
    ),
    "a filter past a step that draws for its values": Adversary(
        (on_picture(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([], seed=1), "noise"), SOME),
        "the random values of one step would depend on which elements the other step drops",
    ),
    # Side effects.
    "a step that counts": Adversary((lambda d: d.map(counted, name="counts"), SOME), "no step can move past counts"),
    "a step that checks": Adversary((lambda d: d.map(asserts, name="asserts"), SOME), "checks elements (Assert)", ""),
    # Sizes that another step changes.
    "a label that is made of a size": Adversary(
        (lambda d: d.map(lambda x, y: (x, y + tf.shape(x, tf.int64)[0]), name="measures"), CROP),
        "measures reads component 0, which crop changes",
        source=lambda: pictures(None),
    ),
    "values that are made of a size": Adversary(
        (on_picture(lambda x: tf.cast(x, tf.float32) / tf.cast(tf.shape(x)[0], tf.float32), "shares"), CROP),
        "one changes the size of dimension 0, and the other's result depends on that size",
        any="",
        source=lambda: pictures(None),
    ),
    "a size that is checked": Adversary(
        (on_picture(lambda x: tf.ensure_shape(x, [None, 32, 3]), "sure"), CROP),
        "one changes the size of dimension 1, and the other's result depends on that size",
        any="its function was traced for component 0",
    ),
    # Numbers that do not fit.
    "a cast that overflows": Adversary(
        (on_picture(scaled, "scales"), on_picture(lambda x: tf.cast(x, tf.uint8), "narrows")), "computes with it"
    ),
    "sums of integers that overflow when they are narrow": Adversary(
        (on_picture(lambda x: (tf.cast(x, tf.int32) + 200) // 2, "means"), on_picture(lambda x: tf.cast(x, tf.uint8), "narrows")),
        "computes with it",
    ),
    "a cast that saturates": Adversary(
        (
            on_picture(lambda x: tf.cast(x, tf.int32) * 3, "scales"),
            on_picture(lambda x: tf.saturate_cast(x, tf.uint8), "narrows"),
        ),
        "computes with it",
    ),
    "half precision, early": Adversary(
        (on_picture(scaled, "scales"), on_picture(lambda x: tf.cast(x, tf.float16), "narrows")), "computes with it"
    ),
    # What is no number.
    "a filter of what is no number": Adversary(
        (
            on_picture(lambda x: tf.math.log(tf.cast(x, tf.float32) - 5), "log"),
            keeps(lambda x, y: tf.reduce_all(tf.math.is_finite(x)), "whole"),
        ),
        "reads component 0, which log changes",
    ),
    "a mean over what may be no number": Adversary(
        (on_picture(lambda x: 1 / x, "inverts"), on_picture(lambda x: tf.image.resize(x, [8, 8]), "halves")),
        "both compute values",
        "both compute values, and one of them computes more than weighted sums",
        "",
        source=lambda: pictures(32, tf.float32),
    ),
    "what is no number, and a crop": Adversary(
        (on_picture(lambda x: tf.cast(x // 200, tf.float32) / tf.cast(x // 200, tf.float32), "divides"), CROP), ""
    ),
    # Elements, batches and datasets of nothing.
    "the first of what may be none": Adversary(
        (keeps(lambda x, y: y % 3 > 0, "any_row"), on_picture(lambda x: x[0], "first")),
        "can fail (StridedSlice) for elements that any_row drops",
        source=boxes,
    ),
    "a mean over nothing": Adversary(
        (
            on_picture(lambda x: x - tf.reduce_mean(x, axis=0), "centres"),
            keeps(lambda x, y: tf.reduce_all(tf.math.is_finite(tf.reduce_mean(x))), "whole"),
        ),
        "reads component 0, which centres changes",
        source=boxes,
    ),
    "rows of nothing": Adversary((on_picture(tf.sqrt, "roots"), on_picture(lambda x: x[:1], "few")), "", source=boxes),
    "a dataset of nothing": Adversary((on_picture(lambda x: x // 2, "halves"), CROP), "", source=none),
    "batches, the last of them not full": Adversary(
        (lambda d: d.batch(3), on_picture(lambda x: x - tf.reduce_max(x, axis=0), "less"), on_picture(lambda x: x[:, :8], "rows")),
        "it is not known what Sub does to it",
        any="its function was traced for component 0",
    ),
    # Components of several tensors.
    "ragged rows": Adversary(
        (on_picture(lambda x: x * 2, "doubles"), on_picture(lambda x: x[:, :1], "narrow")), "its number of dimensions is not known", source=ragged
    ),
    "a filter past ragged rows": Adversary((on_picture(lambda x: x * 2, "doubles"), SOME), "", source=ragged),
    "a filter that looks at ragged rows": Adversary(
        (on_picture(lambda x: x * 2, "doubles"), keeps(lambda x, y: tf.reduce_sum(x) > 6, "large")),
        "reads component 0, which doubles changes",
        source=ragged,
    ),
    # Divisions that another step makes possible.
    "a filter that divides by what a map made another number": Adversary(
        (on_label(lambda y: tf.where(y == 0, tf.ones_like(y), y), "guard"), keeps(lambda x, y: 10 // y > 2, "divides")),
        "reads component 1, which guard changes",
    ),
    "a filter that divides by what a filter leaves out": Adversary(
        (keeps(lambda x, y: y != 0, "nonzero"), keeps(lambda x, y: 10 // y > 2, "divides")),
        "can fail (FloorDiv) for elements that nonzero drops",
    ),
    "a map that divides by what a filter leaves out": Adversary(
        (keeps(lambda x, y: y != 0, "nonzero"), lambda d: d.map(lambda x, y: (x[:4] // tf.cast(y, tf.uint8), y), name="divides")),
        "can fail (FloorDiv) for elements that nonzero drops",
    ),
    "a map that divides by what a crop leaves out": Adversary(
        (on_picture(lambda x: x[:16], "crop"), on_picture(lambda x: 1000 // x, "divides")),
        "can fail (FloorDiv) for values that crop changes, adds or removes",
        source=half_black,
    ),
    "a map that divides by what a map made another number": Adversary(
        (on_picture(lambda x: tf.where(x == 0, 1, x), "guard"), on_picture(lambda x: 1000 % x, "divides")),
        "can fail (FloorMod) for values that guard changes, adds or removes",
        source=half_black,
    ),
    "a gather from what a filter leaves out": Adversary(
        (keeps(lambda x, y: y > 100, "none"), on_picture(lambda x: tf.gather(x, [2, 99]), "gathers")),
        "can fail (GatherV2) for elements that none drops",
    ),
    "a check of the size that a crop makes": Adversary(
        (on_picture(lambda x: x[:4], "crop"), on_picture(four, "checks")),
        "one changes the size of dimension 0, and the other",
        source=uneven_rows,
    ),
    # The last bits of quotients of complex numbers depend on where they lie.
    "a quotient of complex numbers, and a crop": Adversary(
        (on_picture(lambda x: x / tf.constant(1.3 + 0.7j, tf.complex64), "divides"), on_picture(lambda x: x[3:24], "crop")),
        "the last bits of the other's result can depend on positions in memory",
        "",
        source=waves,
    ),
    "a map that decodes what a filter leaves out": Adversary(
        (
            on_picture(tf.io.serialize_tensor, "writes"),
            on_picture(lambda x: tf.where(tf.strings.length(x) > 0, x, "no picture"), "damages"),
            keeps(lambda x, y: y > 5, "whole"),
            on_picture(lambda x: tf.io.parse_tensor(x, tf.uint8)[:2], "decodes"),
        ),
        "can fail (ParseTensor) for elements that whole drops",
    ),
}


def figures(dataset: tf.data.Dataset, last: int) -> list[list[float]]:
    """The step before the last is expensive, and the last one drops most values."""
    return [*[FORCING[0]] * (last - 1), FORCING[2], FORCING[3], *[FORCING[3]] * (len(steps_in(dataset)) - last - 1)]


@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_proposed_order_changes_the_dataset(ordergraph, tmp_path, name):
    adversary = ADVERSARIES[name]
    dataset = adversary.dataset
    below = len(steps_in(adversary.source()))
    last, count = below + len(adversary.steps) - 1, len(steps_in(dataset))
    rng = random.Random(name)
    asked = {
        way: Asked(
            dataset,
            [figures(dataset, last), *(measured(rng, count) for _ in range(MEASUREMENTS))],
            tolerance="ANY" if way == "PAPER" else way,
            order=order,
        )
        for way, order in WAYS.items()
    }
    want = outcome(dataset)
    for way, proposals in propose_all(ordergraph, tmp_path, asked).items():
        for order, told in {tuple(told.order): told for told in proposals if told.order}.items():
            ours = outcome(oracle.load(told.graph, dataset))
            if way == "EXACT":
                assert fits(ours, want), (order, told.reasons)
            assert ours[1] <= want[1], (way, order, "an element fails that did not")
            if not want[1]:
                kinds = [[(dtype, shape) for dtype, shape, _ in element] for element in ours[0]]
                assert kinds == [[(dtype, shape) for dtype, shape, _ in element] for element in want[0]], (way, order)
        if way == "PAPER":
            continue
        forced, why = proposals[0], adversary.why(way)
        if why == "":
            assert forced.order.index(last - 1) < forced.order.index(last - 2), (way, forced)
        else:
            assert forced.order == [] or forced.order.index(last - 1) > forced.order.index(last - 2), (way, forced)
            assert why in forced.reasons[last - 1], (way, forced.reasons)


def prints(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    tf.print("seen")
    return x, y


def in_python(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.numpy_function(lambda value: value, [x], tf.uint8), y


@pytest.mark.parametrize(("effect", "why"), [(prints, "would print on a worker"), (in_python, "Python")])
def test_a_step_with_effects_outside_the_graph_is_refused(ordergraph, tmp_path, effect, why):
    path = tmp_path / "dataset.pb"
    path.write_bytes(oracle.serialize(pictures().map(effect).apply(SOME)))
    done = subprocess.run([ordergraph, "steps", path], capture_output=True, text=True)
    assert done.returncode == 1
    assert why in done.stderr
