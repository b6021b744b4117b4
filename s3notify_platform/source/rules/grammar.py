r"""Parses the SQL predicates of rules.

The grammar. Keywords may be in lower or upper case.

- predicate: comparisons and other conditions, with NOT, AND, OR and brackets; or a boolean column alone
- comparison: operand = operand, also == != <> < <= > >=
- between: operand [NOT] BETWEEN operand AND operand
- in: operand [NOT] IN (literal, ...)
- null: operand IS [NOT] NULL
- like: operand [NOT] LIKE 'text' (% is any text, _ any character, \ escapes one of these)
- operand: a column or a literal; each comparison has at least one column
- column: amount, customer.city (of a struct), `odd name`; if no column has exactly this name, case is ignored
- literal: 12, -1.5, 1e3, 'text' ('' is a quote in it), TRUE, FALSE, DATE '2026-01-31', TIMESTAMP '2026-01-31T12Z'
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_RULE_DEPTH, MAX_RULE_DIGITS, MAX_RULE_TOKENS

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))|(?P<text>'(?:[^']|'')*')|(?P<name>`(?:[^`]|``)+`)"
    r"|(?P<word>[^\W\d]\w*)|(?P<sign>==|!=|<>|<=|>=|[=<>(),.-])|(?P<wrong>\S.*))",
    re.DOTALL,
)
COMPARISONS: Final = frozenset(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
_KEYWORDS: Final = frozenset(
    ["and", "or", "not", "is", "null", "in", "between", "like", "true", "false", "date", "timestamp"]
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct column."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text or a boolean. For a `kind` of `date` or `timestamp`, `value` is the text."""

    value: Decimal | str | bool
    kind: str = ""


