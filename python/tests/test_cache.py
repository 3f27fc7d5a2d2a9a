"""`cache_candidate`: arguments that it refuses, and what it does without `distribute()`."""

import pecan
import pytest
import tensorflow as tf


@pytest.mark.parametrize("name", ["", "a-b", "a b", "ä", "x" * 65])
def test_names_that_are_refused(name):
    with pytest.raises(ValueError, match="1 to 64 letters") as caught:
        pecan.cache_candidate(name)
    assert isinstance(caught.value, pecan.PecanError)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((7,), "must be a string"), ((None,), "must be a string"), (("decoded", 1), "True or False")],
)
def test_types_that_are_refused(arguments, words):
    with pytest.raises(TypeError, match=words):
        pecan.cache_candidate(*arguments)


def test_a_promise_that_is_no_flag_is_refused():
    for mark in (pecan.cache, lambda **options: pecan.cache_candidate("decoded", **options)):
        with pytest.raises(TypeError, match="`files_never_change` must be True or False") as caught:
            mark(files_never_change="yes")
        assert isinstance(caught.value, pecan.PecanError)


@pytest.mark.parametrize("mark", [
    pecan.cache(), pecan.cache(files_never_change=True), pecan.cache_candidate("7th", True),
    pecan.cache_candidate("7th", True, files_never_change=True), pecan.cache_candidate("x" * 64),
])
def test_a_mark_changes_nothing_in_a_local_run(mark):
    plain = tf.data.Dataset.range(20).map(lambda x: {"id": x, "text": tf.strings.as_string(x)}).batch(3)
    marked = plain.apply(mark)
    assert marked.element_spec == plain.element_spec
    assert marked.cardinality() == plain.cardinality()
    ours, theirs = list(marked.as_numpy_iterator()), list(plain.as_numpy_iterator())
    assert len(ours) == len(theirs)
    assert all((a[key] == b[key]).all() for a, b in zip(ours, theirs) for key in b)
