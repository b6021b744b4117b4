"""JSON that is nested too deeply would crash a parser, so such JSON never reaches the parser."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.json.json_bounds import depth_of, value_end
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.limits import MAX_DEPTH
from tests.support.parsing import AB, infer, take
from tests.support.poison.texts import deep


def levels(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


values = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\[]{}')),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@given(values)
def test_depth_and_end_of_a_value_are_exact(value: object) -> None:
    text = json.dumps(value)
    assert depth_of(text.encode()) == levels(value)
    assert value_end(f"[{text}] ]", 0) == len(text) + 2


@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 150, 1100, 50_000])
def test_a_deep_record_does_not_stop_others(depth: int, opening: str, closing: str) -> None:
    """Otherwise one deeply nested record could crash the process of a task, and no other record of the object would be
    loaded. If `rescue` rejected the record, the record's other fields would be missing from the table.
    """
    line = deep(depth, opening, closing)
    body = b'{"id":1}\n' + line + b'{"id":2}\n'
    assert infer([("jsonl", body)]) == pa.schema([("id", pa.int64())])
    for schema in (pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("deep", pa.string())])):
        for inferred in (False, True):
            rows, rejects = take([body], schema, "jsonl", inferred=inferred)
            assert [row["id"] for _, _, row in rows] == [1, 2]
            assert [(r.offset, r.reason) for r in rejects] == [
                (9, f"nested deeper than {MAX_DEPTH} levels, the limit")
            ]
            rows, rejects = take([body], schema, "jsonl", inferred=inferred, mismatches="rescue")
            assert [row["id"] for _, _, row in rows] == [1, 7, 2]
            assert rejects == []
            rescued = json.loads(rows[1][2]["_rescued"])
            assert rescued["deep"] == line.decode().split('"deep":', 1)[1][:-2]


def test_brackets_in_strings_do_not_add_to_the_depth() -> None:
    text = '[{"' * 1000
    body = json.dumps({"a": 1, "b": text}).encode()
    rows, rejects = take([body, body], AB, "jsonl")
    assert [row["b"] for _, _, row in rows] == [text, text]
    assert rejects == []


@pytest.mark.parametrize(
    ("later", "kind"),
    [
        ("2", pa.int64()),
        ("2.5", pa.float64()),
        ("null", pa.int64()),
    ],
)
def test_new_fields_get_a_type_that_fits_all_lines(later: str, kind: pa.DataType) -> None:
    """Otherwise the first lines of a block would decide the type of a field, and a late field would be lost."""
    lines = ['{"id":1,"new":1,"in":{"a":1}}'] * 5000
    late = f'{{"id":2,"new":{later},"in":{{"b":[{{"c":1}}]}},"late":true}}'
    for body, more in (([*lines, f'{{"id":2,"new":{later}}}'], False), ([*lines, late], True)):
        target = Target(schema=pa.schema([("id", pa.int64())]), inferred=True)
        (found,) = FORMATS["jsonl"].parse([("k", "\n".join(body).encode())], target)
        parts = [("a", pa.int64()), *([("b", pa.list_(pa.struct([("c", pa.int64())])))] if more else [])]
        fields = [("new", kind), ("in", pa.struct(parts)), *([("late", pa.bool_())] if more else [])]
        assert found.new_fields == [pa.schema(fields)]
