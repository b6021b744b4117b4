"""A declared schema is looked at where definitions load, which is before there is a Spark to parse it.

Only what no Spark would take is refused: a type that there is not, brackets that do not match, a column without name
or type. What follows a type (NOT NULL, COMMENT, …) is Spark's business.
"""

import re
from typing import Final

from s3notify_platform.errors import UsageError

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
_TOKEN: Final = re.compile(r"""\s*(`(?:``|[^`])+`|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\w+|\S)""", re.DOTALL)
_NAME: Final = re.compile(r"`.+`|\w+", re.DOTALL)


def check_declared(schema: str) -> None:
    """`UsageError` for DDL that cannot be columns, like "id bigint, name string"."""
    if "--" in schema or "/*" in schema:  # comments in the DDL: for Spark to read
        return
    try:
        parser = _Parser(tokens=_TOKEN.findall(schema))
        parser.columns(end="")
    except UsageError as error:
        raise UsageError(f"schema {schema!r} does not parse: {error}") from error


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*reversed(tokens)]

    @property
    def next(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[-1] if self.tokens else ""

    def take(self) -> str:
        """The next token, which is then behind us."""
        return self.tokens.pop() if self.tokens else ""

    def expect(self, token: str) -> None:
        """Take this one."""
        if (found := self.take()) != token:
            raise UsageError(f"{token!r} is missing before {found or 'its end'!r}")

    def columns(self, end: str) -> None:
        """Columns up to `end`, which is left."""
        while True:
            if not _NAME.fullmatch(name := self.take()):
                raise UsageError(f"a column is missing before {name or 'its end'!r}")
            if self.next == ":":
                self.take()
            if self.next in ("", ",", "<", "(", end):
                raise UsageError(f"{name!r}: give columns with their types, like 'id bigint, name string'")
            self.type()
            self.rest(end)
            if self.next == end:
                return
            self.expect(",")

    def type(self) -> None:
        """One type."""
        match found := self.take().lower():
            case "array":
                self.expect("<")
                self.type()
                self.expect(">")
            case "map":
                self.expect("<")
                self.type()
                self.expect(",")
                self.type()
                self.expect(">")
            case "struct":
                self.expect("<")
                if self.next != ">":
                    self.columns(end=">")
                self.expect(">")
            case _ if found not in TYPES:
                raise UsageError(f"there is no type {found!r}")
            case _ if self.next == "(":
                while self.take() not in (")", ""):
                    pass

    def rest(self, end: str) -> None:
        """What follows a column's type: options, in words, texts and brackets."""
        depth = 0
        while self.next and (depth or self.next not in (",", end)):
            depth += {"(": 1, ")": -1}.get(self.take(), 0)
