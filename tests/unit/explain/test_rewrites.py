"""The bytes that batches write again, compared with the bytes that the batches change."""

import random

import pytest

from s3notify_platform.explain.rewrites import Rewrites, rewrites_of, total
from s3notify_platform.kernel.limits import REWRITE_WARN_BYTES, REWRITE_WARN_TIMES
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.packs.pack_file import PackSizes
from tests.support.log_rounds import Rounds
from tests.support.log_tables import versions

SIZES = PackSizes(target=4000, smallest=1000, fan=2, in_class=1000, group=1000, hidden=1.0)
"""With these pack sizes, rounds merge no packs."""


def objects(letter, numbers, etag="e"):
    """Objects whose rows cannot be compressed."""
    return {
        f"{letter}{n:03d}": (
            etag,
            tuple(3 * random.Random(f"{n}{etag}{i}").getrandbits(50) + 1 for i in range(20)),
        )
        for n in numbers
    }


def of_last_version(process, bucket):
    process.commit(process.planned(bucket))
    assert process.contents() == bucket
    return rewrites_of(versions(process.store)[-1])


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def process(request):
    return Rounds(store=MemoryObjectStore(), vectors=request.param, more={"sizes": SIZES})


def test_batches_of_new_objects_write_nothing_again(process):
    first = of_last_version(process, objects("a", range(100)))
    size = sum(pack.size for pack in process.table.opened().packs.values())
    assert first == Rewrites(again=0, changed=size)
    more = of_last_version(process, objects("a", range(150)))
    assert more == Rewrites(
        again=0, changed=sum(pack.size for pack in process.table.opened().packs.values()) - size
    )


def test_without_vectors_scattered_overwrites_cause_many_files_to_be_written_again(process):
    """The batch overwrites few objects, spread over the packs. Without the count of rewritten bytes, no
    warning would show that one batch writes a large part of the table again. A table with deletion vectors
    has no such rewrites, so a count above zero would cause a needless warning.
    """
    bucket = objects("a", range(300))
    process.commit(process.planned(bucket))
    size = sum(pack.size for pack in process.table.opened().packs.values())
    bucket |= objects("a", range(0, 300, 30), "new")
    found = of_last_version(process, bucket)
    if process.vectors:
        assert found.again == 0
    else:
        assert found.again > size / 3
        assert found.changed < size / 10
        assert found.again > 5 * found.changed


def test_deleted_objects_count_as_changed(process):
    bucket = objects("a", range(300))
    process.commit(process.planned(bucket))
    size = sum(pack.size for pack in process.table.opened().packs.values())
    found = of_last_version(process, {key: bucket[key] for key in [*bucket][:30]})
    if not process.vectors:
        assert found.again < size / 4
        assert found.changed > size / 2


def test_merges_and_other_commands_do_not_count(process):
    bucket = {}
    for n in range(10):
        bucket |= objects("a", [n])
        process.commit(process.planned(bucket))
    compact(process.whole)
    assert rewrites_of(versions(process.store)[-1]) == Rewrites()
    process.optimized()
    process.table.opened()
    assert rewrites_of(versions(process.store)[-1]) == Rewrites()
    bucket |= objects("b", [1]) | objects("a", [3], "new")
    found = of_last_version(process, bucket)
    assert found.changed > 0


def test_a_warning_is_given_only_for_many_bytes_and_a_large_share():
    enough = REWRITE_WARN_BYTES
    some = [Rewrites(again=enough // 2, changed=1), Rewrites(again=enough // 2, changed=0)]
    assert total(some) == Rewrites(again=enough, changed=1)
    assert total(some).too_many
    assert not Rewrites(again=enough - 1, changed=1).too_many
    assert not Rewrites(again=enough, changed=enough // REWRITE_WARN_TIMES + 1).too_many
