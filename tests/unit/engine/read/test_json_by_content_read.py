"""JSON lists and JSON lines in objects with the same suffix, from the bucket to the table, in parts and over several
rounds.
"""

import json

import pytest

from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "settings",
    [{}, {"split_bytes": 300}, {"split_bytes": 300, "max_bytes": 700}],
    ids=["whole", "in parts", "over rounds"],
)
def test_each_record_is_one_row(ministack: S3Server, settings: dict[str, int]) -> None:
    """Otherwise records at the border of two parts or two rounds would be lost, or would be in the table twice. A row
    with a wrong offset could not be traced to its record in the object.
    """
    place = Place(ministack, format="auto", **settings)
    rows = [{"a": number, "text": "x" * 20} for number in range(40)]
    bodies = {
        "raw/lines.json": "\n".join(map(json.dumps, rows)),
        "raw/list.json": json.dumps(rows, indent=1),
        "raw/short.json": json.dumps(rows[:1]),
        "raw/more.jsonl": "\n".join(map(json.dumps, rows)),
    }
    for key, body in bodies.items():
        place.store.put(key, body.encode())
    run = place.run("batch")
    assert all(result.ok for result in run.slots.values()), run
    found = place.rows()
    assert {(row["_key"], row["a"]) for row in found} == {
        (key, row["a"]) for key in bodies for row in (rows[:1] if key == "raw/short.json" else rows)
    }
    assert len(found) == 121
    for row in found:
        assert bodies[row["_key"]][row["_offset"]] == "{"
    assert place.rows(rejects=True) == []
