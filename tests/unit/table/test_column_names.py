"""Names of columns: some names are safe, and no name ever changes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.table.column_names import bare_names, object_names, safe_name, table_names
from s3notify_platform.table.delta.metadata import delta_schema, united


def schema(**kinds: Any) -> str:
    return schema_of(kinds)


def schema_of(kinds: dict[str, Any]) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def names(kind: Any) -> list[Any]:
    """The names of all fields at any depth, in order."""
    kind = json.loads(kind) if isinstance(kind, str) and kind.startswith("{") else kind
    if not isinstance(kind, dict):
        return []
    own = [(f["name"], inner) if (inner := names(f["type"])) else f["name"] for f in kind.get("fields", ())]
    return own + [n for part in ("elementType", "keyType", "valueType") for n in names(kind.get(part))]


def every_struct(kind: Any) -> Iterator[list[str]]:
    if isinstance(kind, dict):
        if "fields" in kind:
            yield [field["name"] for field in kind["fields"]]
        for part in [*(f["type"] for f in kind.get("fields", ())), kind.get("elementType")]:
            yield from every_struct(part)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("order id", "order_id"),
        ("Amount (EUR)", "Amount_EUR"),
        ("a.b;c", "a_b_c"),
        ("naïve größe", "naïve_größe"),
        ("already_safe", "already_safe"),
        ("_own", "_own"),
        ("%", "column"),
    ],
)
def test_safe_name_has_letters_digits_and_underscores_only(name: str, safe: str) -> None:
    """Otherwise names would lose letters that are not in ASCII, or names that are already safe would change."""
    assert safe_name(name) == safe


def test_names_stay_unchanged_by_default() -> None:
    found = schema_of({"a b": "long", "s": json.loads(schema_of({"c;d": "string"}))})
    assert json.loads(table_names(found, safe=False)) == json.loads(found)


def test_names_are_safe_at_any_depth() -> None:
    inner = json.loads(schema_of({"c d": "string"}))
    found = schema_of(
        {
            "a b": inner,
            "e": {"type": "array", "elementType": inner, "containsNull": True},
            "f": {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True},
        }
    )
    named = table_names(found, safe=True)
    assert names(named) == [("a_b", ["c_d"]), ("e", ["c_d"]), ("f", ["c_d"])]
    assert names(object_names(named)) == [("a b", ["c d"]), ("e", ["c d"]), ("f", ["c d"])]


def test_safe_name_avoids_names_in_use() -> None:
    """Otherwise a safe name would collide with another field (ignoring case), or with a column of the platform."""
    found = schema_of({"a b": "long", "A_b": "long", "a-b": "long", "dt?": "date", "-_slot": "long"})
    named = table_names(found, safe=True, taken=["dt", "_slot"])
    assert names(named) == ["a_b_2", "A_b", "a_b_3", "dt_2", "_slot_2"]


def test_name_of_a_column_never_changes() -> None:
    """Otherwise a later column, or a change of the setting, would rename an existing column."""
    first = table_names(schema_of({"a b": "long"}), safe=True)
    grown = schema_of({"a b": "long", "a_b": "long", "c d": "long"})
    assert names(table_names(grown, first, safe=True)) == ["a_b", "a_b_2", "c_d"]
    assert names(table_names(grown, first, safe=False)) == ["a_b", "a_b_2", "c d"]
    as_is = table_names(schema_of({"a b": "long"}), safe=False)
    assert names(table_names(grown, as_is, safe=True)) == ["a b", "a_b", "c_d"]


def test_two_fields_of_one_name_contradict_each_other() -> None:
    """Otherwise two writers that give the same name to different fields would mix the values of both fields in one
    column.
    """
    one, other = (table_names(schema_of({name: "long"}), safe=True) for name in ("a b", "a-b"))
    assert united(one, other) is None
    assert united(one, one) is not None


def test_safe_names_need_no_column_mapping() -> None:
    found = schema_of({"a b": "long", "s": json.loads(schema_of({"c,d": "string"}))})
    assert delta_schema(bare_names(table_names(found, safe=True))).protocol.writer == 2
    assert delta_schema(bare_names(table_names(found, safe=False))).protocol.writer == 5


_NAMES = st.text(st.sampled_from("aA_b1 ,;{}()=.\n\t"), min_size=1, max_size=4)
_KINDS = st.recursive(
    st.sampled_from(["long", "string"]),
    lambda kinds: st.one_of(
        st.dictionaries(_NAMES, kinds, min_size=1, max_size=5).map(
            lambda found: json.loads(schema_of(found))
        ),
        kinds.map(lambda kind: {"type": "array", "elementType": kind, "containsNull": True}),
    ),
    max_leaves=12,
)
_SCHEMAS = st.dictionaries(_NAMES, _KINDS, max_size=6)


@given(_SCHEMAS, _SCHEMAS, st.booleans())
def test_names_are_reversible_unique_and_stable(
    earlier: dict[str, Any], later: dict[str, Any], safe: bool
) -> None:
    """Otherwise names of columns would be irreversible, unsafe or not unique, or would replace earlier names."""
    held = table_names(schema_of(earlier), safe=True)
    now = schema_of({**later, **earlier})
    named = table_names(now, held, safe=safe)
    assert json.loads(object_names(named)) == json.loads(now)
    kept = {field["name"] for field in json.loads(named)["fields"]}
    assert kept >= {field["name"] for field in json.loads(held)["fields"]}
    for struct in every_struct(json.loads(table_names(now, safe=True))):
        assert all(re.fullmatch(r"\w+", name) for name in struct)
        assert len({name.casefold() for name in struct}) == len(struct)
