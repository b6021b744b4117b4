"""Rounds of two processes, in any order. A round is committed alone, or in one version with another round, or after
another round that was planned later.
"""

from collections.abc import Iterable

from hypothesis import strategies as st

from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Wanted
from tests.support.log_rounds import Bucket, Rounds

_keys = st.builds("{}{}".format, st.sampled_from("abc"), st.integers(0, 3))
_buckets = st.dictionaries(_keys, st.tuples(st.sampled_from("xyz"), st.just((1, 2))), max_size=8)
steps = st.lists(
    st.tuples(
        _buckets, st.sampled_from(["alone", "stale", "together"]), st.sets(st.integers(0, 2), min_size=1)
    ),
    min_size=1,
    max_size=6,
)


def committed(
    steps: Iterable[tuple[Bucket, str, set[int]]],
    *,
    vectors: bool = False,
    store: MemoryObjectStore | None = None,
) -> Rounds:
    """Commits these rounds to the table in `store` (default: to a new table). Returns the process that has committed
    them, with its table.
    """
    store = store or MemoryObjectStore()
    process, other = Rounds(store=store, vectors=vectors), Rounds(store=store, vectors=vectors)
    stale = process.table.opened()
    for bucket, how, slots in steps:
        base = stale if how == "stale" else process.table.opened()
        mine = process.planned(bucket, slots, base)
        if how == "together":
            theirs = process.planned({**bucket, "b9": ("w", (1,))}, {0, 1}, base)
            wanted = [Wanted(change=each, base=base) for each in (mine, theirs)]
            process.table.committer.commit_together(wanted)
        else:
            if how == "stale":
                other.commit(other.planned({key: ("s", (4,)) for key in bucket if key < "b"}, {0}))
            process.commit(mine)
        stale = base
    return process
