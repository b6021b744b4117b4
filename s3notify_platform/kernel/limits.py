"""Limits: one place, a name, a unit and a default for each. Checked before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""What a task reads of one object that has to be in memory as a whole, and the longest record."""

MAX_KEY_BYTES: Final = 1024
"""Bytes of a key, in UTF-8. S3's own limit."""

MAX_PUBLISHED_BYTES: Final = 5 << 40
"""Bytes of an object. S3's own limit."""

MAX_PARTS: Final = 10_000
"""Parts of a multipart upload. S3's own limit."""

PART_BYTES: Final = 8 << 20
"""Bytes of the first part of an upload; what has no more is written by one PUT. S3 takes no less than 5 MiB."""

PARTS_BYTES: Final = 256 << 20
"""Bytes of an upload's parts in memory at once, unless a single part has more."""

COPIED_AT_ONCE_BYTES: Final = 1 << 30
"""Bytes of an object that one request copies. S3 takes 5 GiB, but the answer may come after any timeout."""

COPIED_PART_BYTES: Final = 128 << 20
"""Bytes of each part that the store copies, at least."""

OVERDUE_SECONDS: Final = 3600.0
"""A batch that is open, or a change that is on its way, for longer is shown; by the wall clock, for people."""

OUTAGE_SECONDS: Final = 60.0
"""Seconds that a run waits at least, in all, for a store that does not answer or throttles, before it fails."""

OUTAGE_WAIT_SECONDS: Final = 10.0
"""Seconds that a run waits at most before it tries again."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

CARRIED_PACK_BYTES: Final = 64 << 10
"""Bytes of a pack up to which a task sends it to the driver, which writes it with the version."""

WITHDRAWN_SHARE: Final = 0.5
"""Share of the objects compared that one listing may withdraw; more waits until a person confirms it."""

WITHDRAWN_OBJECTS: Final = 100
"""Objects compared, from which on that share counts."""

MAX_DEPTH: Final = 32
"""Levels of objects and lists in each other, the record itself included: of a record of JSON, and of a schema."""

MAX_COLUMNS: Final = 2000
"""Fields, at any depth, of an inferred or declared schema. Rows may have as many again, from a transform."""

MAX_SCHEMA_BYTES: Final = 512 << 10
"""Bytes of an inferred or declared schema, as Spark's JSON. Of rows twice as many."""

SCHEMA_WARN_SHARE: Final = 0.8
"""Share of `MAX_COLUMNS` or `MAX_SCHEMA_BYTES` from which on `s3notify status` warns of an inferred schema."""

MAX_CELLS: Final = 8 << 20
"""Values that are parsed at once: records (of JSON: objects) times columns. What has more is parsed in parts."""

MAX_KEYS: Final = 4 * MAX_COLUMNS
"""Different keys in JSON that is parsed at once; a record with more is a reject, or rescued."""

MAX_ROW_GROUP_BYTES: Final = (1 << 31) - 1
"""Bytes of a Parquet row group's columns, as its footer says, and as they are decoded."""

MAX_ROW_GROUP_CELLS: Final = 1 << 28
"""Rows times columns of a Parquet row group, and values of an Avro file's fields that are always null: a few hundred
bytes can hold billions of nulls."""

MAX_ROWS_PER_BYTE: Final = 100
"""Rows of a Parquet file for each of its bytes, beyond its first million: of columns that say the same in all rows."""

MAX_DECODED_BYTES: Final = 256 << 20
"""Bytes of the rows of an object of Parquet, ORC or Avro, decoded: 500 bytes can repeat one value to gigabytes."""

MAX_DECODED_PER_BYTE: Final = 1000
"""Bytes of such rows for each byte of a larger object, if that is more."""

BATCH_BYTES: Final = 16 << 20
"""Bytes of Arrow rows that pass between Python and the JVM at once, unless one row has more."""

MAX_TASK_BYTES: Final = 8 << 30
"""Memory that a task of Spark may take beyond what its process had, and no more than `MAX_TASK_SHARE` of all there is.

The last line, where the system can limit it: one object may be `MAX_OBJECT_BYTES`, and is copied."""

MAX_TASK_SHARE: Final = 0.7
"""Of the memory of the machine, or of the container."""

MAX_TRACE_BYTES: Final = 4096
"""Bytes of a traceback that is kept with the failure of a slot or an object."""

MAX_UNFORESEEN: Final = 20
"""Objects of a source that are in quarantine at once for errors that nobody foresaw; the slots of others stay failed.

Such an error may as well be a defect that hits each object. Their neighbours are committed in any case, so that the
limit costs retries; without it the rows of a whole table could leave in one night.
"""

