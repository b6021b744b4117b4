"""The manifest says which code made a slot's rows. The tests compare the manifest's answer with the code that really
read the objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.manifest import OTHER_CODE, SlotFacts
from s3notify_platform.table.round import SlotRound


@dataclass
class Made:
    """A slot over several rounds, with the code that read each of its objects."""

    facts: SlotFacts = field(default_factory=SlotFacts)
    states: dict[str, ObjectState] = field(default_factory=dict)
    codes: dict[str, set[str]] = field(default_factory=dict)
    label: int = 0

    def round(self, code: str, how: str, keys: Sequence[str]) -> None:
        self.label += 1
        changes = {key: found for key in keys if (found := self.changed(key, how, code)) is not None}
        if not changes:
            return
        made = any(each.until == self.label and not each.gone for each in changes.values())
        done = SlotRound(
            changes=changes,
            before={key: self.states[key] for key in changes if key in self.states},
            label=self.label,
            code_version=code if made else None,
        )
        self.facts = replace(done.facts(self.facts), generation=self.label)
        self.states = {key: each for key, each in (self.states | changes).items() if not each.gone}
        self.codes = {key: each for key, each in self.codes.items() if key in self.states}

    def changed(self, key: str, how: str, code: str) -> ObjectState | None:
        held = self.states.get(key)
        if how == "read":
            self.codes[key] = {code}
            return ObjectState(
                key=key, etag=f"{self.label}", size=1, rows=1, since=self.label, until=self.label
            )
        if held is None or (held.expired and how != "leave"):
            return None
        match how:
            case "leave":
                return ObjectState(key=key, etag="", size=0, gone=True)
            case "expire":
                return replace(held, expired=True, reason="")
            case "fail":
                return replace(held, reason="it is damaged")
            case "read further":
                self.codes[key] = self.codes[key] | {code}
                return replace(held, rows=held.rows + 1, until=self.label, reason="")
        raise AssertionError(how)

    def of_other_code(self, code: str) -> int:
        """Returns the number of objects that other code has read, at least in part. Unreadable and expired objects do
        not count.
        """
        return sum(
            self.codes[key] != {code}
            for key, each in self.states.items()
            if not (each.reason or each.expired)
        )


HOW = ("read", "read", "read further", "leave", "expire", "fail")
ROUNDS = st.lists(
    st.tuples(
        st.sampled_from(HOW), st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.booleans()
    ),
    max_size=20,
)


@given(ROUNDS)
@example(
    [
        ("read", ["a", "b"], False),
        ("fail", ["a", "b"], True),
        ("read", ["a"], False),
        ("read further", ["b"], False),
    ]
)
def test_count_is_exact_while_code_versions_are_new(rounds: Sequence[tuple[str, list[str], bool]]) -> None:
    """Otherwise a slot would be reported as stale without reason.

    In this test, no code version is used again after a later one.
    """
    slot, number = Made(), 1
    for how, keys, another in rounds:
        number += another
        slot.round(f"v{number}", how, keys)
        assert slot.facts.objects_of_other_code(f"v{number}") == slot.of_other_code(f"v{number}")
        assert slot.facts.is_stale(f"v{number}") == bool(slot.of_other_code(f"v{number}"))


@given(ROUNDS, st.lists(st.sampled_from(["v1", "v2", ""]), min_size=20, max_size=20))
def test_slot_never_counts_as_made_by_code_that_did_not_make_it(
    rounds: Sequence[tuple[str, list[str], bool]], codes: Sequence[str]
) -> None:
    """Otherwise rows of old code would be reported as current after a return to an earlier version of the code."""
    slot = Made()
    for (how, keys, _), code in zip(rounds, codes, strict=False):
        slot.round(code, how, keys)
        for each in ("v1", "v2", "v3"):
            if slot.of_other_code(each):
                assert slot.facts.is_stale(each)
        counted = [
            s for s in slot.states.values() if not (s.reason or s.expired) and s.since < slot.facts.code_since
        ]
        assert slot.facts.other_code == len(counted), "as `s3notify table check` counts"
    live = [key for key, state in slot.states.items() if not state.expired]
    slot.round("v1", "read", live)
    assert not slot.facts.is_stale("v1")
    assert not slot.facts.other_code
    assert not slot.facts.code_since


@pytest.mark.parametrize(
    ("facts", "made_by"),
    [
        (SlotFacts(), "v2"),
        (SlotFacts(objects=3, code_version="v2"), "v2"),
        (SlotFacts(objects=3, code_version="v2", other_code=1, code_since=8), OTHER_CODE),
        (SlotFacts(objects=3, code_version="v1"), "v1"),
        (SlotFacts(objects=3, code_version=""), OTHER_CODE),
        (SlotFacts(objects=3, failing=3, code_version="v1"), "v2"),
        (SlotFacts(source=7, rows=0, code_version="v1"), "v1"),
        (SlotFacts(source=7, rows=4, code_version="v2"), "v2"),
    ],
)
def test_code_version_of_a_slot(facts: SlotFacts, made_by: str) -> None:
    """Otherwise the reported version would be wrong, also for derived slots, which are replaced as a whole."""
    assert facts.made_by("v2") == made_by
    assert facts.is_stale("v2") == (made_by != "v2")
