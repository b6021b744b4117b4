"""Rules that rows must fulfil before the transform, from the settings `expect` and `expect_warn`.

The rules of a setting are separated by semicolons or line breaks. The name of a rule is optional; without a name, the
rule's text is its name: `positive: amount >= 0; region is not null`. As with SQL's CHECK constraints, a rule that is
null for a row is not broken.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_RULES
from s3notify_platform.source.rules.evaluation import Columns, Evaluate, bound
from s3notify_platform.source.rules.grammar import Node, parsed

_PART: Final = re.compile(r"((?:'[^']*'|`[^`]*`|[^;\n'`])+)|[;\n]|(.)")
_NAMED: Final = re.compile(r"\s*([^\W\d][\w-]{0,99})\s*:\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """A rule. `warns`: rows that break the rule stay in the table."""

    name: str
    text: str
    root: Node
    warns: bool

    @property
    def reason(self) -> str:
        """The reason for rejecting a record that breaks this rule."""
        return f"breaks the rule {self.name}" + (f": {self.text}" if self.name != self.text else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRules:
    """Rules that are evaluated on the columns of one schema."""

    rules: Sequence[tuple[RowRule, Evaluate]]

    def broken(self, columns: Columns) -> Iterator[tuple[RowRule, npt.NDArray[np.bool_]]]:
        """Yields each broken rule, with a mask of the rows that break the rule."""
        for rule, evaluate in self.rules:
            held = pc.fill_null(evaluate(columns), True)
            if isinstance(held, pa.ChunkedArray):
                held = held.combine_chunks()
            broken = ~held.to_numpy(zero_copy_only=False)
            if broken.any():
                yield rule, broken


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The parsed rules of a source."""

    rules: tuple[RowRule, ...]

    def __bool__(self) -> bool:
        """True if there are rules."""
        return bool(self.rules)

    @classmethod
    def of(cls, expect: str, expect_warn: str) -> "RowRules":
        """Parses the rules of the two settings.

        Raises `UsageError` with the rule that does not parse, and the reason.
        """
        return _row_rules(expect, expect_warn)

    def bound(self, schema: pa.Schema) -> BoundRules:
        """Returns the rules, bound to the columns of `schema`.

        Raises `UsageError` for an unknown column, or a comparison of wrong types.
        """
        return _bound(self, schema)


@lru_cache(maxsize=32)
def _row_rules(expect: str, expect_warn: str) -> RowRules:
    rules: dict[str, RowRule] = {}
    for setting, given in (("expect", expect), ("expect_warn", expect_warn)):
        for text in [*_parts(setting, given)]:
            named = _NAMED.fullmatch(text)
            name, predicate = (named[1], named[2].strip()) if named else (text.strip(), text.strip())
            if name in rules:
                raise UsageError(f"{setting}: rule {name!r} is there twice")
            try:
                root = parsed(predicate)
            except UsageError as error:
                raise UsageError(f"{setting}: rule {name!r} does not parse: {error}") from error
            rules[name] = RowRule(name=name, text=predicate, root=root, warns=setting == "expect_warn")
    if len(rules) > MAX_RULES:
        raise UsageError(f"expect and expect_warn: {len(rules)} rules, and at most {MAX_RULES} are allowed")
    return RowRules(rules=tuple(rules.values()))


def _parts(setting: str, given: str) -> Iterator[str]:
    for part in _PART.finditer(given):
        if part[2]:
            raise UsageError(f"{setting}: a quote is not closed: {part[2]} in {given[:100]!r}")
        if part[1] and part[1].strip():
            yield part[1]


@lru_cache(maxsize=64)
def _bound(rules: RowRules, schema: pa.Schema) -> BoundRules:
    found = []
    for rule in rules.rules:
        try:
            found.append((rule, bound(rule.root, schema)))
        except UsageError as error:
            setting = "expect_warn" if rule.warns else "expect"
            raise UsageError(
                f"{setting}: rule {rule.name!r}: {error}; correct the rule, or declare the column's type (schema, or "
                "schema_hints)"
            ) from error
    return BoundRules(rules=tuple(found))
