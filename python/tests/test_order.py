"""The words that keep steps where they are: what they refuse, and what they leave alone."""

import pecan
import pytest
import tensorflow as tf


def test_what_is_kept_is_called_as_it_was():
    def half(x, *, by=2):
        """Divides."""
        return x / by

    kept = pecan.keep_position(half)
    assert (kept(6), kept(6, by=3), kept.__name__, kept.__doc__) == (3, 2, "half", "Divides.")
    assert pecan.keep_position(lambda x: x)(5) == 5


@pytest.mark.parametrize("wrong", [None, 7, "normalise", tf.constant(1)], ids=repr)
def test_only_functions_are_kept(wrong):
    for keep in (pecan.keep_position, pecan.keep_position_of):
        with pytest.raises(TypeError, match=r"write\s+dataset\.") as caught:
            keep(wrong)
        assert isinstance(caught.value, pecan.PecanError)


def test_a_dataset_is_no_function():
    with pytest.raises(TypeError, match="keep_position"):
        pecan.keep_position(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match=r"returned NoneType"):
        tf.data.Dataset.range(3).apply(pecan.keep_position_of(lambda ds: None))


@pytest.mark.parametrize("name", ["keep_posistion", "keep_postion"])
def test_a_misspelt_name_is_told_the_right_one(name):
    with pytest.raises(AttributeError, match=r"did you mean keep_position\?"):
        getattr(pecan, name)
    assert not hasattr(pecan, name)


def test_other_names_are_told_nothing():
    with pytest.raises(AttributeError) as caught:
        pecan.nothing_like_it  # noqa: B018
    assert "did you mean" not in str(caught.value)
