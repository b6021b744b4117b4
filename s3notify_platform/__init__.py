"""s3notify_platform: changed S3 objects become rows of a Delta table, each object version exactly once.

The flow. A publisher writes an object and moves the signal of its slot. The sensor's poll learns which slots changed,
by one HEAD and at most one LIST. One run reads these slots. The run plans on one snapshot of the table: entries of the
queue name the changed keys, or a listing finds these keys. Then the run reads the objects under If-Match, parses and
transforms them, and stages packs. The round is committed as one version of the table's Delta log. After the commit, the
version is reported, the entries leave the queue, and the batch's ack chain is stamped.

Reading order. A package imports only packages that are above it in this list, but `defs` also imports `orchestration`.
A contract in CI checks this rule.

    kernel/         basic values of all other packages: slots, clock, errors, limits, ports, settings
    protocols/      one package for each of the five protocols, over ports alone. The `__init__` of each explains the
                    protocol: keyspace, ack_chain, conditional_commit, notification_queue, source_enumerator
    stores/         adapters of the ports behind one opener: memory, S3, DynamoDB, SQS, records on a bucket; the probe
    table/          one Delta log: snapshot, commit, manifest, packs, object states, quarantine, reader, change feed,
                    derived tables, mirrors
    deploy/         the work of `s3notify init`: DynamoDB tables, the bucket's events, IAM policies
    formats/        bytes in, rows and rejects out; one file and one registration for each format
    source/         the settings of a source, and the only code that builds a `Source` from them
    engine/         a change on its way to its rows, step by step: batch, plan, read, stage, commit; loop and driver
    maintenance/    upkeep, behind one port: vacuum, compact, erase, remove, migrate, roll back, tag
    spark/          PySpark: session, jobs, load, the data source
    channels/       the publisher that queues, the reconciler, inlets, delivery, the REST front of topics
    explain/        the state of one object, and of a source
    local/, defs/   the embedded S3 server, `dagster dev`, the demo and its source
    orchestration/  Dagster: partitions, sensor, IO manager, assets, checks, component; warm/ keeps Spark between runs
    cli/            `s3notify ...`
    guide/          the pages of `s3notify guide`

Where to look first
    a row becomes visible       `Committer` in `table/commit.py` creates the version; `engine/commit/round_commit.py`
                                requests it; `engine/loop.py` has the order of the next steps
    a new format                a file in `formats/`, and an entry in `formats/registry.py`; then `poe options`
    a new inlet or outlet       a file in `channels/inlets/` or `delivery/`, and an entry in `channels/registry.py`; for
                                a message service, also its adapter in `stores/`, its client in `kernel/extras.py`, and
                                an extra in `pyproject.toml`
    another event message       `_unwrapped` in `protocols/notification_queue/s3_event.py`
    a new setting of a source   first look in `guide/options.md`; then a field of a class in `source/settings.py`, and
                                the line that uses it; for a format, a field in `source/format_settings.py`; for the
                                choice of objects, a field in `source/choice_settings.py`, the reason in `Choice` of
                                `protocols/source_enumerator/chosen_objects.py`, and `Source.choice`; then `poe options`
    a new kind of store         a file in `stores/`, and an entry in `stores/kinds.py`
    events of another store     a file of parts in `deploy/events/`, and a case in `cli/events.py`
    another catalog or format   a file in `table/mirrors/`, and an entry in its `MIRRORS`
    a new command               a file in `cli/`, and an entry in `cli/main.py`

Glossary. The same words are in code, UI, commands, metrics and docs; each word has one meaning.

    slot                        0..999 by hash of the key; its partition key is the same number, unpadded
    partition                   a partition of Dagster or of Spark, never a slot
    keyspace                    the prefix of the signals
    signal, root                a slot's object, whose ETag changes with the slot; the signal of all slots, `{prefix}_`
    publisher, watcher, poll    writes objects and signals; compares signals; one comparison by a watcher
    announced, unannounced      a change that an entry names; a change that only a listing found
    unqueued writer             a writer that signals and adds no entry to the queue
    rescan, rescan backlog      the comparison of slots with a listing; the slots that wait for a rescan
    ack chain, tag, stamp       the XOR state of a batch; the chain's name; a random value that is XORed twice
    acked                       of a chain: its XOR is zero, so all work of the batch is done
    precondition, conflict      the absence or the ETag that a write requires; the precondition did not hold
    in doubt                    of a write: it is not yet known whether it was applied
    lease, generation, fenced   a time-bounded right; its number, which only rises; refused: a newer generation exists
    topic, segment, entry       a named queue; its unit of storage; one change in the queue
    persistent                  of a topic: it queues its changes; any other topic gets each change at once, or never
    reservation, quota          promised space in a topic; the amount of promised space
    shard consumer, release     a process that delivers the entries of a shard; the end of the process's ownership
    dead letter, redrive        a notification that could not be delivered; its second delivery
    reconciler                  resolves reservations of dead writers, and signals their changes
    enumerator, split           finds the work; the unit of reading: an object version, or a range of one
    assignment, offset          the slots of each reader; the place in an object where reading resumes
    batch, round                the slots of one request, with one ack chain; a part of a batch that one version commits
    stage, commit               write a round's packs; create the version that makes them visible
    version, snapshot           one commit to a table's log; the whole table as of a version
    derived table, to advance   a table made from another table; to update it to the other table's newest version
    newest rows, clustered      one row for each business key (`latest`); all rows in another order (`cluster_by`)
    change feed                 the rows that came and left between two versions, with the reason of each
    generation of a slot        the version that last changed it: Dagster's data version
    pack, manifest              a data file of many slots; the rest of the table's state as of a version
    label                       the number of the next version, at the time when the rows were planned
    known record, identity      the record of a table outside its prefix; the table's bucket, prefix, slots and hash
    withdraw                    remove the rows of a deleted or overwritten object from the table
    code version, stale         the version of the code that makes rows; a slot with rows of another code version
    backfill, force             read unchanged objects again, on request
    sweep                       a full LIST compared with the committed state
    quarantine, retry           records and objects that could not be read; a request to read them again
    rejected record             a record in quarantine; a damaged Parquet file is one rejected record
    failing object              an object in quarantine: it could not be read to its end
    mismatch, rescued value     a value that does not fit its column; the same value, kept in `_rescued`
    notation                    the way in which texts of a source write dates, times and numbers
    rule, broken                a condition on rows (`expect`); of a rule: a row does not fulfil it
    cursor                      Dagster's sensor state only
"""

from importlib import import_module
from typing import Any

from s3notify_platform.kernel.extras import remedy

__all__ = ["Changes", "S3NotifyComponent", "SlotIOManager", "s3_slot_asset"]


def __getattr__(name: str) -> Any:
    # The import is lazy, because a Spark executor imports this package for its readers, and does not need Dagster.
    if name in __all__:
        try:
            return getattr(import_module("s3notify_platform.orchestration"), name)
        except ModuleNotFoundError as error:
            raise ImportError(remedy(error) or _why(error), name=error.name) from error
        except ImportError as error:
            raise ImportError(_why(error), name=error.name) from error
        except AttributeError as error:  # without the conversion, Python would report a missing name
            raise ImportError(f"s3notify_platform.orchestration cannot be imported: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _why(error: ImportError) -> str:
    from s3notify_platform.local.dagster_versions import installed_versions

    return f"{error}. {problem}" if (problem := installed_versions().problem) else str(error)


def __dir__() -> list[str]:
    # `dg` finds components by this list of names.
    return sorted({*globals(), *__all__})
