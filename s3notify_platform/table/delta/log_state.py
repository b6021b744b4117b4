"""Computes the state of a log, version by version. Decides which versions of other engines are adopted. Pure.

A version of the platform must name the previous manifest of the platform as its parent. A version of another engine is
adopted if it changes no data. Other foreign versions are refused, unless the platform's next version undoes them
(`rollback`). This next version restores the state before the foreign versions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.table.delta.actions import UNKNOWN_ROWS, Add, LogVersion, MetaData, Protocol
from s3notify_platform.table.delta.metadata import objections
from s3notify_platform.table.known import LINEAGE_MAX, Lineage

NO_VERSION: Final = -1

UNDOES: Final = "undoes"
"""Field of a version's note: the versions of other engines that this version undoes. The undone versions directly
precede this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The state of a log as of one version: the same data as in a checkpoint, without manifests. Pure.

    `foreign`: True if the state comes from another engine's checkpoint.
    """

    version: int = NO_VERSION
    number: int = 0
    table: str = ""
    packs: Mapping[str, Add] = field(default_factory=dict)
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    foreign: bool = False
    lineage: Lineage = ()


def undone_in(versions: Sequence[LogVersion]) -> list[bool]:
    """Returns a flag for each of these consecutive versions: true if another engine wrote the version, and the
    platform's next version undoes it.

    Pure.
    """
    found, undoes = [False] * len(versions), 0
    for at in reversed(range(len(versions))):
        if versions[at].foreign:
            found[at] = undoes > 0
            undoes -= 1
        else:
            undoes = len(versions[at].note.get(UNDOES, ()))
    return found


def after(
    state: LogState, version: LogVersion, *, where: str, adopt: bool = True, undone: bool = False
) -> LogState:
    """Returns the state after this version. Pure.

    `adopt`: True if a foreign version that changes no data is accepted. `undone`: True if another version undoes this
    version, which may then be any foreign version. `CorruptError`: the version does not fit the state. `UsageError`:
    another engine made a forbidden change.
    """
    number = state.version + 1
    if version.foreign and not adopt and not undone:
        raise UsageError(
            f"{where}: another engine's {version.operation or 'commit'}, in a table whose versions are created "
            f"under leases. That engine ignores leases. Go back: s3notify table rollback NAME --to {state.version}"
        )
    if version.foreign:
        if not undone:
            _check_foreign(state, version, where)
    elif version.parent != state.number or not _goes_on(state, version):
        raise OtherLogError(f"{where}: follows a version other than the one that was read")
    packs = dict(state.packs)
    for gone in version.removes:
        held = packs.get(gone.path)
        if held is not None and held.id == gone.id:
            del packs[gone.path]
        elif not version.foreign:
            raise CorruptError(f"{where}: removes {gone.path!r}, which is not live: restore the table's log")
    for add in version.adds:
        packs[add.path] = replace(add, until=min(add.until, number))
    named = version.number or state.number
    return LogState(
        version=number,
        number=named,
        lineage=(*state.lineage, (number, named))[-LINEAGE_MAX:],
        table=version.table or state.table,
        packs=packs,
        protocol=version.protocol or state.protocol,
        metadata=version.metadata or state.metadata,
    )


def _goes_on(state: LogState, version: LogVersion) -> bool:
    """Returns true if the version belongs to this table, or is the table's first version under a new id
    (`open_table.forget`).
    """
    renamed = version.metadata is not None and version.metadata.id == version.table
    return version.table == state.table or renamed


class OtherLogError(CorruptError):
    """The log was replaced after it was read, so the table must be opened again."""


def _check_foreign(state: LogState, version: LogVersion, where: str) -> None:
    if not state.number:
        raise UsageError(f"{where}: another program made this Delta table: give the source another prefix")
    assert state.metadata is not None
    assert state.protocol is not None
    reasons = objections(version, metadata=state.metadata, protocol=state.protocol)
    if not _same_rows(state, version):
        reasons.insert(0, "it changes rows")
    if version.strange:
        reasons.append(f"it has {', '.join(version.strange)}")
    if reasons:
        raise UsageError(
            f"{where}: another engine's {version.operation or 'commit'}: {'; '.join(reasons)}. Only s3notify may "
            f"change this table: go back by `s3notify table rollback NAME --to {state.version}`"
        )


def _same_rows(state: LogState, version: LogVersion) -> bool:
    """Returns true if a foreign version declares that it changes no data, and if the numbers of rows confirm this."""
    live = {pack.id: pack.live_rows for pack in state.packs.values()}
    gone = {each.id for each in version.removes}
    counts = [add.live_rows for add in version.adds]
    if version.changes_rows or not gone <= live.keys() or UNKNOWN_ROWS in counts:
        return False
    return sum(live[each] for each in gone) == sum(counts)
