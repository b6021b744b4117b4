"""Schemas: given, inferred, pinned, and growing."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.errors import UsageError
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("not a schema at all", "does not parse"),
        ("id bigint,", "does not parse"),
        ("bigint", "does not parse|give columns"),
        ("_key string", "'_key': the name is kept"),
        ("m map<string,int>", "'m': JSON gives no map"),
        ("v variant", "variant is not supported"),
    ],
)
def test_schemas_that_do_not_parse(lake_of: Callable[..., Lake], schema: str, reason: str) -> None:
    lake = lake_of(schema=schema)
    lake.put("a.jsonl", [{"id": 1}])
    with pytest.raises(UsageError, match=reason):
        lake.ingest()
    assert lake.source.table().head(lake.slot("a.jsonl")) is None


def test_given(lake_of: Callable[..., Lake]) -> None:
    """Given types are what the table has; fields it does not name are left out, missing ones are null."""
    lake = lake_of(schema="id bigint, amount decimal(12,2), at timestamp, day date, tags array<string>")
    lake.put(
        "a.jsonl",
        [
            {
                "id": 1,
                "amount": 1.5,
                "at": "2024-05-06T07:08:09Z",
                "day": "2024-05-06",
                "tags": ["x"],
                "z": 0,
            },
            {"id": 2},
            {"id": 3, "amount": "much"},
        ],
    )
    lake.ingest()
    first, second = lake.values()
    assert str(first["amount"]) == "1.50"
    assert (str(first["at"]), str(first["day"]), first["tags"]) == (
        "2024-05-06 07:08:09+00:00",
        "2024-05-06",
        ["x"],
    )
    assert second == {"id": 2, "amount": None, "at": None, "day": None, "tags": None}
    assert [json.loads(r["raw"])["id"] for r in lake.rejects()] == [3]


def test_inferred_and_pinned(lake: Lake) -> None:
    """The first batch decides; a later record that contradicts it is rejected, and the type stays."""
    lake.put("a.jsonl", [{"id": 1, "v": 1}])
    lake.ingest()
    lake.put("b.jsonl", b'{"id": 2, "v": "text"}\n{"id": 3, "v": 2}\n')
    lake.ingest()
    assert lake.values() == [{"id": 1, "v": 1}, {"id": 3, "v": 2}]
    assert [r["_key"] for r in lake.rejects()] == ["raw/b.jsonl"]


def test_inferred_grows(lake: Lake) -> None:
    """Fields not seen before widen the schema, in the batch that brings them; earlier rows give nulls."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put("b.jsonl", [{"id": 2, "note": "x"}])
    lake.put("c.jsonl", [{"id": 3}])
    lake.put("d.jsonl", [{"id": 4, "deep": {"er": 1.5}}])
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert lake.rejects() == []
    assert lake.values() == [
        {"id": 1, "note": None, "deep": None},
        {"id": 2, "note": "x", "deep": None},
        {"id": 3, "note": None, "deep": None},
        {"id": 4, "note": None, "deep": {"er": 1.5}},
    ]
    assert lake.ingest().slots[lake.slot("b.jsonl")].status == "unchanged"


def test_what_cannot_grow_is_rejected(lake: Lake) -> None:
    """A new field inside a struct would change the type of a column: such records wait in quarantine."""
    lake.put("a.jsonl", [{"o": {"x": 1}}])
    lake.ingest()
    lake.put("b.jsonl", b'{"o": {"x": 2, "y": 3}}\n{"o": {"x": 4}}\n')
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert [row["o"] for row in lake.values()] == [{"x": 1}, {"x": 4}]
    assert "not in the schema" in lake.rejects()[0]["reason"]


def test_given_after_inferred(lake: Lake) -> None:
    """A schema given later is what later objects are parsed with; the table keeps its columns."""
    lake.put("a.jsonl", [{"id": 1, "old": True}])
    lake.ingest()
    given = lake.with_source(schema="id bigint, fresh double")
    given.put("b.jsonl", [{"id": 2, "old": False, "fresh": 1}])
    given.ingest()
    assert given.values() == [
        {"id": 1, "old": True, "fresh": None},
        {"id": 2, "old": None, "fresh": 1.0},
    ]
    contradicting = lake.with_source(schema="id string")
    contradicting.put("c.jsonl", [{"id": "3"}])
    with pytest.raises(UsageError, match="column 'id' is long in the table and now string"):
        contradicting.ingest()


def test_two_runs_that_infer_at_once(lake: Lake) -> None:
    """Of two inferences one is pinned first, and both parse with it."""
    lake.put("a.jsonl", [{"v": 1}])

    def other_run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lake.ingest).result()
        lake.put("a.jsonl", [{"v": 1, "w": "x"}])
        lake.put("b.jsonl", [{"v": 2.5}])

    lake.ingest(when_reading=other_run)
    lake.ingest()
    assert lake.values() == [{"v": 1, "w": "x"}]
    assert [r["_key"] for r in lake.rejects()] == ["raw/b.jsonl"]
