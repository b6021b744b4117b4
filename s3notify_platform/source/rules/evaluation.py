"""Evaluates predicates on Arrow columns.

Null behaves as in SQL: a comparison with null is null. Numbers are compared by value. The comparison is exact unless a
number is a floating point number. NaN is not equal to any number, and neither less nor greater. A date or time can be
compared with an ISO 8601 text; a text without a zone is UTC. There are no other conversions: a text cannot be compared
with a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.arrow_values import timestamps
from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_RULE_DIGITS
from s3notify_platform.source.rules.grammar import Literal, Node, Operand

Columns = Mapping[str, pa.Array | pa.ChunkedArray]
Evaluate = Callable[[Columns], Any]
"""Maps the columns of rows to a column of booleans, or to the values of an operand."""

_COMPARISONS: Final = {
    "=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<>": pc.not_equal,
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip

_LAST_DAY_OF_TIMES: Final = pa.scalar(106_751_991, pa.int32())
"""The last day, in days since 1970, that a time in microseconds can express. Later days are compared as this day."""


def bound(node: Node, schema: pa.Schema) -> Evaluate:
    """Returns a function that evaluates a predicate on columns of `schema`.

    Raises `UsageError` for an unknown column or a wrong type. The type null stands for an unknown type: a predicate
    with a column of type null can be bound, but not evaluated.
    """
    match node.name:
        case "and" | "or":
            parts = [bound(part, schema) for part in node.parts]
            return _folded(pc.and_kleene if node.name == "and" else pc.or_kleene, parts)
        case "not":
            inner = bound(node.parts[0], schema)
            return lambda columns: pc.invert(inner(columns))
        case _:
            operands = [_Bound.of(operand, schema) for operand in node.operands]
            return _of_operands(node.name, operands)


def _folded(combine: Callable[[Any, Any], Any], parts: Sequence[Evaluate]) -> Evaluate:
    def evaluate(columns: Columns) -> Any:
        found = parts[0](columns)
        for part in parts[1:]:
            found = combine(found, part(columns))
        return found

    return evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """An operand, its type, and a function that returns its values.

    If `type` is None, the operand is the literal `value`.
    """

    said: str
    type: pa.DataType | None
    values: Evaluate
    value: Literal | None = None

    @classmethod
    def of(cls, operand: Operand, schema: pa.Schema) -> "_Bound":
        if isinstance(operand, Literal):
            return cls(said=f"{operand.value}", type=None, values=lambda _: operand.value, value=operand)
        name, kind, steps = _looked_up(operand.path, schema)

        def values(columns: Columns) -> Any:
            found = columns[name]
            for step in steps:
                found = pc.struct_field(found, [step])
            return found

        return cls(said=".".join(operand.path), type=kind, values=values)


def _looked_up(path: Sequence[str], schema: pa.Schema) -> tuple[str, pa.DataType, list[int]]:
    """Returns a column's name and type, and the indices of the nested fields in its path."""
    name = schema.names[_place(path[0], schema.names, "column")]
    kind, steps = schema.field(name).type, []
    for part in path[1:]:
        if pa.types.is_null(kind):
            return name, kind, []
        if not pa.types.is_struct(kind):
            raise UsageError(f"{'.'.join(path)!r}: {part!r} is not a field of a struct")
        steps.append(_place(part, [one.name for one in kind], f"field of {path[0]!r}"))
        kind = kind.field(steps[-1]).type
    return name, kind, steps


def _place(name: str, names: Sequence[str], what: str) -> int:
    if names.count(name) == 1:
        return names.index(name)
    found = [n for n, other in enumerate(names) if other.casefold() == name.casefold()]
    if len(found) != 1:
        raise UsageError(f"there is no {what} {name!r}, only {', '.join(names) or 'none'}")
    return found[0]


def _of_operands(name: str, operands: Sequence[_Bound]) -> Evaluate:
    first = operands[0]
    if name == "is null":
        return lambda columns: pc.is_null(first.values(columns))
    if any(one.type is not None and pa.types.is_null(one.type) for one in operands):
        return lambda _: None  # the type is unknown, so the predicate cannot be evaluated
    if name == "true":
        if not pa.types.is_boolean(first.type):
            raise UsageError(f"{first.said!r} is {sql_type(first.type)}, not a boolean: compare it")
        return first.values
    if name == "like":
        pattern = operands[1].value
        if first.type is None or not pa.types.is_string(first.type) or not _is_text(pattern):
            raise UsageError(f"{first.said!r}: LIKE compares a column of strings with a text")
        return lambda columns: pc.match_like(first.values(columns), str(pattern and pattern.value))
    if name == "in":
        equals = [_compared("=", first, item) for item in operands[1:]]
        return _folded(pc.or_kleene, equals)
    return _compared(name, first, operands[1])


