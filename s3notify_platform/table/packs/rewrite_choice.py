"""Chooses the packs that a round rewrites: packs that lose rows, and small packs if there are too many. Pure.

If there are more than `in_class` files of one size class (`PackSizes`), a round merges the files with the oldest
labels. The size class depends on the file's weight (`PackSizes.weight`): its bytes, or more if the file has many rows.
So a table of B bytes has at most B / target full files, and `in_class` files for each class. For some time there may be
more files: the files of the newest round, and files whose merge waits because of the round's `BUDGET`. Over time,
merges rewrite each row about once for each size class. Young packs are not merged with old packs, because the objects
in young packs are the most likely to change again.

A pack that a round rewrites anyway (copy-on-write) is merged without extra cost. If a vector hides more than the share
`hidden` of a pack's rows, the pack is rewritten without these rows. A rewritten pack never gets new rows of the round.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.round_packs import SIZES, Withdrawal, Withdrawals, candidates

BUDGET: Final = SIZES.budget
"""The largest number of bytes of packs that a round rewrites, besides packs that lose rows. The bytes of a pack are its
weight (`PackSizes.weight`). A single merge of `fan` + 1 packs may exceed the limit. The rewrite of a million rows takes
about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The paths of packs that are merged into one pack, or into several full packs.

    A single pack is rewritten without its hidden rows. `size`: the approximate number of bytes after the merge. `since`
    and `until`: the lowest and the highest label of the rows in these packs.
    """

    paths: tuple[str, ...]
    size: int
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Packs that are rewritten together. `leaving`: the objects whose rows leave, by the path of their pack."""

    paths: tuple[str, ...]
    leaving: Mapping[str, list[Withdrawal]]
    since: int
    until: int

    @property
    def data_change(self) -> bool:
        """The field `dataChange` in the actions of the packs: False if readers see the same rows as before."""
        return bool(self.leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A round's changes to existing packs. `rewrites`: packs that are rewritten.

    `hides`: packs that get a vector, with the objects whose rows the vector hides.
    """

    rewrites: tuple[Rewrite, ...] = ()
    hides: Mapping[str, list[Withdrawal]] = field(default_factory=dict)


def plan_round(
    packs: Iterable[Add],
    leaving: Withdrawals = (),
    *,
    vectors: bool = False,
    sizes: PackSizes = SIZES,
    budget: int = BUDGET,
    fresh: Collection[str] = (),
) -> RoundPlan:
    """Returns the plan of a round for the live packs. The round withdraws the rows of the objects in `leaving`.

    `vectors`: True if deletion vectors hide the withdrawn rows. Packs that are merged anyway are rewritten without
    these rows instead. `budget`: see `compaction`. `fresh`: the paths of packs that earlier changes of the same version
    add. The round withdraws rows from these packs, but does not merge these packs. In the log, a merge is marked as an
    action that changes no data. So readers of the version's changes would miss new rows in a merged pack.
    """
    live = {pack.path: pack for pack in packs}
    hit = candidates(live.values(), leaving)
    merges = compaction(
        (pack for path, pack in live.items() if path not in fresh),
        sizes,
        touched=() if vectors else hit.keys(),
        budget=budget,
    )
    merged = {path for merge in merges for path in merge.paths}
    alone = () if vectors else sorted(hit.keys() - merged)
    merges += [_merge_of([_Group.of(live[path], sizes, touched=True)]) for path in alone]
    rewrites = [
        Rewrite(
            paths=merge.paths,
            leaving={path: hit[path] for path in merge.paths if path in hit},
            since=merge.since,
            until=merge.until,
        )
        for merge in merges
    ]
    hides = {path: found for path, found in hit.items() if vectors and path not in merged}
    return RoundPlan(rewrites=tuple(rewrites), hides=hides)


def compaction(
    packs: Iterable[Add],
    sizes: PackSizes = SIZES,
    *,
    touched: Collection[str] = (),
    budget: int = BUDGET,
) -> list[Merge]:
    """Returns the merges of this round. The merges limit the number of files.

    `touched`: packs that are rewritten anyway, so their merge costs nothing. `budget`: the largest number of bytes of
    packs that are rewritten only for these merges. A merge beyond the budget waits, but the first merge is always made.
    """
    groups = [_Group.of(pack, sizes, touched=pack.path in touched) for pack in packs]
    left = budget
    planned = False
    for number in range((sizes.class_of(sizes.target - 1) or 0) + 1):
        members = sorted(group for group in groups if sizes.class_of(group.size) == number)
        excess = len(members) - sizes.in_class
        if excess <= 0:
            continue
        # If a group was already joined in a smaller class, the group costs nothing, because its packs are rewritten
        # anyway.
        oldest = _within(members[: excess + sizes.fan], left, least=1 + sizes.fan)
        cost = sum(group.cost for group in oldest)
        if planned and cost > left:
            continue
        left -= cost
        planned = True
        groups = [group for group in groups if group not in oldest]
        groups.append(_Group.joined(oldest))
    covered = [group for group in groups if len(group.paths) == 1 and group.hidden > sizes.hidden]
    for group in sorted(covered, key=lambda group: -group.hidden):
        if planned and group.cost > left:
            continue
        left -= group.cost
        planned = True
        group.rewritten = True
    return [_merge_of([group]) for group in groups if group.rewritten]


def _within(groups: "list[_Group]", budget: int, *, least: int) -> "list[_Group]":
    """Returns the first groups whose cost is within the budget, but at least `least` groups."""
    costs = accumulate(group.cost for group in groups)
    return groups[: max(least, sum(cost <= budget for cost in costs))]


@dataclass(slots=True, kw_only=True)
class _Group:
    """Packs that are treated like one pack. `cost`: the bytes to rewrite, or 0 if the packs are rewritten anyway."""

    paths: tuple[str, ...]
    size: int
    cost: int
    since: int
    until: int
    hidden: float = 0.0
    rewritten: bool = False

    def __lt__(self, other: "_Group") -> bool:
        return (self.until, self.since, self.paths) < (other.until, other.since, other.paths)

    @classmethod
    def of(cls, pack: Add, sizes: PackSizes, *, touched: bool) -> "_Group":
        live = sizes.weight(pack.size * pack.live_rows // max(pack.rows, 1), pack.live_rows)
        return cls(
            paths=(pack.path,),
            size=live,
            cost=0 if touched else live,
            since=pack.since,
            until=pack.until,
            hidden=1 - pack.live_rows / max(pack.rows, 1),
        )

    @classmethod
    def joined(cls, groups: "list[_Group]") -> "_Group":
        return cls(
            paths=tuple(path for group in groups for path in group.paths),
            size=sum(group.size for group in groups),
            cost=0,
            since=min(group.since for group in groups),
            until=max(group.until for group in groups),
            rewritten=True,
        )


def _merge_of(groups: "list[_Group]") -> Merge:
    joined = _Group.joined(groups)
    return Merge(paths=joined.paths, size=joined.size, since=joined.since, until=joined.until)
