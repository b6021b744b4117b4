"""Values that do not fit their column, and fields that the schema lacks.

The setting `mismatches` is `quarantine` or `rescue`. With `quarantine`, a record with a mismatch becomes a reject. The
reject's reason contains the column and the value. With `rescue`, the record becomes a row: a value that does not fit is
null in its column, and `_rescued` has the value's text.

`_rescued` is a JSON object of paths and texts; Spark reads it as `from_json(_rescued, 'map<string,string>')`. Paths are
like `amount`, `customer.city`, `lines[2].sku`. A map is treated as a list of entries, with paths like
`by_id[2].value.sku`. The text of a value is the same as in the object. A JSON string is stored as its content, any
other JSON value as its JSON text. A value of Parquet is stored as JSON.

A ragged CSV record has more or fewer values than the header has columns. In `_rescued`, `_extra` has the surplus
values, and `_missing` has the columns without a value. `_extra` and `_missing` are JSON arrays.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Literal

import pyarrow as pa

from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.kernel.limits import MAX_RESCUED_PATHS
from s3notify_platform.kernel.texts import sql_name

Mismatches = Literal["quarantine", "rescue"]
MISMATCHES: Final = ("quarantine", "rescue")

RESCUED: Final = pa.field("_rescued", pa.string())
"""The column that tables of sources with `mismatches: rescue` have."""

EXTRA: Final = "_extra"
MISSING: Final = "_missing"

OTHERS: Final = "(others)"

SHOWN_CHARS: Final = 100
"""Maximum number of a value's characters in a reason."""

_COMMAND_CHARS: Final = 200
_INDEX: Final = r"\[\d*\]"
_FRACTION: Final = re.compile(r"[+-]?\d{1,8}\.\d{1,7}")
"""Numbers that a double holds with all their digits."""

Tally = dict[int, Counter[str]]
"""The count of values at each path, by object number."""


@dataclass(slots=True, kw_only=True)
class Rescued:
    """The values of one record that cannot be stored in the record's columns, by path.

    `mismatches`: texts of values that do not fit their column; `unnamed`: texts of values whose fields the schema
    lacks.
    """

    mismatches: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, str] = field(default_factory=dict)

    def text(self) -> str | None:
        """Returns the record's value in column `_rescued`."""
        texts = self.mismatches | self.unnamed
        return as_json(texts) if texts else None


def as_json(value: Any) -> str:
    """Returns compact JSON, with escapes only if a string has half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    return text


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def shortened(text: str) -> str:
    """Shortens a text for use in a reason."""
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def text_of(value: Any) -> str:
    """Converts a Python value to a text for `_rescued`; bytes become hexadecimal digits."""
    return value if isinstance(value, str) else as_json(value) if _is_json(value) else _plain(value)


def _is_json(value: Any) -> bool:
    return isinstance(value, bool | int | float | dict | list)


def below(path: str, name: str) -> str:
    """Returns the path of a field. A name that contains separators of paths is put in backticks."""
    name = f"`{name}`" if re.search(r"[.\[\]`]", name) else name
    return f"{path}.{name}" if path else name


def kinds_of(fields: pa.Schema | pa.StructType) -> dict[str, pa.DataType]:
    """Returns the types of columns, or of a struct's fields, by name."""
    return {part.name: part.type for part in fields}


def unnamed_in(
    values: Mapping[str, Any], kinds: Mapping[str, pa.DataType], path: str
) -> Iterator[tuple[str, Any]]:
    """Yields the path and value of each field that `kinds` lacks, at any depth, except nulls."""
    for name, value in values.items():
        if value is None:
            continue
        if name not in kinds:
            yield below(path, name), value
        elif isinstance(value, dict | list):
            yield from _unnamed_within(value, kinds[name], below(path, name))


def _unnamed_within(value: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, Any]]:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        yield from unnamed_in(value, kinds_of(kind), path)
    elif pa.types.is_list(kind) and pa.types.is_nested(kind.value_type) and isinstance(value, list):
        for place, item in enumerate(value):
            yield from _unnamed_within(item, kind.value_type, f"{path}[{place}]")
    elif pa.types.is_map(kind) and isinstance(value, list):
        kinds = {"key": kind.key_type, "value": kind.item_type}
        for place, (key, item) in enumerate(value):
            yield from unnamed_in({"key": key, "value": item}, kinds, f"{path}[{place}]")


