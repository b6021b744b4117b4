"""Converts parsed objects to rows and rejects.

Adds the columns of lineage, applies the rules (`expect`), and counts rows and rejects for each object.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.engine.values.task_rows import LINEAGE_SCHEMA
from s3notify_platform.formats.inference import joined
from s3notify_platform.formats.records import Offsets, Parsed
from s3notify_platform.formats.records import Reject as ParsedReject
from s3notify_platform.formats.rescue import Tally, added, count, rescued_too
from s3notify_platform.kernel.limits import BATCH_BYTES, MAX_RAW_BYTES, MAX_REASON, MAX_REJECTS
from s3notify_platform.kernel.ports import ObjectMeta
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.source.source import Source
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.reading import in_slices


class Rejected(NamedTuple):
    """Rejected records, in the columns of `REJECT_SCHEMA`."""

    batch: pa.RecordBatch


def rejects_of(rows: Sequence[tuple[ObjectVersion, int | None, str, bytes | None]]) -> Rejected:
    """Returns rejects as a batch. Each of `rows` has a reject's object version, offset, reason and raw bytes."""
    columns = zip(
        *((v.slot, v.key, v.etag, offset, reason, raw) for v, offset, reason, raw in rows), strict=True
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, REJECT_SCHEMA, strict=True)]
    return Rejected(pa.RecordBatch.from_arrays(arrays, schema=REJECT_SCHEMA))


