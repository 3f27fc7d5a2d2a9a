"""Errors of the Go code become exceptions of built-in classes and of the classes that tf.data service raises."""

import json
import pickle

import pecan
import pytest
from pecan._src import errors

KINDS = {
    # (reason, code): classes of the exception
    ("GRAPH_PARSE", 3): (pecan.InvalidGraphError, ValueError),
    ("BAD_ARGUMENT", 3): (pecan.InvalidArgumentError, ValueError),
    ("JOB_MISMATCH", 3): (pecan.JobMismatchError, ValueError),
    ("DATASET_MISMATCH", 3): (pecan.JobMismatchError, ValueError),
    ("DATASET_UNKNOWN", 5): (pecan.NotFoundError, LookupError),
    ("OP_FORBIDDEN", 7): (pecan.AuthError, PermissionError),
    ("MESSAGE_TOO_LARGE", 8): (pecan.LimitError,),
    ("GRAPH_VERSION", 9): (pecan.PreconditionError, RuntimeError),
    ("PY_FUNCTION", 12): (pecan.UnsupportedOpError, NotImplementedError),
    ("UNSUPPORTED", 12): (pecan.UnsupportedError, NotImplementedError),
    ("UNAVAILABLE", 14): (pecan.ServiceUnavailable, ConnectionError),
    ("STORE_CORRUPT", 15): (pecan.DataLossError,),
    ("INTERNAL", 13): (pecan.PecanError,),
}


def _text(reason, code):
    return json.dumps({"code": code, "reason": reason, "message": "what, where, and the way out"})


@pytest.mark.parametrize(("reason", "code"), KINDS)
def test_a_reason_code_selects_the_exception_class(reason, code):
    error = errors.from_text(_text(reason, code))
    for kind in (*KINDS[reason, code], pecan.PecanError):
        assert isinstance(error, kind)
    assert (error.reason, error.code) == (reason, code)
    assert str(error) == f"what, where, and the way out [pecan:{reason}]"


def test_with_tensorflow_loaded_the_exception_is_also_of_a_class_of_tf_errors():
    import tensorflow as tf

    error = errors.from_text(_text("DATASET_UNKNOWN", 5))
    assert isinstance(error, tf.errors.NotFoundError)
    assert isinstance(error, pecan.NotFoundError)
    assert isinstance(errors.from_text(_text("JOB_MISMATCH", 3)), tf.errors.InvalidArgumentError)
    assert isinstance(errors.from_text(_text("UNAVAILABLE", 14)), tf.errors.UnavailableError)
    assert str(error).startswith("what, where")
    assert error.message == str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.reason, isinstance(copy, tf.errors.NotFoundError)) == (str(error), "DATASET_UNKNOWN", True)


def test_a_text_in_another_format_becomes_the_message():
    assert str(errors.from_text("panic: oh")) == "panic: oh"
