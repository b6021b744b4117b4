"""Prices of requests."""

import pytest

from s3notify_platform.explain.prices import PRICES, dollars


def test_prices_match_the_price_list() -> None:
    """If a price were wrong, Dagster would show a wrong cost for each batch, and a user could choose a more expensive
    setting.
    """
    assert dollars({"PUT": 1000, "LIST": 1000, "GET": 10_000, "HEAD": 0, "DELETE": 99}) == pytest.approx(
        0.014
    )
    assert PRICES["PUT"] / PRICES["GET"] == pytest.approx(12.5)
    assert dollars({}) == 0
