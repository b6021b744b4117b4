"""A choice selects rejects and objects in quarantine."""

import pyarrow as pa
import pytest

from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.quarantined import Choice


def test_choice_selects_failing_objects_by_reason_and_key():
    state = ObjectState(key="a", etag="1", size=1, reason="no such column x")
    assert Choice(reason="column").has(state)
    assert not Choice(reason="row").has(state)
    assert not Choice(keys=frozenset({"b"})).has(state)


@pytest.mark.parametrize(
    ("reason", "chosen"),
    [
        ("n: 'x' does not fit bigint", True),
        ("n.x: 'x' does not fit", True),
        ("n[2].x: 'x' does not fit", True),
        ("`n`: 'x' does not fit", True),
        ("2 more, the first: n: 'x' does not fit bigint", True),
        ("Parquet: row group 0: column 'n' does not fit bigint: overflow", True),
        ("nn: 'x' does not fit bigint", False),
        ("m: 'n: x' does not fit bigint", False),
        ("field 'n' is not in the schema", False),
    ],
)
def test_choice_selects_by_column(reason, chosen):
    """Otherwise a retry after a change of one column would include objects with other reasons, or omit objects whose
    reasons name this column.
    """
    choice = Choice(columns=("m.m", "n"))
    rejects = pa.table({"_key": ["a"], "reason": [reason]})
    assert choice.among(rejects).num_rows == chosen
    assert choice.has(ObjectState(key="a", etag="e", size=1, reason=reason)) == chosen
