"""The outcome of reading an object, as a whole or in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from s3notify_platform.formats.rescue import added


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of reading an object, or a part of it.

    `status`: `by_record` means that this part was not read, because its object can only be read from the beginning.
    `start`, `offset`: the bytes from `start` to `offset` were read. `reach_end`: no more bytes follow. `failed`: the
    reason why the bytes after `offset` could not be read; `outage`: the store was at fault, not the object; `trace`:
    the traceback of an unforeseen error (`unforeseen`). `parts`: the `start` of each part that the outcome covers (see
    `joined`). `stored`: the number of rows that a transform has made of the object; None without a transform.
    `new_fields`: the fields that an inferred schema lacks, as Arrow schemas in base64. `broken`: the number of rows
    that broke each rule.
    """

    status: Literal["ok", "superseded", "deleted", "failed", "by_record"]
    etag: str
    size: int
    rows: int = 0
    rejects: int = 0
    reason: str = ""
    new_fields: tuple[str, ...] = ()
    start: int = 0
    offset: int = 0
    reach_end: bool = True
    by_record: bool = False
    bytes: int = 0
    failed: str = ""
    outage: bool = False
    trace: str = ""
    unnamed: Mapping[str, int] = field(default_factory=dict)
    mismatches: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    gets: int = 0
    parts: tuple[int, ...] = ()
    stored: int | None = None

    @classmethod
    def whole(cls, status: Any, etag: str, size: int, **found: Any) -> "Outcome":
        """Returns the outcome of an object that was read as a whole, or not at all."""
        given = {"offset": size, "bytes": size if status == "ok" else 0} | found
        return cls(status=status, etag=etag, size=size, **given)


def _none_of(
    outcome: Outcome, status: Literal["failed", "deleted", "superseded"], reason: str = ""
) -> Outcome:
    return replace(
        outcome, status=status, reason=reason or outcome.reason, rows=0, rejects=0, bytes=0, unnamed={},
        mismatches={}, broken={}, parts=(),
    )  # fmt: skip


def joined(parts: Sequence[Outcome], *, whole: bool) -> Outcome:
    """Makes the outcome of an object from the outcomes of its parts, which one or several tasks have read. Pure.

    The result covers the parts before the first failed part, and has the failure of this failed part. With `whole`, the
    failure of any part fails the object. If one part is superseded or deleted, the whole object is superseded or
    deleted, because its parts may be of two object versions.
    """
    if len(parts) == 1 and parts[0].status == "ok" and parts[0].reach_end:
        return replace(parts[0], parts=(parts[0].start,))
    for status in ("deleted", "superseded"):
        if any(part.status == status for part in parts):
            return _none_of(parts[0], status)
    ordered = sorted(parts, key=lambda part: part.start)
    first = ordered[0]
    if first.status == "ok" and first.by_record:
        ordered = [first]  # tasks that began in the middle of the object have read nothing
    count = next((n for n, part in enumerate(ordered) if part.status != "ok"), len(ordered))
    read = ordered[:count]
    failed = "" if count == len(ordered) else ordered[count].reason or ordered[count].status
    outage = bool(failed) and ordered[count].outage
    trace = ordered[count].trace if failed else ""
    if read and not read[-1].reach_end and read[-1].offset <= first.start:
        read, failed = [], failed or "none of its records ends within the bytes of one round: raise max_bytes"
    if not read or (failed and whole):
        return replace(_none_of(first, "failed", failed), outage=outage, trace=trace)
    return replace(
        first,
        rows=sum(part.rows for part in read),
        rejects=sum(part.rejects for part in read),
        bytes=sum(part.bytes for part in read),
        new_fields=tuple(fields for part in ordered for fields in part.new_fields),
        unnamed=added(part.unnamed for part in read),
        mismatches=added(part.mismatches for part in read),
        broken=added(part.broken for part in read),
        offset=read[-1].offset,
        reach_end=read[-1].reach_end and not failed,
        parts=tuple(part.start for part in read),
        failed=failed,
        outage=outage,
        trace=trace,
    )