def count(tally: Tally, index: int, paths: Iterable[str], times: int = 1) -> None:
    """Adds 1 (or `times`) to the count of each path, for object `index`. All items of a list share one path."""
    counter = tally.setdefault(index, Counter())
    for path in paths:
        counter[re.sub(r"\[\d+\]", "[]", path)] += times


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Adds counts by path.

    If there are more than `MAX_RESCUED_PATHS` paths, the rarest paths are counted together as `OTHERS`.
    """
    total: Counter[str] = Counter()
    for one in filter(None, counts):
        total.update(one)
    if len(total) <= MAX_RESCUED_PATHS:
        return dict(total)
    kept = dict(total.most_common(MAX_RESCUED_PATHS))
    kept[OTHERS] = kept.get(OTHERS, 0) + total.total() - sum(kept.values())
    return kept


Read = Callable[[Any, pa.DataType], pa.Array]


def fitted(values: Any, kind: pa.DataType, read: Read, single: Callable[[int], pa.Array]) -> pa.Array:
    """Converts `values` to `kind` with `read`. If `read` raises, converts each half of the values separately, down to
    single values.

    If `read` raises for a single value, `single` receives the value's number and returns the replacement, an array of
    length one.
    """
    done: list[pa.Array] = []
    pending = [(0, len(values))]
    while pending:
        low, high = pending.pop()
        if low == high:
            continue
        try:
            array = read(values[low:high], kind)
            if len(array) != high - low:
                raise pa.ArrowInvalid("not one value for each record")
        except (pa.ArrowException, UnicodeError):
            if high - low > 1:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]
                continue
            array = single(low)
        done.append(array)
    if len(done) == 1:
        return done[0]
    return pa.concat_arrays(done) if done else pa.nulls(0, kind)


def mismatch_reason(path: str, schema: pa.Schema, note: str = "", source: str = "") -> Callable[[str], str]:
    """Returns a function that makes a reject's reason from a text that does not fit the column at `path`.

    `note`: how values at the path are written. `source`: the name of the source, if its schema was inferred; the reason
    then contains a command to change the inferred type.
    """
    if path == EXTRA:
        return "more values than the header has names: {}".format
    if path == MISSING:
        return "no values for {}".format
    end = f" does not fit {sql_type(schema.field(path).type)}" if path in schema.names else " does not fit"
    end += note
    # The command is made only for the first mismatch: most paths of a block have none, and schemas may be wide.
    remedy = cache(partial(accepting, path, schema, source))

    def reason(text: str) -> str:
        return f"{path}: {text[:SHOWN_CHARS]!r}{end}{remedy(bool(_FRACTION.fullmatch(text)))}"

    return reason


def accepting(path: str, schema: pa.Schema, source: str, fraction: bool) -> str:
    """Returns the end of a reason: a command that changes the type at the path, so that the value fits.

    `source`: see `mismatch_reason`. `fraction`: the value is a number with a fraction. The command names no column and
    no type if `path` is "", or if the full command would be unknown or too long.
    """
    if not source:
        return ""
    place, lists = re.sub(_INDEX, "", path), len(re.findall(_INDEX, path[path.rfind(".") + 1 :]))
    found = next((ddl for each in schema if (ddl := _retyped(each, "", place, lists, fraction))), "")
    if not found or len(found) > _COMMAND_CHARS or "'" in found or not found.isprintable():
        return f"; `s3notify schema set {source}` changes the type of a column"
    decimals = ", or decimal(p,s) in place of double" if found.rstrip(">").endswith("double") else ""
    return f"; to accept such values: `s3notify schema set {source} '{found}'`{decimals}"


def _retyped(column: pa.Field, above: str, place: str, lists: int, fraction: bool) -> str:
    """Returns DDL for the column, in which the field at `place` has a new type. The new type is inside `lists` nested
    lists. All other fields are left out. Returns "" if the column does not contain this place.
    """
    at, inner, around = below(above, column.name), column.type, 0
    name = sql_name(column.name)
    while pa.types.is_list(inner):
        inner, around = inner.value_type, around + 1
    if at == place and not pa.types.is_string(inner):
        kind = "double" if fraction and pa.types.is_integer(inner) else "string"
        return f"{name} {'array<' * lists}{kind}{'>' * lists}"
    parts = inner if pa.types.is_struct(inner) and place.startswith(f"{at}.") else ()
    found = next((ddl for part in parts if (ddl := _retyped(part, at, place, lists, fraction))), "")
    return found and f"{name} {'array<' * around}struct<{found}>{'>' * around}"


def rescued_column(records: Sequence[Rescued | None]) -> pa.Array:
    """Returns the column `_rescued` of these records, in order. None stands for a record without rescued values."""
    return pa.array([rescued.text() if rescued else None for rescued in records], pa.string())


def rescued_too(
    table: pa.Table, index: Iterable[int], mismatched: Mapping[int, Mapping[str, str]]
) -> pa.Table:
    """Adds to `_rescued` the values that come from the keys of objects and do not fit their columns. Returns the
    changed Arrow table. `index`: the number of each row's object. `mismatched`: the values by object number and column
    name.
    """
    place = table.schema.get_field_index(RESCUED.name)
    own = {
        number: {below("", name): text for name, text in each.items()} for number, each in mismatched.items()
    }
    texts = [
        as_json(json.loads(text or "{}") | own[number]) if number in own else text
        for number, text in zip(index, table.column(place).to_pylist(), strict=True)
    ]
    return table.set_column(place, RESCUED, pa.array(texts, RESCUED.type))