Operand = Column | Literal


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a predicate: `and`, `or`, `not`, `is null`, `in`, `like`, `true`, or a comparison."""

    name: str
    parts: "tuple[Node, ...]" = ()
    operands: tuple[Operand, ...] = ()


@dataclass(slots=True)
class _Parser:
    """Consumes tokens. A token is a pair of kind and text. `tokens` is reversed: the next token is the last element."""

    text: str
    tokens: list[tuple[str, str]] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        found = [(str(token.lastgroup), token[token.lastgroup or 0]) for token in _TOKEN.finditer(self.text)]
        if len(found) > MAX_RULE_TOKENS:
            raise UsageError(f"it has more than {MAX_RULE_TOKENS} words and signs")
        if found and found[-1][0] == "wrong":
            raise UsageError(f"{found[-1][1][:20]!r} is not understood")
        self.tokens = found[::-1]

    def whole(self) -> Node:
        found = self.either()
        if self.tokens:
            raise UsageError(f"{self.tokens[-1][1]!r} follows its end")
        return found

    def word(self) -> str:
        """Returns the next token if it is a keyword (in lower case) or a sign; "" for any other token, and at
        the end.
        """
        kind, text = self.tokens[-1] if self.tokens else ("", "")
        return (
            text if kind == "sign" else text.lower() if kind == "word" and text.lower() in _KEYWORDS else ""
        )

    def takes(self, *words: str) -> bool:
        """Consumes these words and returns True if they are the next tokens. Otherwise returns False."""
        given = [text.lower() for kind, text in self.tokens[-len(words) :] if kind in ("word", "sign")]
        if given[::-1] != [*words]:
            return False
        del self.tokens[-len(words) :]
        return True

    def expect(self, word: str) -> None:
        if not self.takes(word):
            raise UsageError(f"{word.upper()!r} is missing before {self.shown()}")

    def shown(self) -> str:
        return repr(self.tokens[-1][1]) if self.tokens else "its end"

    def either(self) -> Node:
        parts = [self.both()]
        while self.takes("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else Node("or", tuple(parts))

    def both(self) -> Node:
        parts = [self.one()]
        while self.takes("and"):
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else Node("and", tuple(parts))

    def one(self) -> Node:
        self.depth += 1
        if self.depth > MAX_RULE_DEPTH:
            raise UsageError(f"brackets or NOTs are nested deeper than {MAX_RULE_DEPTH}")
        if self.takes("not"):
            found = Node("not", (self.one(),))
        elif self.takes("("):
            found = self.either()
            self.expect(")")
        else:
            found = self.comparison()
        self.depth -= 1
        return found

    def comparison(self) -> Node:
        left = self.operand()
        if self.word() in COMPARISONS:
            _, sign = self.tokens.pop()
            return _with_column(Node(sign, operands=(left, self.operand())))
        if self.takes("is", "not", "null"):
            return Node("not", (_with_column(Node("is null", operands=(left,))),))
        if self.takes("is", "null"):
            return _with_column(Node("is null", operands=(left,)))
        negated = self.takes("not")
        if self.takes("between"):
            low = self.operand()
            self.expect("and")
            found = Node(
                "and", (Node(">=", operands=(left, low)), Node("<=", operands=(left, self.operand())))
            )
            for part in found.parts:
                _with_column(part)
        elif self.takes("in"):
            self.expect("(")
            items = [self.literal()]
            while self.takes(","):
                items.append(self.literal())
            self.expect(")")
            found = _with_column(Node("in", operands=(left, *items)))
        elif self.takes("like"):
            found = _with_column(Node("like", operands=(left, self.literal())))
        elif negated:
            raise UsageError(f"BETWEEN, IN or LIKE is missing before {self.shown()}")
        else:
            found = _with_column(Node("true", operands=(left,)))
        return Node("not", (found,)) if negated else found

    def literal(self) -> Literal:
        found = self.operand()
        if not isinstance(found, Literal):
            raise UsageError(f"{'.'.join(found.path)!r} is a column, and only a value is allowed there")
        return found

    def operand(self) -> Operand:
        if self.takes("-"):
            if self.tokens and self.tokens[-1][0] == "number":
                return Literal(-self.number())
            raise UsageError(f"a number is missing before {self.shown()}")
        kind, text = self.tokens[-1] if self.tokens else ("", "")
        word = self.word()
        if kind == "number":
            return Literal(self.number())
        if kind == "text":
            self.tokens.pop()
            return Literal(_unquoted(text))
        if word in ("true", "false"):
            self.tokens.pop()
            return Literal(word == "true")
        if word in ("date", "timestamp") and len(self.tokens) > 1 and self.tokens[-2][0] == "text":
            self.tokens.pop()
            return Literal(_unquoted(self.tokens.pop()[1]), word)
        if kind == "name" or (kind == "word" and word in ("", "date", "timestamp")):
            path = [self.name()]
            while self.takes("."):
                path.append(self.name())
            return Column(tuple(path))
        raise UsageError(f"a column or a value is missing before {self.shown()}")

    def number(self) -> Decimal:
        _, text = self.tokens.pop()
        found = Decimal(text)
        scale = -int(found.as_tuple().exponent)
        if (
            len(found.as_tuple().digits) > MAX_RULE_DIGITS
            or scale > MAX_RULE_DIGITS
            or found.adjusted() >= MAX_RULE_DIGITS
        ):
            raise UsageError(
                f"{text}: a number has at most {MAX_RULE_DIGITS} digits before its point, and at most "
                f"{MAX_RULE_DIGITS} after it"
            )
        return found

    def name(self) -> str:
        kind, text = self.tokens.pop() if self.tokens else ("", "its end")
        if kind not in ("word", "name"):
            raise UsageError(f"a column is missing before {text!r}")
        return text[1:-1].replace("``", "`") if kind == "name" else text


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _with_column(node: Node) -> Node:
    if not any(isinstance(operand, Column) for operand in node.operands):
        raise UsageError("a comparison without a column is always the same")
    return node


def parsed(text: str) -> Node:
    """Parses a text to a predicate. Raises `UsageError`, which shows where the text is wrong."""
    return _Parser(text).whole()
