"""Decides how values of one type are converted to another type. Pure.

| from | to | how |
|---|---|---|
| a number | a number type that has all values of the old type | exact |
| a date | timestamp, as midnight in UTC | exact |
| numbers, booleans, dates, times | string | text |
| a number | another number type | checked |
| a timestamp | date | checked |
| binary | string | checked |
| any other type | any type | again |

- *exact*: no value changes.
- *text*: each value becomes a text. This text may differ from the text in the object (`007`, `1.50`).
- *checked*: a value stays if the new type has exactly the same value. Otherwise the value's object must be read again.
- *again*: the objects of all values must be read again.

A type with fields or elements is converted in the most costly way that a field or an element needs. But if a field or
an element needs the way *checked*, the whole type is converted in the way *again*.

Types are in Spark's JSON, and values are in Arrow's format.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.texts import sql_name
from s3notify_platform.table.delta.statistics import EXACT_DIGITS

How = Literal["exact", "text", "checked", "again"]

WORST: Final[tuple[How, ...]] = ("exact", "text", "checked", "again")
"""The ways of conversion, the cheapest first."""

_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_WHOLE: Final = {"float": 24, "double": 53}
"""For each type, a number of bits: every integer with at most this number of bits is a value of the type."""

_TIMES: Final = ("timestamp", "timestamp_ntz")
_TEXTS: Final = (*_DIGITS, *_WHOLE, "boolean", "date", *_TIMES)
_DDL: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NUMBER: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_INTEGER: Final = r"^-?0*[0-9]{1,19}(\.0*)?$"
_DATE: Final = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"


def how(old: Any, new: Any) -> How | None:
    """Returns the way in which values of the type `old` become values of the type `new`, or None if the types are
    equal.
    """
    if is_same_type(old, new):
        return None
    if (parts := _parts(old, new)) is None:
        return _of_plain(old, new) if isinstance(old, str) and isinstance(new, str) else "again"
    worst = max((found for pair in parts if (found := how(*pair))), key=WORST.index)
    return "again" if worst == "checked" else worst


def is_same_type(one: Any, other: Any) -> bool:
    """Returns true if two types are equal, apart from comments and nullability."""
    if isinstance(one, str) or isinstance(other, str):
        found = [each.replace(" ", "") if isinstance(each, str) else "" for each in (one, other)]
        return found[0] == found[1]
    parts = _parts(one, other)
    return parts is not None and all(is_same_type(*pair) for pair in parts)


def _parts(old: Any, new: Any) -> list[tuple[Any, Any]] | None:
    """Returns pairs of the inner types of two types: of their fields, of their elements, or of their keys and values.

    None if one of the two types is not nested, or if their kinds or the names of their fields differ.
    """
    if not isinstance(old, dict) or not isinstance(new, dict) or old["type"] != new["type"]:
        return None
    if old["type"] == "struct":
        if [part["name"] for part in old["fields"]] != [part["name"] for part in new["fields"]]:
            return None
        return [(a["type"], b["type"]) for a, b in zip(old["fields"], new["fields"], strict=True)]
    names = ("elementType",) if old["type"] == "array" else ("keyType", "valueType")
    return [(old[name], new[name]) for name in names]


def _of_plain(old: str, new: str) -> How:
    if new == "string":
        return "checked" if old == "binary" else "text" if old in _TEXTS or _decimal(old) else "again"
    if old == "date" and new in _TIMES:
        return "exact"
    if (old, new) == ("timestamp", "date"):
        return "checked"
    if _is_number(old) and _is_number(new):
        return "exact" if _all_fit(old, new) else "checked"
    return "again"


def _is_number(kind: str) -> bool:
    return kind in _DIGITS or kind in _WHOLE or _decimal(kind) is not None


def _decimal(kind: str) -> tuple[int, int] | None:
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def _all_fit(old: str, new: str) -> bool:
    """Returns true if each value of the numeric type `old` is also a value of the numeric type `new`."""
    before = _decimal(old) or ((_DIGITS[old], 0) if old in _DIGITS else None)
    if (after := _decimal(new)) is not None:
        return before is not None and before[1] <= after[1] and before[0] - before[1] <= after[0] - after[1]
    if new in _DIGITS:
        return old in _DIGITS and _DIGITS[old] <= _DIGITS[new]
    if old in _WHOLE:
        return _WHOLE[old] <= _WHOLE[new]
    return old in _DIGITS and 10 ** _DIGITS[old] <= 2 ** _WHOLE[new]


def ddl(kind: Any) -> str:
    """Returns a type in the form that `s3notify schema set` accepts."""
    match kind["type"] if isinstance(kind, dict) else "":
        case "struct":
            return f"struct<{', '.join(column_ddl(part['name'], part['type']) for part in kind['fields'])}>"
        case "array":
            return f"array<{ddl(kind['elementType'])}>"
        case "map":
            return f"map<{ddl(kind['keyType'])},{ddl(kind['valueType'])}>"
        case _:
            return _DDL.get(str(kind), str(kind))


def column_ddl(name: str, kind: Any) -> str:
    """Returns a column in the form that `s3notify schema set` accepts."""
    return f"{sql_name(name)} {ddl(kind)}"


# Values


def converted(values: pa.Array, kind: pa.DataType, change: How) -> tuple[pa.Array, pa.Array]:
    """Returns the values in another type, and a mask: true for each value whose object must be read again.

    Until the new read, such a value is null. But a text that is clearly a value of the new type is converted
    immediately. `change`: the result of `how` for the old and the new type.
    """
    nothing = pa.array([False] * len(values), pa.bool_())
    match change:
        case "exact" | "text":
            return values.cast(kind), nothing
        case "checked":
            found = _checked(values, kind)
            return found, pc.and_(pc.is_valid(values), pc.is_null(found))
        case "again":
            found = _of_text(values, kind) if pa.types.is_string(values.type) else pa.nulls(len(values), kind)
            return found, pc.is_valid(values)


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the same values in another type. Fields that a struct lacks are null, and other fields are left out.

    Raises `ArrowInvalid` or `ArrowNotImplementedError` if a value may not be exactly the same in the type `kind`.
    """
    if _may_round(values.type, kind):
        raise pa.ArrowInvalid("its values may be rounded")
    return values.cast(kind)