class Counted:
    """Counts rows and rejects of objects that are parsed together. A `place` is an object's index in `versions`.

    `metas` returns the metadata of the objects' GETs.
    """

    def __init__(
        self,
        versions: Sequence[ObjectVersion],
        output: pa.Schema,
        source: Source,
        metas: Callable[[], Sequence[ObjectMeta | None]],
    ) -> None:
        self._versions = versions
        self._output = output
        self._object_columns = source.input.object_columns
        self._metas = metas
        self._mismatched = {
            place: mismatched
            for place, version in enumerate(versions)
            if (mismatched := self._object_columns.mismatched(version.key))
        }
        self._rows = np.zeros(len(versions), np.int64)
        self._rejects = np.zeros(len(versions), np.int64)
        self._unnamed: list[Tally] = []
        self._mismatches: list[Tally] = []
        self._broken: Tally = {}
        self._fields: list[pa.Schema] = []
        self._behind_lineage = pa.schema([*output][len(LINEAGE_SCHEMA) :])
        self._rules = source.input.rules
        self._beyond: dict[int, ParsedReject] = {}

    def batches(self, parsed: Parsed) -> Iterator[pa.RecordBatch | Rejected]:
        """Counts the rows and rejects of a parsed part, and yields them."""
        self._unnamed.append(parsed.unnamed)
        self._mismatches.append(parsed.mismatches)
        self._fields += parsed.new_fields
        if len(parsed.index):
            if self._mismatched:  # only if mismatches are rescued; otherwise the object was rejected before
                rows = np.bincount(parsed.index, minlength=len(self._versions))
                parsed.table = rescued_too(parsed.table, parsed.index.tolist(), self._mismatched)
                self._mismatches.append(
                    {n: Counter(dict.fromkeys(texts, int(rows[n]))) for n, texts in self._mismatched.items()}
                )
            data = parsed.table.columns
            columns = [
                *map(_under_its_names, data, self._behind_lineage),
                *self._of_objects(parsed),
            ]
            if self._rules and (leaving := self._leaving(parsed, columns)).any():
                parsed, kept_rows = parsed.without(leaving), pa.array(~leaving)
                columns = [column.filter(kept_rows) for column in columns]
        if len(parsed.index):
            self._rows += np.bincount(parsed.index, minlength=len(self._versions))
            yield from _row_batches(self._versions, parsed, columns, self._output)
        kept = []
        for reject in parsed.rejects:
            self._rejects[reject.index] += 1
            if self._rejects[reject.index] <= MAX_REJECTS:
                kept.append(reject)
            else:
                self._beyond.setdefault(reject.index, reject)
        yield from self._written(kept)

    def _of_objects(self, parsed: Parsed) -> list[pa.Array]:
        """Returns the columns that follow the data columns, with a value for each row."""
        keys = (version.key for version in self._versions)
        values = self._object_columns.values(zip(keys, self._metas(), strict=True))
        index = pa.array(parsed.index, pa.int64())
        return [
            *(each.take(index) for each in values),
            *([parsed.texts()] if self._object_columns.payload else []),
        ]

    def _leaving(
        self, parsed: Parsed, columns: Sequence[pa.ChunkedArray | pa.Array]
    ) -> npt.NDArray[np.bool_]:
        """Returns which rows to leave out because they break a rule, and adds these rows to `parsed` as rejects.

        Counts all rows that break a rule.
        """
        leaving = np.zeros(len(parsed.index), bool)
        schema = self._behind_lineage
        for rule, rows in self._rules.bound(schema).broken(dict(zip(schema.names, columns, strict=True))):
            objects, times = np.unique(parsed.index[rows], return_counts=True)
            for index, broken in zip(objects.tolist(), times.tolist(), strict=True):
                count(self._broken, index, [rule.name], broken)
            if not rule.warns:
                parsed.rejects += self._broken_rows(parsed, np.flatnonzero(rows & ~leaving), rule.reason)
                leaving |= rows
        parsed.rejects.sort(key=attrgetter("index", "offset"))
        return leaving

    def _broken_rows(self, parsed: Parsed, rows: Offsets, reason: str) -> Iterator[ParsedReject]:
        seen: Counter[int] = Counter()
        places = parsed.index[rows].tolist(), parsed.offset[rows].tolist()
        for row, index, offset in zip(rows.tolist(), *places, strict=True):
            kept = self._rejects[index] + seen[index] <= MAX_REJECTS
            seen[index] += 1
            raw = parsed.raw(row)[:MAX_RAW_BYTES] if kept else b""
            yield ParsedReject(index=index, offset=offset, reason=reason[:MAX_REASON], raw=raw)

    def beyond(self) -> Iterator[Rejected]:
        """Yields one more reject for each object that has more than `MAX_REJECTS` rejects.

        The reason of this reject contains the number of rejects that were not kept.
        """
        yield from self._written(
            replace(first, reason=f"{self._rejects[index] - MAX_REJECTS} more, the first: {first.reason}")
            for index, first in self._beyond.items()
        )

    def _written(self, rejects: Iterable[ParsedReject]) -> Iterator[Rejected]:
        rows = [(self._versions[r.index], r.offset, r.reason, r.raw) for r in rejects]
        if rows:
            yield rejects_of(rows)

    def of(self, place: int) -> dict[str, Any]:
        """Returns the counts of an object, for its `Outcome`."""
        return {
            "rows": int(self._rows[place]),
            "rejects": int(self._rejects[place]),
            "unnamed": added(tally[place] for tally in self._unnamed if place in tally),
            "mismatches": added(tally[place] for tally in self._mismatches if place in tally),
            "broken": added([self._broken.get(place, {})]),
        }

    def new_fields(self) -> tuple[str, ...]:
        """Returns the fields that an inferred schema lacks, as an Arrow schema in base64."""
        wider = joined(self._fields, self._object_columns.schema.names)
        return (b64encode(wider.serialize().to_pybytes()).decode("ascii"),) if wider is not None else ()


def _under_its_names(column: pa.ChunkedArray, named: pa.Field) -> pa.ChunkedArray:
    """Renames the nested fields of a column to their names in the table."""
    if column.type.equals(named.type):
        return column
    return pa.chunked_array([chunk.view(named.type) for chunk in column.chunks], named.type)


def _row_batches(
    part: Sequence[ObjectVersion],
    parsed: Parsed,
    columns: Sequence[pa.ChunkedArray | pa.Array],
    output: pa.Schema,
) -> Batches:
    index = pa.array(parsed.index, pa.int64())
    places = ((version.slot, version.key, version.etag) for version in part)
    slot, key, etag = (pa.array(column).take(index) for column in zip(*places, strict=True))
    lineage = [slot.cast(pa.int32()), key, etag, pa.array(parsed.offset, pa.int64())]
    rows = pa.Table.from_arrays([*lineage, *columns], schema=output).combine_chunks()
    for batch in rows.to_batches(max_chunksize=100_000):
        yield from in_slices(batch, BATCH_BYTES)
