"""How explanations read, and what they make of an answer; tests/e2e/test_explain.py asks real dispatchers."""

import html.parser
import json
import pathlib
import pickle

import pecan
import pytest
from pecan._src.explain import explanation

# Answers that were written down, and how pecanctl shows them.
RECORDED = pathlib.Path(__file__).resolve().parents[2] / "service" / "cmd" / "pecanctl" / "testdata"
NAMES = ("adopted", "piloted", "rolled_back", "refused", "off", "measuring")


def recorded(name: str) -> pecan.OrderExplanation:
    return explanation.from_response(json.loads((RECORDED / f"explain_{name}.json").read_text()))


@pytest.mark.parametrize("width", [120, 60, 40])
@pytest.mark.parametrize("name", NAMES)
def test_it_reads_as_pecanctl_shows_it(name, width):
    assert recorded(name).text(width) + "\n" == (RECORDED / f"explain_{name}.{width}.txt").read_text()


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (7, 40), (500, 120)])
def test_the_terminal_says_how_wide_it_may_be(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert str(recorded("adopted")) == recorded("adopted").text(width)


def test_its_parts_can_be_computed_with():
    found = recorded("adopted")
    assert (found.order, found.tolerance, found.state) == ("auto", "approximate", "adopted")
    assert [(step.name, step.label) for step in found.moved] == [("MapDataset/_21", "random_crop")]
    assert found.steps[0].label == found.steps[0].name
    assert [step.registered_position for step in found.planned] == [0, 2, 1, 3, 4]
    crop = found.moved[0]
    assert (crop.registered_position, crop.planned_position, crop.elements, crop.traits[0]) == (2, 1, 4000, "reads 0")
    assert (crop.factor, crop.cpu_s) == pytest.approx((1 / 6, 1.5 / 4000))
    # The batch is given 3800 elements, and gives 60.
    assert found.steps[4].cpu_s == pytest.approx(0.9 / 3800)
    assert found.steps[4].bytes_out == pytest.approx(3800 * 4 * 150528 / 60)
    assert found.predicted_gain == pytest.approx(1 - 0.01482 / 0.02551)
    assert found.measured_gain == pytest.approx(1 - 0.01519 / 0.02604)
    assert found.measured_interval == pytest.approx((0.01031 / 0.02604, 0.01139 / 0.02604))
    assert found.production_gain == pytest.approx(1 - 0.0161 / 0.0249)
    assert [(one.component, one.within) for one in found.differences] == [(0, True), (1, True)]
    assert pickle.loads(pickle.dumps(found)) == found


def test_what_is_not_known_is_none():
    found = recorded("off")
    assert (found.order, found.tolerance, found.state, found.steps, found.moved) == ("off", "", "off", (), ())
    assert (found.predicted_gain, found.measured_gain, found.measured_interval) == (None, None, None)
    assert found.differences == ()
    assert recorded("piloted").production_gain is None
    assert recorded("rolled_back").production_gain < 0
    refused = recorded("refused")
    assert refused.steps[2].cpu_s is refused.steps[2].bytes_in is refused.steps[2].factor is None
    assert refused.measured_gain < 0 < refused.measured_interval[1]
    assert [(one.bound, one.within) for one in refused.differences] == [(None, True), (1, False)]


@pytest.mark.parametrize(
    ("places", "moved"),
    [
        ([], []), ([0], []), ([1, 0], [1]), ([1, 2, 0], [2]), ([2, 0, 1], [0]), ([0, 3, 1, 2], [1]),
        ([2, 1, 0], [1, 2]), ([1, 1], []), ([0, 5], []),
    ],
)  # fmt: skip
def test_the_fewest_steps_are_said_to_have_moved(places, moved):
    steps = [{"node": str(number), "place": place} for number, place in enumerate(places)]
    found = explanation.from_response({"steps": steps})
    assert [step.registered_position for step in found.moved] == moved


class Reader(html.parser.HTMLParser):
    """What a browser would make of it."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells = set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert attributes in ([], [("style", "text-align: left")])

    def handle_data(self, data):
        self.cells.append(data)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_notebook_is_taken_for_markup(name):
    reader = Reader()
    text = recorded(name)._repr_html_()
    reader.feed(text)
    assert reader.tags <= {"table", "tr", "td", "th"}
    assert text.isprintable()
    assert recorded(name).why in reader.cells
    for step in recorded(name).steps:
        assert step.label in reader.cells


def test_a_name_that_is_markup_is_shown_as_it_is():
    evil = "</td><script>alert('1')</script>&amp;\""
    step = {"node": evil, "op": evil, "traits": [evil], "reason": evil}
    answer = {"job_id": evil, "state": evil, "why": evil, "steps": [step], "trial": {"refused": evil + evil}}
    reader = Reader()
    reader.feed(explanation.from_response(answer)._repr_html_())
    assert reader.tags == {"table", "tr", "td", "th"}
    # Job, state, why; the two orders; the step and its trait, and the step and its reason.
    assert reader.cells.count(evil) == 9
    assert evil + evil in reader.cells


MISTAKES = {
    "nothing": ((None,), {}, TypeError, "distribute"),
    "a function": ((print,), {}, TypeError, "distribute"),
    "an empty name": (("", "h:1"), {}, ValueError, "must not be empty"),
    "a name without a service": (("train",), {}, ValueError, "no private cluster"),
    "no port": (("train", "localhost"), {}, ValueError, "host:port"),
    "no time": (("train", "h:1"), {"dispatcher_timeout_s": 0}, ValueError, "above 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_at_the_call(name):
    arguments, named, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words) as caught:
        pecan.explain(*arguments, **named)
    assert isinstance(caught.value, pecan.PecanError)
