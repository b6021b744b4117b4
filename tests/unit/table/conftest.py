"""Fixtures of tables. Test files may have their own."""

from tests.support.table_fixtures import clock, rounds, store, vectors  # noqa: F401 - fixtures
