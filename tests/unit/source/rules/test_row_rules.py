"""Rules by name: their form in settings, and the rows that break them."""

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.rules.row_rules import RowRules

ROWS = pa.table({"amount": pa.array([1.0, -1.0, None]), "region": ["eu", None, "a;b"]})


def broken(expect: str, expect_warn: str = "") -> dict[str, list[int]]:
    rules = RowRules.of(expect, expect_warn).bound(ROWS.schema)
    columns = dict(zip(ROWS.schema.names, ROWS.columns, strict=True))
    return {rule.name: rows.nonzero()[0].tolist() for rule, rows in rules.broken(columns)}


@pytest.mark.parametrize(
    ("expect", "found"),
    [
        ("amount >= 0", {"amount >= 0": [1]}),
        ("positive: amount >= 0", {"positive": [1]}),
        ("positive: amount >= 0; known: region is not null", {"positive": [1], "known": [1]}),
        ("\n  positive: amount >= 0\n  known-region: region is not null;\n", {"positive": [1], "known-region": [1]}),
        ("region != 'a;b'", {"region != 'a;b'": [2]}),
        ("amount > -10", {}),
        ("", {}),
        (" ; ", {}),
    ],
)  # fmt: skip
def test_broken_rules_are_reported_by_name(expect: str, found: dict[str, list[int]]) -> None:
    """Otherwise a user could not see which rule a row has broken. If a rule is null for a row, the row does
    not break the rule, as in SQL.
    """
    assert broken(expect) == found


def test_the_reason_names_the_rule_and_its_text() -> None:
    rules = RowRules.of("amount >= 0; positive: amount > 0", "known: region is not null").rules
    assert [(rule.reason, rule.warns) for rule in rules] == [
        ("breaks the rule amount >= 0", False),
        ("breaks the rule positive: amount > 0", False),
        ("breaks the rule known: region is not null", True),
    ]


@pytest.mark.parametrize(
    ("expect", "expect_warn", "said"),
    [
        ("amount >", "", "expect: rule 'amount >' does not parse: a column or a value is missing"),
        ("", "positive: amount", "expect_warn: rule 'positive': 'amount' is double, not a boolean"),
        ("a: amount > 0; a: amount > 1", "", "expect: rule 'a' is there twice"),
        ("a: amount > 0", "a: amount > 1", "expect_warn: rule 'a' is there twice"),
        ("region = 'eu", "", "expect: a quote is not closed"),
        (";".join(f"amount > {n}" for n in range(101)), "", "101 rules, and at most 100 are allowed"),
        ("a: amuont > 0", "", "expect: rule 'a': there is no column 'amuont', only amount, region; correct"),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused(expect: str, expect_warn: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        broken(expect, expect_warn)