def _is_text(literal: Literal | None) -> bool:
    return literal is not None and isinstance(literal.value, str) and not literal.kind


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compared(name: str, left: _Bound, right: _Bound) -> Evaluate:
    if left.type is None:
        return _compared(_MIRRORED.get(name, name), right, left)
    compare = _COMPARISONS[name]
    if right.value is not None:
        kind, value = _literal(left, right.value)
        return lambda columns: compare(_as(left.values(columns), kind), value)
    assert right.type is not None, "a column has a type"
    kind = _common(left, right)
    return lambda columns: compare(_as(left.values(columns), kind), _as(right.values(columns), kind))


def _as(values: Any, kind: pa.DataType) -> Any:
    if pa.types.is_date(values.type) and pa.types.is_timestamp(kind):
        days = pc.cast(pc.cast(values, pa.date32()), pa.int32())
        within = pc.max_element_wise(days, pc.negate(_LAST_DAY_OF_TIMES), skip_nulls=False)
        within = pc.min_element_wise(within, _LAST_DAY_OF_TIMES, skip_nulls=False)
        values = pc.cast(pc.cast(within, pa.date32()), pa.timestamp("us"))
    # A large integer may have no exact floating point value.
    return values if values.type.equals(kind) else pc.cast(values, kind, safe=not pa.types.is_floating(kind))


def _literal(column: _Bound, literal: Literal) -> tuple[pa.DataType, pa.Scalar]:
    """Returns the type in which a column is compared with a literal, and the literal in this type."""
    kind, value = column.type, literal.value
    assert kind is not None, "a column has a type"
    if isinstance(value, bool):
        if pa.types.is_boolean(kind):
            return kind, pa.scalar(value)
    elif isinstance(value, Decimal):
        if pa.types.is_floating(kind):
            return pa.float64(), pa.scalar(float(value), pa.float64())
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return _exactly(kind, value)
    elif pa.types.is_string(kind) and not literal.kind:
        return kind, pa.scalar(value)
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _time(kind, literal, value)
    raise UsageError(f"{column.said!r} is {sql_type(kind)}, and cannot be compared with {value!r}")


def _exactly(kind: pa.DataType, value: Decimal) -> tuple[pa.DataType, pa.Scalar]:
    try:
        if not pa.types.is_integer(kind) or value == int(value):
            exact = int(value) if pa.types.is_integer(kind) else value
            return kind, pa.scalar(exact, kind)
    except (pa.ArrowException, OverflowError):
        pass
    wide = _wide(_scale(kind), max(0, -int(value.as_tuple().exponent)))
    return wide, pa.scalar(value, wide)


def _scale(kind: pa.DataType) -> int:
    return kind.scale if pa.types.is_decimal(kind) else 0


def _wide(*scales: int) -> pa.DataType:
    return pa.decimal256(76, min(MAX_RULE_DIGITS, max(scales)))


def _time(kind: pa.DataType, literal: Literal, text: str) -> tuple[pa.DataType, pa.Scalar]:
    days = literal.kind == "date" or (pa.types.is_date(kind) and not literal.kind)
    try:
        if days:
            found = pa.array([text]).cast(pa.date32())
            return kind, _as(found, kind)[0]
        stamp = kind if pa.types.is_timestamp(kind) else pa.timestamp("us")
        return stamp, timestamps(pa.array([text]), stamp)[0]
    except pa.ArrowException as error:
        wanted = "a date, like 2026-01-31" if days else "a time, like 2026-01-31 12:00:00"
        raise UsageError(f"{text!r} is not {wanted}") from error


def _common(left: _Bound, right: _Bound) -> pa.DataType:
    """Returns the type in which two columns are compared."""
    kinds = [kind for kind in (left.type, right.type) if kind is not None]
    first, second = kinds
    if all(pa.types.is_integer(kind) for kind in kinds):
        return pa.int64()
    if all(pa.types.is_integer(k) or pa.types.is_decimal(k) or pa.types.is_floating(k) for k in kinds):
        return pa.float64() if any(map(pa.types.is_floating, kinds)) else _wide(*map(_scale, kinds))
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in kinds):
        zoned = [kind for kind in kinds if pa.types.is_timestamp(kind)]
        if len({kind.tz for kind in zoned}) <= 1:
            return zoned[0] if zoned else first
    if first.equals(second) and (pa.types.is_string(first) or pa.types.is_boolean(first)):
        return first
    raise UsageError(
        f"{left.said!r} is {sql_type(first)}, and cannot be compared with {right.said!r}, "
        f"which is {sql_type(second)}"
    )
