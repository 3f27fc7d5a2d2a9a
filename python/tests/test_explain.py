"""Explanations from recorded answers of a dispatcher. tests/e2e/test_explain.py asks real dispatchers."""

import html.parser
import json
import pathlib
import pickle

import pecan
import pytest
from pecan._src.explain import response

# Recorded answers, and the output of pecanctl for them.
RECORDED = pathlib.Path(__file__).resolve().parents[2] / "service" / "cmd" / "pecanctl" / "testdata"
NAMES = (
    "adopted", "piloted", "rolled_back", "refused", "off", "measuring", "placed", "unpriced", "candidates", "cached",
    "uncached",
)  # fmt: skip


def recorded(name: str) -> pecan.Explanation:
    return response.from_json(json.loads((RECORDED / f"explain_{name}.json").read_text()))


@pytest.mark.parametrize("width", [120, 60, 40])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_pecanctl(name, width):
    assert recorded(name).text(width) + "\n" == (RECORDED / f"explain_{name}.{width}.txt").read_text()


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (7, 40), (500, 120)])
def test_the_text_fits_the_terminal(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert str(recorded("adopted")) == recorded("adopted").text(width)


def test_the_attributes_have_the_values_of_the_answer():
    found = recorded("adopted")
    assert (found.order, found.tolerance, found.state) == ("auto", "approximate", "adopted")
    assert [(step.name, step.label) for step in found.moved] == [("MapDataset/_21", "random_crop")]
    assert found.steps[0].label == found.steps[0].name
    assert [step.registered_position for step in found.planned] == [0, 2, 1, 3, 4]
    crop = found.moved[0]
    assert (crop.registered_position, crop.planned_position, crop.elements, crop.traits[0]) == (2, 1, 4000, "reads 0")
    assert (crop.factor, crop.cpu_s) == pytest.approx((1 / 6, 1.5 / 4000))
    # The batch step gets 3,800 elements and produces 60.
    assert found.steps[4].cpu_s == pytest.approx(0.9 / 3800)
    assert found.steps[4].bytes_out == pytest.approx(3800 * 4 * 150528 / 60)
    assert found.predicted_gain == pytest.approx(1 - 0.01482 / 0.02551)
    assert found.measured_gain == pytest.approx(1 - 0.01519 / 0.02604)
    assert found.measured_interval == pytest.approx((0.01031 / 0.02604, 0.01139 / 0.02604))
    assert found.production_gain == pytest.approx(1 - 0.0161 / 0.0249)
    assert [(one.component, one.within) for one in found.differences] == [(0, True), (1, True)]
    assert pickle.loads(pickle.dumps(found)) == found


def test_candidates_have_the_values_of_the_answer():
    found = recorded("candidates").cache
    assert (found.cache, found.state, "--cache-dir DIR" in found.problem) == ("auto", "", True)
    assert [(one.name, one.origin, one.reason, one.stored) for one in found.candidates] == [
        ("", "found", "", False),
        ("", "found", "computed_files", False),
        ("decoded", "marked", "", False),
        ("augmented", "marked", "random", False),
    ]
    assert [one.legal for one in found.candidates] == [True, False, True, False]
    assert [one.freezes for one in found.candidates] == [False, False, True, False]
    assert "freeze_randomness=True" in found.candidates[3].why
    forced, other = recorded("cached").cache.candidates
    assert (forced.origin, forced.name, forced.stored, other.stored) == ("forced", "", True, False)
    off = recorded("uncached").cache
    assert (off.cache, off.candidates[0].reason, off.problem) == ("off", "off", "")
    # An older dispatcher does not list candidates.
    old = recorded("off")
    assert (old.cache.candidates, "cache" in old.text(120)) == ((), False)
    assert "<td" in recorded("cached").cache._repr_html_()
    assert str(found) in str(recorded("candidates"))


def test_the_order_has_the_attributes_of_the_explanation():
    found = recorded("adopted")
    assert isinstance(found.order, pecan.OrderExplanation)
    assert found.order == "auto"
    assert found.order != "off"
    assert found.order != 1
    assert found.order == recorded("adopted").order != recorded("refused").order
    for name in ("job_id", "tolerance", "state", "why", "steps", "planned", "moved", "predicted_gain", "measured_gain"):
        assert getattr(found, name) == getattr(found.order, name)
    for name in ("measured_interval", "production_gain", "differences", "response"):
        assert getattr(found, name) == getattr(found.order, name)
    assert str(found).startswith(str(found.order))


def test_the_placement_has_the_values_of_the_answer():
    found = recorded("placed").placement
    assert (found.objective, found.state, found.converged) == ("cost", "monitor", True)
    assert (found.remote, found.local, found.running_remote, found.running_local) == (6, 1, 5, 1)
    assert found.why.startswith("6 remote, 1 local is the best")
    assert found.prices == pecan.WorkerPrices("USD", 1.05, 0.25, 0.1, 3.45)
    assert (found.search_windows, found.search_lost_s, found.search_cost) == (6, 9.31, 0.00731)
    best, _, unmeasured, first = found.candidates
    assert (best.remote, best.local, best.predicted_s, best.measured_s, best.windows) == (6, 1, 0.0201, 0.0203, 3)
    # Two trainers, six remote workers and a local one take an hour for 3600 / 0.0203 elements of each trainer.
    assert best.measured_cost == pytest.approx(1000 * 0.0203 / 3600 * (2 * 1.05 + 6 * 0.25 + 0.1) / 2)
    assert (unmeasured.measured_s, unmeasured.measured_cost) == (None, None)
    assert unmeasured.predicted_cost == pytest.approx(1000 * 0.02 / 3600 * (2 * 1.05 + 12 * 0.25) / 2)
    assert first.predicted_s == first.measured_s
    assert str(found) in str(recorded("placed"))
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_placement_without_prices_or_objective_says_so():
    found = recorded("unpriced").placement
    assert (found.prices, found.search_cost, found.converged) == (None, None, False)
    assert all(one.predicted_cost is one.measured_cost is None for one in found.candidates)
    assert "none: the table of prices has no trainers.v5" in str(found)
    assert "none: the dispatcher has no table of prices" in str(
        response.from_json({"placement_options": {"objective": "time"}}).placement
    )
    assert recorded("off").placement is None
    assert "the job has no objective, so all workers serve it" in str(recorded("off"))
    assert "now 2 remote and 0 local workers" in str(response.from_json({"fleet": {"remote": 2}}))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({}, "any number of"), ({"min_remote": 2}, "at least 2"), ({"max_remote": 2}, "at most 2"),
        ({"min_remote": 2, "max_remote": 5}, "2 to 5"), ({"max_remote": -1}, "no"),
    ],
)  # fmt: skip
def test_limits_are_shown(limits, text):
    found = response.from_json({"placement_options": {"objective": "time", **limits}})
    assert f"time, with {text} remote and any number of local workers" in str(found)