MAX_REJECTS: Final = 1000
"""Rejects that are kept of one object, or of a part of a big one. One more says how many there were."""

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Decoded bytes of a JSON document, which is read as a whole."""

DRAIN_SECONDS: Final = 9.0
"""From SIGTERM until a command has ended: less than the 10 s after which container runtimes kill."""

CREDENTIALS_SECONDS: Final = 60.0
"""For how long credentials that do not renew themselves are used, before they are looked up again."""

REMEMBERED_TABLES: Final = 64
"""Tables of which a process remembers the heads, one of each slot; beyond, it lists for them again."""

MAX_DEFS_BYTES: Final = 256 << 10
"""Bytes of a `defs.yaml`."""

MAX_DEFS_NODES: Final = 20_000
"""Values of a document in it, each alias counted as what it stands for."""

SESSIONS_MAX: Final = 4
"""Spark sessions that runs of a machine have at once, besides those of warm workers; further runs wait."""

STATES_INLINE: Final = 256
"""States that a manifest holds itself, at most; more go to a file."""

STATES_INLINE_BYTES: Final = 24 << 10
"""Bytes of those in the manifest, which has 64 KB in all."""

STATE_PAGE: Final = 4096
"""States of a page of a state file, which is what is read for one key."""

STATE_PAGE_BYTES: Final = 4 << 20
"""Bytes of a page in memory, unless one state has more: keys, reasons and traces may be long."""

STATE_FILE_BYTES: Final = (4 << 20, 64 << 20)
"""Bytes of a merged state file, about: a hundredth of all state files, within these bounds."""

STATE_FILES_FRESH: Final = 8
"""State files of level 0, from which on they are merged into level 1."""

STATE_LEVEL_BYTES: Final = 4 << 20
"""Bytes of level 1 of the states, from which on it is merged into the next; of each further level ten times as many."""

STATE_MERGE_BYTES: Final = 64 << 20
"""Bytes of state files that one round merges, unless the smallest step has more."""

STATE_CACHE_BYTES: Final = 256 << 20
"""Memory of a process for filters and pages of state files."""

STATE_WHOLE_BYTES: Final = 256 << 10
"""State files up to this size are read by one request, whole."""

STATE_READ_BYTES: Final = 8 << 20
"""Bytes that one request reads of a state file, where several pages are read together."""

STATE_GAP_BYTES: Final = 128 << 10
"""Unwanted bytes between two pages, up to which they are read together."""

CHANGES_INLINE: Final = 32
"""Changes of states that a manifest holds itself, at most; more go to a file."""

CHANGES_INLINE_BYTES: Final = 12 << 10
"""Bytes of those in the manifest."""

PACK_WHOLE_BYTES: Final = 1 << 20
"""Packs up to this size are read by one request, whole; larger ones by their footer and ranges."""

PACK_TAIL_BYTES: Final = 128 << 10
"""Bytes from the end of a larger pack that are read first, for its footer; one that has more takes a second request."""

PACK_READ_BYTES: Final = 8 << 20
"""Bytes that one request reads of a pack: it has to end within its time limit."""

PACK_GAP_BYTES: Final = 128 << 10
"""Unwanted bytes between two columns of a pack, up to which they are read together."""

PACK_STREAM_BYTES: Final = 64 << 20
"""Bytes of a row group that are read ahead; what has more, of another engine, is read while it is decoded."""

READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes of packs that are under way, or wait, while others are decoded."""

CLOCK_SKEW: Final = 3.0
"""How many times as fast as another machine's clock one may run."""

TOPICS_KNOWN_SECONDS: Final = 2.0
"""For how long a writer relies on the topics as it read them, by its own clock, from the start of the read.

Whoever changes something that writers rely on waits `CLOCK_SKEW` times as long before acting on the change."""

ROOM_HELD: Final = 32
"""Entries for which a process holds room in one shard, beyond what it has reserved: one request for so many puts."""

ROOM_HELD_SHARE: Final = 1 / 16
"""Share of a shard's capacity for which one process holds such room at most."""

ROOM_IDLE_SHARE: Final = 1 / 4
"""Share of a shard's capacity up to which it may be filled by taking such room. The rest is for entries."""

REQUESTS_IN_FLIGHT: Final = 16
"""Requests of one operation that are under way at once, unless it says another number."""

MAX_REASON: Final = 300
"""Characters of a reason for people, of why a slot or an object failed."""

MAX_BACKLOG_REASON: Final = 200
"""Bytes of it in the rescan backlog: 1000 of them are one item of DynamoDB, which takes 400 KB."""

MAX_RESCUED_PATHS: Final = 64
"""Fields without a column, and mismatching columns, that are counted apart by their paths."""

MAX_ORC_BLOCK_BYTES: Final = 1 << 23
"""Bytes of a block before compression: its length has 23 bits. pyarrow allocates what the tail says."""

MAX_FOOTER_BYTES: Final = 32 << 20
"""Bytes of the footer of a Parquet file."""

MAX_AVRO_HEADER_BYTES: Final = 32 << 20
"""Bytes of the header of an Avro file, with its schema."""

MAX_POISON_BYTES: Final = 128 * 1024
"""Bytes kept of a message; the rest is cut off. As base64 they fit into a DynamoDB item."""

MAX_POISON: Final = 1000
"""Messages kept for one queue; further ones are refused until some are discarded."""

MAX_RECEIVES: Final = 10
"""Times that a message is received from a queue before it is kept as poison."""

CLUSTER_FILE_BYTES: Final = 128 << 20
"""Size from which on a file of a clustered table is full."""

MAX_CODE_CHARS: Final = 1 << 20
"""Characters of a module whose code has a fingerprint; that of a larger one has none."""

MAX_CODE_STATEMENTS: Final = 2000
"""Statements of a project that a fingerprint is of; those that are named only beyond are left out."""