def _may_round(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns true if Arrow's cast may change a value without an error."""
    types = pa.types
    if types.is_struct(old) and types.is_struct(new):
        kept = [part for part in old if new.get_field_index(part.name) >= 0]
        return any(_may_round(part.type, new.field(part.name).type) for part in kept)
    if types.is_map(old) and types.is_map(new):
        return _may_round(old.key_type, new.key_type) or _may_round(old.item_type, new.item_type)
    if types.is_list(old) and types.is_list(new):
        return _may_round(old.value_type, new.value_type)
    if types.is_string(old):
        return bool(types.is_primitive(new) or types.is_decimal(new))
    if types.is_boolean(new):
        return not (types.is_boolean(old) or types.is_null(old))
    if types.is_date(new):
        return bool(types.is_timestamp(old))
    if types.is_floating(new):
        return bool(types.is_decimal(old) or (types.is_floating(old) and new.bit_width < old.bit_width))
    return False


def _where(values: pa.Array, ok: pa.Array) -> pa.Array:
    """Returns the values, with null where `ok` is not true."""
    return pc.if_else(pc.fill_null(ok, False), values, pa.nulls(len(values), values.type))


def _checked(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts the values that are exactly the same in the type `kind`. Other values become null."""
    old = values.type
    if pa.types.is_binary(old):
        return _halved(values, lambda some: some.cast(kind))
    if pa.types.is_timestamp(old):
        days = values.cast(kind, safe=False)
        return _where(days, pc.equal(days.cast(old), values))
    if pa.types.is_decimal(kind):
        return _of_text(values.cast(pa.string()), kind)
    if pa.types.is_integer(kind):
        if not pa.types.is_integer(old):
            return _of_text(values.cast(pa.string()), kind)
        shorter = values.cast(kind, safe=False)
        return _where(shorter, pc.equal(shorter.cast(old), values))
    if pa.types.is_floating(old):
        shorter = values.cast(kind, safe=False)
        same = pc.equal(shorter.cast(old), values)
        return _where(shorter, pc.or_(same, pc.is_nan(values)))
    bits = 24 if pa.types.is_float32(kind) else 53
    most = 10**EXACT_DIGITS if pa.types.is_decimal(old) else 2**bits
    if not pa.types.is_decimal(old):
        return _where(values, _between(values, most)).cast(kind)
    # `EXACT_DIGITS` also counts the digits after the point.
    doubles = values.cast(pa.float64())
    kept = _where(doubles, _between(doubles, most / 10**old.scale))
    return kept if bits == 53 else pa.nulls(len(values), kind)


def _between(values: pa.Array, most: float) -> pa.Array:
    return pc.and_(pc.greater_equal(values, -most), pc.less_equal(values, most))


def _of_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts the texts that are clearly numbers or dates of this type. Other texts become null."""
    if pa.types.is_decimal(kind):
        before = kind.precision - kind.scale
        whole = rf"0*[0-9]{{1,{before}}}" if before else "0+"
        pattern = rf"^-?{whole}(\.[0-9]{{0,{kind.scale}}}0*)?$"
    elif pa.types.is_integer(kind):
        pattern = _INTEGER
    elif pa.types.is_floating(kind):
        pattern = _NUMBER
    elif pa.types.is_date(kind):
        pattern = _DATE
    else:
        return pa.nulls(len(texts), kind)
    plain = _where(texts, pc.match_substring_regex(texts, pattern))
    if not pa.types.is_integer(kind):
        return _halved(plain, lambda some: some.cast(kind))
    whole = pc.replace_substring_regex(plain, r"\..*$", "")
    numbers = _halved(whole, lambda some: some.cast(pa.int64()))
    return numbers if kind == pa.int64() else _checked(numbers, kind)


def _halved(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Converts all values.

    If the conversion fails, each half of the values is converted separately. So in the end, only values that do not fit
    are null.
    """
    return pa.concat_arrays([*_pieces(values, convert)])


def _pieces(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> Iterator[pa.Array]:
    try:
        yield convert(values)
    except pa.ArrowInvalid:
        half = len(values) // 2
        if not half:
            yield convert(pa.nulls(1, values.type))
        else:
            yield from _pieces(values.slice(0, half), convert)
            yield from _pieces(values.slice(half), convert)
