"""Names of a table's objects."""

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.layout import TableLayout

LAYOUT = TableLayout(prefix="t/")


@pytest.mark.parametrize("prefix", ["no-slash", "/t/", "a//b/", ""])
def test_invalid_prefix_is_refused(prefix):
    with pytest.raises(UsageError, match="table prefix"):
        TableLayout(prefix=prefix)


@pytest.mark.parametrize("path", ["../x", "data/../../x", "./x", "/x", "s3://b/x", "data/%2e%2e/x"])
def test_file_outside_the_table_is_refused(path):
    with pytest.raises(UsageError, match="outside the table"):
        LAYOUT.file(path)


def test_versions_sort_by_name_and_are_distinguished_from_other_objects():
    versions = [0, 1, 9, 10, 999, 1000, 10**18]
    names = [LAYOUT.version(version) for version in versions]
    assert sorted(names) == names
    assert [LAYOUT.version_of(name) for name in names] == versions
    others = [LAYOUT.checkpoint(1), LAYOUT.last_checkpoint, f"{LAYOUT.log}1.json", LAYOUT.pack_path("1")]
    assert [LAYOUT.version_of(key) for key in others] == [None] * 4
    assert LAYOUT.checkpoint_of(LAYOUT.checkpoint(7)) == 7
    assert LAYOUT.checkpoint_of(LAYOUT.version(7)) is None


@pytest.mark.parametrize("name", ["a b", "ä%41", "slot=7/x"])
def test_path_of_a_pack_leads_to_its_file(name):
    assert LAYOUT.file(LAYOUT.pack_path(name)) == f"t/data/{name}.parquet"
