"""Reads splits in a Spark task: fetches objects, or parts of objects, and parses them to Arrow.

The lineage columns come first in the rows. Rejects are in separate batches. The outcome of an object, or of a part,
follows the rows and rejects of the object or part.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa

from s3notify_platform.engine.read.counted import Counted, Rejected, rejects_of
from s3notify_platform.engine.read.fetch import Fetched, fetch, gets_of
from s3notify_platform.engine.read.isolation import failure_of, is_verdict, isolated
from s3notify_platform.engine.read.remote_bytes import RemoteBytes
from s3notify_platform.engine.read.splits import is_big
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.task_rows import LINEAGE_SCHEMA, ReadObject
from s3notify_platform.formats.base import HEAD_SAMPLE_BYTES, Format, SplitEnd
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Target, rejected_whole
from s3notify_platform.formats.registry import format_for, format_of
from s3notify_platform.kernel.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    S3NotifyError,
    UnavailableError,
)
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.source.source import Source

SAMPLE_OBJECTS: Final = 64
SAMPLE_BYTES: Final = 32 << 20


Found: TypeAlias = pa.RecordBatch | Rejected | ReadObject
"""Rows, rejects, or an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReader:
    """Reads splits in a Spark task: fetches their objects and parses them with `schema`. `size`: see `Target`.

    `schema` has the column names of the objects; `named` has the column names of the rows, if they differ.
    """

    source: Source
    schema: pa.Schema
    inferred: bool
    size: tuple[int, int] = (0, 0)
    named: pa.Schema | None = None

    @property
    def output(self) -> pa.Schema:
        """The columns of the rows: lineage, then the data columns, then the columns of the object."""
        return pa.schema([*LINEAGE_SCHEMA, *self.source.input.delivered(self.named or self.schema)])

    @property
    def target(self) -> Target:
        """The target of parsing: schema and mode."""
        rescue = self.source.input.mismatches == "rescue"
        name = self.source.name if self.inferred else ""
        return Target(schema=self.schema, inferred=self.inferred, rescue=rescue, size=self.size, name=name)

    def read(self, splits: Iterable[Split]) -> Iterator[Found]:
        """Reads these splits: first the whole objects by `windows`, then all other splits by `pieces`."""
        whole, big = self.sorted_out(splits)
        for window in self.windows(whole):
            yield from window
        for split in big:
            yield from self.pieces(split)

    def sorted_out(self, splits: Iterable[Split]) -> tuple[list[Split], list[Split]]:
        """Returns two lists: the splits of whole objects for `windows`, and all other splits for `pieces`."""
        found: tuple[list[Split], list[Split]] = ([], [])
        for split in splits:
            found[is_big(split, self.source)].append(split)
        return found

    def windows(self, splits: Sequence[Split]) -> Iterator[Iterator[Found]]:
        """Reads whole objects.

        Yields one iterator for each window of objects: the rejects and rows of the objects, then the outcomes. Each
        batch is sorted by slot.
        """
        versions = sorted((s.version for s in splits), key=lambda version: (version.slot, version.key))
        for window in fetch(self.source.input.bucket, versions, prefix=self.source.input.prefix):
            yield _parse_window(window, self.source, self.target, self.output)

    def pieces(self, split: Split) -> Iterator[Found]:
        """Reads a part of an object, or a big object, piece by piece. Yields the rejects and rows, then the outcome."""
        version = split.version
        outcome = Outcome.whole("ok", version.etag, version.size, start=split.start)
        form = format_for(version.key, self.source.input)
        refused = self.source.input.refusal(version.key)
        if form is None or refused:
            yield rejects_of([(version, 0, refused, b"")])
            yield _ended(version, replace(outcome, rejects=1))
            return
        remote = RemoteBytes(self.source.input.bucket, version, prefix=self.source.input.prefix)
        counted = Counted([version], self.output, self.source, lambda: [remote.meta])
        try:
            for found in form.read(remote, split, self.target, encoding=self.source.input.encoding):
                if isinstance(found, SplitEnd):
                    by_record = found.status == "by_record"
                    read = by_record and (split.by_record or split.start == 0)
                    outcome = replace(
                        outcome,
                        status="ok" if read else found.status,
                        by_record=by_record,
                        offset=found.offset,
                        reach_end=found.reach_end,
                        reason=found.reason,
                        outage=found.outage,
                    )
                    continue
                yield from counted.batches(found)
            yield from counted.beyond()
        except Exception as error:
            if not is_verdict(error):
                raise
            outcome = replace(outcome, **failure_of(error), reach_end=False)
        outcome = replace(
            outcome,
            **counted.of(0),
            new_fields=counted.new_fields(),
            gets=remote.gets,
            bytes=split.stored_bytes if outcome.status == "ok" else 0,
        )
        yield _ended(version, outcome)


def _ended(version: ObjectVersion, outcome: Outcome) -> ReadObject:
    return ReadObject(slot=version.slot, key=version.key, outcome=outcome)


