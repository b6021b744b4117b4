"""Contradictions between the declared schema and a table, the suggested command, and the changes that this command
makes.
"""

import json
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.column_names import object_names, table_names
from s3notify_platform.table.pinned_schema import TableSchema
from s3notify_platform.table.schema_change import check_types, contradictions, planned_change, set_command


def columns(**kinds: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def struct(**kinds: Any) -> Any:
    return json.loads(columns(**kinds))


def kinds(schema: str) -> dict[str, Any]:
    return {part["name"]: part["type"] for part in json.loads(schema)["fields"]}


KNOWN = TableSchema(
    source=columns(a="long", b="string", s=struct(x="long", y="date"), left_out="long"),
    rows=columns(a="long", b="decimal(5,2)", s=struct(x="long", y="date"), made="double"),
    inferred=True,
)


def test_column_changes_with_its_parsing_type() -> None:
    found = planned_change(KNOWN, columns(A="string"))
    assert [str(each) for each in found.every] == ["a bigint → string"]
    assert kinds(found.schema.source)["a"] == kinds(found.schema.rows)["a"] == "string"
    assert found.schema.inferred


def test_column_of_a_transform_stays() -> None:
    """Otherwise a change of the parsing type would also change a column that a transform makes."""
    read = planned_change(KNOWN, columns(b="long"))
    assert (kinds(read.schema.source)["b"], kinds(read.schema.rows)["b"]) == ("long", "decimal(5,2)")
    assert (read.columns, [each.how for each in read.parsed]) == ((), ["again"])
    made = planned_change(KNOWN, columns(b="decimal(7,2)"), of_transform=True)
    assert (kinds(made.schema.source)["b"], kinds(made.schema.rows)["b"]) == ("string", "decimal(7,2)")
    assert kinds(planned_change(KNOWN, columns(made="string")).schema.rows)["made"] == "string"
    assert kinds(planned_change(KNOWN, columns(left_out="string")).schema.source)["left_out"] == "string"


def test_column_is_found_by_its_name_in_objects_too() -> None:
    """Quarantine shows columns under their names in the objects. So a user must be able to give these names, too."""
    held = columns(**{"order id": "long"})
    known = TableSchema(source=table_names(held, safe=True), rows=columns(order_id="long"), inferred=True)
    for name in ("order_id", "Order ID"):
        found = planned_change(known, columns(**{name: "string"}))
        assert kinds(found.schema.source) == kinds(found.schema.rows) == {"order_id": "string"}
        assert kinds(object_names(found.schema.source)) == {"order id": "string"}
        assert found.names == {"order_id": "order id"}


def test_omitted_fields_stay() -> None:
    found = planned_change(KNOWN, columns(s=struct(x="string")))
    assert kinds(json.dumps(kinds(found.schema.rows)["s"])) == {"x": "string", "y": "date"}
    assert [each.how for each in found.columns] == ["text"]


def test_same_types_change_nothing() -> None:
    found = planned_change(KNOWN, columns(a="long", b="string"))
    assert (found.every, found.schema) == ((), KNOWN) or json.loads(found.schema.rows) == json.loads(
        KNOWN.rows
    )
    assert not found.every


@pytest.mark.parametrize(
    ("wanted", "options", "error"),
    [
        (columns(nope="long"), {}, "no column 'nope'.*It has: a, b, s, made"),
        (columns(left_out="string"), {"of_transform": True}, "no column 'left_out'"),
        (columns(_slot="long"), {}, "'_slot': its type is the platform's own"),
        (columns(_rescued="long"), {}, "the platform's own"),
        (columns(s=struct(z="long")), {}, "'s' has no field 'z'"),
    ],
)
def test_impossible_change_is_refused(wanted: str, options: dict[str, bool], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        planned_change(KNOWN, wanted, **options)


def test_contradictions_are_found_by_path() -> None:
    """Otherwise columns that only one schema has, or a difference in nullability, would count as contradictions."""
    now = columns(a="long", s=struct(x="string", z="long"), new="date", b="decimal(5, 2)")
    assert [str(each) for each in contradictions(KNOWN.rows, now)] == [
        "column 's.x' is bigint in the table and now string"
    ]
    assert not [*contradictions("{}", now)]


@pytest.mark.parametrize(
    ("now", "source", "command"),
    [
        (columns(a="string"), columns(a="string"), "`s3notify schema set orders 'a string'`"),
        (columns(made="string"), columns(a="long"), "`s3notify schema set orders 'made string'`"),
        (
            columns(b="decimal(9,2)"),
            columns(b="string"),
            "`s3notify schema set orders 'b decimal(9,2)' --of-transform`",
        ),
        (
            columns(a="string", made="date"),
            "{}",
            "`s3notify schema set orders 'a string, made date'`",
        ),
    ],
)
def test_suggested_command_resolves_the_contradiction(now: str, source: str, command: str) -> None:
    """Otherwise the user would run the command, and get the same error again."""
    with pytest.raises(UsageError) as refused:
        check_types("orders", KNOWN.rows, now, source=source)
    assert command in str(refused.value)
    of_transform = "--of-transform" in command
    after = planned_change(KNOWN, now, of_transform=of_transform)
    check_types("orders", after.schema.rows, now, source=source)


def test_command_names_the_slot_asset_or_the_setting() -> None:
    with pytest.raises(UsageError, match="'a string' --asset daily`"):
        check_types("orders", KNOWN.rows, columns(a="string"), asset="daily")
    with pytest.raises(
        UsageError,
        match=r"^schema_hints: column 'a' is bigint .* otherwise remove the column from schema_hints",
    ):
        check_types("orders", KNOWN.rows, columns(a="string"), setting="schema_hints")


def test_names_are_quoted_for_a_shell() -> None:
    (column,) = json.loads(columns(**{"it's": "long"}))["fields"]
    assert set_command("orders", [column]) == """`s3notify schema set orders '`it'"'"'s` bigint'`"""
