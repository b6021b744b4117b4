"""Checks declared schemas while Dagster's definitions load, when no Spark is available to parse the schemas.

The check refuses only errors that Spark also refuses: an unknown type, unbalanced brackets, a column without name or
type. The options after a type (NOT NULL, COMMENT, …) are left to Spark.

A setting that is parsed without Spark (`arrow_columns`) can declare only the names and types of columns.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa

from s3notify_platform.kernel.errors import UsageError

TYPES: Final = frozenset(
    [
        "bigint",
        "binary",
        "bool",
        "boolean",
        "byte",
        "char",
        "character",
        "date",
        "dec",
        "decimal",
        "double",
        "float",
        "geography",
        "geometry",
        "int",
        "integer",
        "interval",
        "long",
        "numeric",
        "real",
        "short",
        "smallint",
        "string",
        "time",
        "timestamp",
        "timestamp_ltz",
        "timestamp_ntz",
        "tinyint",
        "varchar",
        "variant",
        "void",
    ]
)
_ARROW: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TOKEN: Final = re.compile(r"""\s*(`(?:``|[^`])+`|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\w+|\S)""", re.DOTALL)
_NAME: Final = re.compile(r"`.+`|\w+", re.DOTALL)


def check_declared(schema: str) -> pa.Schema:
    """Returns the columns that DDL declares, like "id bigint, name string". A type that only Spark has becomes Arrow's
    null type.

    Raises `UsageError` if the text does not declare columns.
    """
    if "--" in schema or "/*" in schema:  # only Spark can read DDL with comments
        return pa.schema([])
    return pa.schema(_columns("schema", schema, strict=False))


def declared_columns(schema: str) -> pa.Schema:
    """Returns the columns that DDL declares, except columns of types that Arrow lacks; none if the DDL contains
    comments.
    """
    if "--" in schema or "/*" in schema:
        return pa.schema([])
    columns = _columns("schema", schema, strict=False)
    return pa.schema([column for column in columns if "null" not in str(column[1])])


@lru_cache(maxsize=32)
def arrow_columns(setting: str, declared: str) -> pa.Schema:
    """Parses a setting whose columns have only names and types.

    Raises `UsageError` for other DDL, and for duplicate names.
    """
    columns = _columns(setting, declared, strict=True)
    names = [name.casefold() for name, _ in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{setting} {declared!r}: {twice[0]!r} is there twice")
    return pa.schema(columns)


def _columns(setting: str, declared: str, *, strict: bool) -> "list[tuple[str, pa.DataType]]":
    try:
        return _Parser(tokens=_TOKEN.findall(declared), strict=strict).columns(end="")
    except UsageError as error:
        raise UsageError(f"{setting} {declared!r} does not parse: {error}") from error


class _Parser:
    """A parser of DDL. `strict`: each type must exist in Arrow, and no option may follow a type."""

    def __init__(self, tokens: list[str], *, strict: bool) -> None:
        self.tokens = [*reversed(tokens)]
        self.strict = strict

    @property
    def next(self) -> str:
        """The next token, not consumed; empty at the end."""
        return self.tokens[-1] if self.tokens else ""

    def take(self) -> str:
        """Consumes and returns the next token."""
        return self.tokens.pop() if self.tokens else ""

    def expect(self, token: str) -> None:
        """Consumes the next token. Raises `UsageError` if that token is not `token`."""
        if (found := self.take()) != token:
            raise UsageError(f"{token!r} is missing before {found or 'its end'!r}")

    def columns(self, end: str) -> list[tuple[str, pa.DataType]]:
        """Parses columns up to `end`, and does not consume `end`. A type that Arrow lacks becomes Arrow's null type."""
        found: list[tuple[str, pa.DataType]] = []
        while True:
            if not _NAME.fullmatch(name := self.take()):
                raise UsageError(f"a column is missing before {name or 'its end'!r}")
            if self.next == ":":
                self.take()
            if self.next in ("", ",", "<", "(", end):
                raise UsageError(f"{name!r}: give columns with their types, like 'id bigint, name string'")
            quoted = name.startswith("`")
            found.append((name[1:-1].replace("``", "`") if quoted else name, self.type()))
            self.rest(end)
            if self.next == end:
                return found
            self.expect(",")

    def type(self) -> pa.DataType:
        """Parses one type. A type that Arrow lacks becomes Arrow's null type."""
        match found := self.take().lower():
            case "array":
                self.expect("<")
                kind = pa.list_(self.type())
                self.expect(">")
            case "map":
                self.expect("<")
                key = self.type()
                self.expect(",")
                kind = pa.map_(key, self.type())
                self.expect(">")
            case "struct":
                self.expect("<")
                kind = pa.struct(self.columns(end=">") if self.next != ">" else [])
                self.expect(">")
            case _ if found not in TYPES:
                raise UsageError(f"there is no type {found!r}")
            case _:
                kind = self.plain(found)
        return kind

    def plain(self, name: str) -> pa.DataType:
        """Parses the arguments in brackets, if any, and returns the type with this name."""
        text = ""
        if self.next == "(":
            while self.next and not text.endswith(")"):
                text += self.take()
        if name in _DECIMALS and (numbers := re.fullmatch(r"\((\d{1,2})(?:,(\d{1,2}))?\)", text or "(10)")):
            precision, scale = int(numbers[1]), int(numbers[2] or 0)
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
        if not self.strict:
            return _ARROW.get(name, pa.null())
        if name not in _ARROW or text:
            raise UsageError(f"no column can have the type {name}{text} here")
        return _ARROW[name]

    def rest(self, end: str) -> None:
        """Consumes the options after a column's type: words, texts and brackets."""
        if self.strict and self.next not in (",", end, ""):
            raise UsageError(f"{self.next!r} follows a type: give names and types only")
        depth = 0
        while self.next and (depth or self.next not in (",", end)):
            depth += {"(": 1, ")": -1}.get(self.take(), 0)
