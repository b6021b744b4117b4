"""A comparison by columns finds the same differences as a comparison by rows."""

from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.engine.plan.compare_columns import Listed, compared
from s3notify_platform.engine.values.task_rows import LISTED
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState, ObjectVersion, changes_of_slot
from s3notify_platform.table.states.state_columns import columns_of

OTHER, GONE, SLOT = Slot(3), Slot(5), Slot(7)
keys = st.sampled_from(["a", "a/../b", "b\0", ".hidden", "c/d.", "ü" * 600, "x/.", "🙂"])
etags = st.sampled_from(["1", "2", ""])


@given(
    st.lists(st.dictionaries(keys, etags, max_size=5), max_size=3),
    st.dictionaries(keys, st.tuples(etags, st.integers(0, 9), st.booleans()), max_size=8),
    st.sets(keys, max_size=3),
    st.booleans(),
)
def test_columns_and_rows_give_the_same_changes(
    listed: list[dict[str, str]], held: dict[str, tuple[str, int, bool]], pending: set[str], whole: bool
) -> None:
    """Both comparisons must agree for any committed states, and for a listing in any pieces, even with repeated
    objects.
    """
    size = 9
    states = {
        key: ObjectState(key=key, etag=etag, size=size, offset=offset, reach_end=done)
        for key, (etag, offset, done) in held.items()
    }
    versions = {
        key: ObjectVersion(slot=SLOT, key=key, etag=ETag(etag), size=size)
        for piece in listed
        for key, etag in piece.items()
    }
    batches = [
        LISTED.columns(
            ObjectVersion,
            {
                "slot": [SLOT] * len(piece),
                "key": [*piece],
                "etag": [versions[key].etag for key in piece],
                "size": [size] * len(piece),
            },
        )
        for piece in listed
    ]
    # There are two other slots: the object of `OTHER` is unchanged, and the object of `GONE` has left the bucket.
    others = {
        OTHER: {"other": ObjectState(key="other", etag="1", size=size)},
        GONE: {"gone": ObjectState(key="gone", etag="1", size=size)},
    }
    other = {"slot": [OTHER], "key": ["other"], "etag": ["1"], "size": [size]}
    known = [columns_of({slot: others[slot]}) for slot in (OTHER, GONE)] + [columns_of({SLOT: states})]
    every = compared(
        [OTHER, GONE, SLOT],
        [LISTED.columns(ObjectVersion, other), *batches],
        known,
        pending,
        whole=[SLOT] if whole else [],
    )
    found = every[SLOT]
    assert every[OTHER] == Listed(objects=1, held=1)
    assert every[GONE] == Listed(states=others[GONE], held=1, withdrawn=1)
    stale = states.keys() if whole else ()
    ours = changes_of_slot(SLOT, found.changed, found.states, max_objects=99, pending=pending, stale=stale)
    rows = changes_of_slot(SLOT, versions.values(), states, max_objects=99, pending=pending, stale=stale)
    assert ours == rows
    assert found.objects == sum(map(len, listed))
    assert (found.held, found.withdrawn) == (len(states), len(states.keys() - versions.keys()))
    assert set(found.unaddressable) == versions.keys() - {"a", ".hidden", "c/d.", "🙂"}
    if not whole:
        same = {key for key, v in versions.items() if key in states and states[key].etag == v.etag} - pending
        assert not same & {version.key for version in found.changed}
