"""The tree of errors has one base class. The attributes of errors survive pickling from a Spark worker."""

import pickle

import pytest

from s3notify_platform.kernel import errors
from s3notify_platform.kernel.errors import (
    ConflictError,
    NotFoundError,
    QuotaExceededError,
    S3NotifyError,
    UsageError,
)
from s3notify_platform.protocols.keyspace import NotSignalledError

ALL = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("error", ALL)
def test_errors_have_one_base_class_and_are_pickled_whole(error):
    """Otherwise an error in a Spark worker would reach the driver without its type or message."""
    found = pickle.loads(pickle.dumps(error("what happened")))
    assert type(found) is error
    assert isinstance(found, S3NotifyError)
    assert "what happened" in str(found)


def test_attributes_survive_pickling():
    """Otherwise an error in a Spark worker would lose its keys, outcomes or retry time on the way to the driver."""
    assert pickle.loads(pickle.dumps(QuotaExceededError("full", 7.5))).retry_after_seconds == 7.5
    found = pickle.loads(pickle.dumps(NotSignalledError("half done", ("a", "b"))))
    assert (str(found), found.keys, found.outcomes) == ("half done", ("a", "b"), ())


def test_the_named_errors_of_xor_ack_have_general_base_classes():
    """Otherwise a caller that handles `ConflictError` or `NotFoundError` would miss the named errors of xor-ack."""
    assert issubclass(errors.TagExists, ConflictError)
    assert issubclass(errors.StaleLocalData, ConflictError)
    assert issubclass(errors.TagNotFound, NotFoundError)
    for name in ("LessThanTwoBuffers", "BufferLengthsUnequal", "ZeroBufferNoOp"):
        assert issubclass(getattr(errors, name), UsageError)


def test_python_idioms_catch_wrong_calls_and_unknown_things():
    """Otherwise `except ValueError` or `except LookupError` would not catch the package's errors."""
    assert issubclass(UsageError, ValueError)
    assert issubclass(NotFoundError, LookupError)
