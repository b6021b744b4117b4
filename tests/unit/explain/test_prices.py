"""Prices of requests."""

import pytest

from s3notify_platform.explain.prices import PRICES, dollars


def test_prices_match_the_price_list() -> None:
    """A PUT or LIST costs over twelve times as much as a GET. A DELETE costs nothing."""
    assert dollars({"PUT": 1000, "LIST": 1000, "GET": 10_000, "HEAD": 0, "DELETE": 99}) == pytest.approx(
        0.014
    )
    assert PRICES["PUT"] / PRICES["GET"] == pytest.approx(12.5)
    assert dollars({}) == 0
