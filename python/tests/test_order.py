"""`keep_position` and `keep_position_of`: arguments that they refuse, and functions that they leave unchanged."""

import pecan
import pytest
import tensorflow as tf


def test_a_pinned_function_has_the_same_signature_and_name():
    def half(x, *, by=2):
        """Divides."""
        return x / by

    pinned = pecan.keep_position(half)
    assert (pinned(6), pinned(6, by=3), pinned.__name__, pinned.__doc__) == (3, 2, "half", "Divides.")
    assert pecan.keep_position(lambda x: x)(5) == 5


@pytest.mark.parametrize("wrong", [None, 7, "normalise", tf.constant(1)], ids=repr)
def test_arguments_that_are_not_functions_raise(wrong):
    for keep in (pecan.keep_position, pecan.keep_position_of):
        with pytest.raises(TypeError, match=r"write\s+dataset\.") as caught:
            keep(wrong)
        assert isinstance(caught.value, pecan.PecanError)


def test_a_dataset_is_not_accepted_as_a_function():
    with pytest.raises(TypeError, match="keep_position"):
        pecan.keep_position(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match=r"returned NoneType"):
        tf.data.Dataset.range(3).apply(pecan.keep_position_of(lambda ds: None))


@pytest.mark.parametrize("name", ["keep_posistion", "keep_postion"])
def test_a_misspelt_name_gets_a_hint(name):
    with pytest.raises(AttributeError, match=r"did you mean keep_position\?"):
        getattr(pecan, name)
    assert not hasattr(pecan, name)


def test_other_unknown_names_get_no_hint():
    with pytest.raises(AttributeError) as caught:
        pecan.nothing_like_it  # noqa: B018
    assert "did you mean" not in str(caught.value)