def _parse_window(
    window: Sequence[Fetched], source: Source, target: Target, output: pa.Schema
) -> Iterator[Found]:
    """Parses one window. The result is one item of `SplitReader.windows`."""
    outcomes: list[Found] = []

    def by_format(fetched: Fetched) -> tuple[str, str]:
        key = fetched.version.key
        form = None if source.input.refusal(key) else format_of(key, source.input.format)
        return fetched.status, form.name if form else ""

    for (status, name), group in groupby(sorted(window, key=by_format), key=by_format):
        part = list(group)
        if status != "ok":
            outcomes += [_not_fetched(fetched) for fetched in part]
            continue
        form = format_for(part[0].version.key, source.input) if name else None
        parse = partial(_parse, form=form, source=source, target=target, output=output)
        for found in isolated(part, parse, _over_which_it_raises, _bytes_of):
            if isinstance(found, ReadObject):
                outcomes.append(found)
            else:
                yield found
    yield from outcomes


def _not_fetched(fetched: Fetched) -> ReadObject:
    version = fetched.version
    outcome = Outcome.whole(
        fetched.status,
        version.etag,
        version.size,
        gets=gets_of(version),
        reason=fetched.reason,
        outage=fetched.outage,
        trace=fetched.trace,
    )
    return _ended(version, outcome)


def _over_which_it_raises(fetched: Fetched, error: Exception) -> ReadObject:
    version = fetched.version
    outcome = Outcome.whole("ok", version.etag, version.size, gets=gets_of(version), bytes=0)
    return _ended(version, replace(outcome, **failure_of(error)))


def _bytes_of(found: Found) -> int:
    match found:
        case ReadObject():
            return 0
        case Rejected():
            return int(found.batch.nbytes)
        case _:
            return int(found.nbytes)


def _parse(
    part: Sequence[Fetched], *, form: Format | None, source: Source, target: Target, output: pa.Schema
) -> Iterator[Found]:
    """Parses objects of one format together: yields their rejects and rows, then their outcomes."""
    metas = [fetched.meta for fetched in part]
    counted = Counted([fetched.version for fetched in part], output, source, partial(list, metas))
    for parsed in _parsed(part, form, target, source):
        yield from counted.batches(parsed)
    yield from counted.beyond()
    wider = counted.new_fields()
    for number, fetched in enumerate(part):
        found = counted.of(number)
        outcome = Outcome.whole(
            "ok",
            fetched.version.etag,
            len(fetched.body),
            gets=gets_of(fetched.version),
            new_fields=wider if found["unnamed"] and target.inferred else (),
            **found,
        )
        yield _ended(fetched.version, outcome)


def _parsed(part: Sequence[Fetched], form: Format | None, target: Target, source: Source) -> Iterator[Parsed]:
    if form is not None:
        objects = [(fetched.version.key, fetched.body) for fetched in part]
        yield from form.parse(objects, target, encoding=source.input.encoding)
        return
    for number, fetched in enumerate(part):
        if fetched.body:
            reason = source.input.refusal(fetched.version.key)
            yield rejected_whole(number, fetched.body, reason, target)


def sample_of(source: Source, versions: Sequence[ObjectVersion]) -> list[ObjectVersion]:
    """Returns the sample for inference: up to `SAMPLE_OBJECTS` of `versions`, evenly spread. At most `SAMPLE_BYTES` of
    all these objects together are read, and at most `HEAD_SAMPLE_BYTES` of each object. Pure.
    """
    candidates = [v for v in versions if v.size and not source.input.refusal(v.key)]
    count = min(SAMPLE_OBJECTS, len(candidates))
    sample: list[ObjectVersion] = []
    for version in (candidates[len(candidates) * number // count] for number in range(count)):
        read = min(version.size, HEAD_SAMPLE_BYTES)
        if not sample or sum(min(v.size, HEAD_SAMPLE_BYTES) for v in sample) + read <= SAMPLE_BYTES:
            sample.append(version)
    return sample


def schema_of_sample(source: Source, sample: Sequence[ObjectVersion]) -> pa.Schema | None:
    """Returns the schema that these objects suggest; None if no object suggests a schema.

    Cost: 1 GET for each object, or more GETs for a large object. Raises `UnavailableError` if no schema is found, and
    an outage prevented a read.
    """
    outages: list[str] = []
    schema = infer(_sampled(source, sample, outages), source.input.object_columns.schema.names)
    if schema is None and outages:
        raise UnavailableError(f"no object of the sample can be read now: {outages[0]}")
    return schema


def _sampled(source: Source, versions: Sequence[ObjectVersion], outages: list[str]) -> Iterator[pa.Schema]:
    """Yields the schema that each existing object suggests. Adds the reasons of outages to `outages`."""
    small = [version for version in versions if version.size <= HEAD_SAMPLE_BYTES]
    for window in fetch(source.input.bucket, small, prefix=source.input.prefix):
        for fetched in window:
            if fetched.status == "ok":
                yield from _suggested(source, fetched.version, BytesInMemory(fetched.body))
            elif fetched.outage:
                outages.append(fetched.reason)
    for version in versions:
        if version.size > HEAD_SAMPLE_BYTES:
            try:
                remote = RemoteBytes(source.input.bucket, version, prefix=source.input.prefix)
                yield from _suggested(source, version, remote)
            except (ConflictError, NotFoundError, RefusedError):
                pass
            except UnavailableError as error:
                outages.append(str(error))


def _suggested(source: Source, version: ObjectVersion, body: ObjectBytes) -> Iterator[pa.Schema]:
    form = format_for(version.key, source.input)
    if form is None:
        return
    try:
        yield from form.schemas(body, version.key, source.input.encoding)
    except S3NotifyError:
        raise
    except Exception:  # noqa: BLE001 - an object without a schema is a reject when it is read
        return
