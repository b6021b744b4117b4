"""The fuzz test of the formats has poison files. Each poison file has a mark, and becomes one
reject, which has this mark, too.
"""

from collections.abc import Callable

import pytest

from tests.support.fuzz.objects import POISON, SCHEMA
from tests.support.parsing import take


@pytest.mark.parametrize(("fmt", "made"), [(fmt, made) for fmt, kinds in POISON.items() for made in kinds])
def test_a_marked_file_is_one_reject(fmt: str, made: Callable[[str], bytes]) -> None:
    body = made("BROKEN-12 ")
    assert len(body) < 4000
    rows, (reject,) = take([body], SCHEMA, fmt)
    assert not rows
    assert b"BROKEN-12 " in reject.raw
