"""Fixtures of tables, which several test files use."""

from tests.support.table_fixtures import clock, rounds, store, vectors  # noqa: F401 - fixtures