def test_unknown_values_are_none():
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
    ("positions", "moved"),
    [
        ([], []), ([0], []), ([1, 0], [1]), ([1, 2, 0], [2]), ([2, 0, 1], [0]), ([0, 3, 1, 2], [1]),
        ([2, 1, 0], [1, 2]), ([1, 1], []), ([0, 5], []),
    ],
)  # fmt: skip
def test_as_few_steps_as_possible_count_as_moved(positions, moved):
    steps = [{"node": str(number), "place": position} for number, position in enumerate(positions)]
    found = response.from_json({"steps": steps})
    assert [step.registered_position for step in found.moved] == moved


class Reader(html.parser.HTMLParser):
    """Collects tags and texts as a browser parses them."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells = set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert attributes in ([], [("style", "text-align: left")])

    def handle_data(self, data):
        self.cells.append(data)


@pytest.mark.parametrize("name", NAMES)
def test_the_html_of_a_notebook_has_only_table_tags(name):
    reader = Reader()
    text = recorded(name)._repr_html_()
    reader.feed(text)
    assert reader.tags <= {"table", "tr", "td", "th"}
    assert text.isprintable()
    assert recorded(name).why in reader.cells
    for step in recorded(name).steps:
        assert step.label in reader.cells


def test_markup_in_names_is_escaped():
    markup = "</td><script>alert('1')</script>&amp;\""
    step = {"node": markup, "op": markup, "traits": [markup], "reason": markup}
    answer = {"job_id": markup, "state": markup, "why": markup, "steps": [step], "trial": {"refused": markup + markup}}
    reader = Reader()
    reader.feed(response.from_json(answer)._repr_html_())
    assert reader.tags == {"table", "tr", "td", "th"}
    # Job, state and why; both orders; the step with its trait; the step with its reason.
    assert reader.cells.count(markup) == 9
    assert markup + markup in reader.cells


MISTAKES = {
    "nothing": ((None,), {}, TypeError, "distribute"),
    "a function": ((print,), {}, TypeError, "distribute"),
    "an empty name": (("", "h:1"), {}, ValueError, "must not be empty"),
    "a name without a service": (("train",), {}, ValueError, "no private cluster"),
    "no port": (("train", "localhost"), {}, ValueError, "host:port"),
    "no time": (("train", "h:1"), {"dispatcher_timeout_s": 0}, ValueError, "above 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_arguments_raise_at_the_call(name):
    arguments, named, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words) as caught:
        pecan.explain(*arguments, **named)
    assert isinstance(caught.value, pecan.PecanError)
