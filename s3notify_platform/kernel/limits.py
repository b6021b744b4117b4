"""All limits, each with a name, a unit and a default. Code checks a limit before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""Bytes of an object that a task must hold in memory as a whole; also the bytes of the longest record."""

MAX_KEY_BYTES: Final = 1024
"""Bytes of a key, in UTF-8. S3's own limit."""

MAX_PUBLISHED_BYTES: Final = 5 << 40
"""Bytes of an object. S3's own limit."""

MAX_PARTS: Final = 10_000
"""Parts of a multipart upload. S3's own limit."""

PART_BYTES: Final = 8 << 20
"""Bytes of the first part of an upload; a smaller object is written by one PUT. S3 accepts no less than 5 MiB."""

PARTS_BYTES: Final = 256 << 20
"""Bytes of an upload's parts in memory at the same time, unless a single part is larger."""

COPIED_AT_ONCE_BYTES: Final = 1 << 30
"""Bytes of an object that one request copies. S3 allows 5 GiB, but its answer may take longer than any timeout."""

COPIED_PART_BYTES: Final = 128 << 20
"""Smallest size in bytes of each part that the store copies."""

OVERDUE_SECONDS: Final = 3600.0
"""If a batch is open for longer, or a change is under way for longer, it is shown to people (by wall clock)."""

OUTAGE_SECONDS: Final = 60.0
"""Seconds in total for which a run waits for a store that throttles or does not answer. Then the run fails."""

OUTAGE_WAIT_SECONDS: Final = 10.0
"""Longest wait in seconds before a run tries again."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

CARRIED_PACK_BYTES: Final = 64 << 10
"""Bytes of the largest pack that a task sends to the driver; the driver writes such a pack with the version."""

WITHDRAWN_SHARE: Final = 0.5
"""Share of the compared objects that one listing may withdraw; beyond it, a person must confirm the withdrawal."""

WITHDRAWN_OBJECTS: Final = 100
"""Number of compared objects from which `WITHDRAWN_SHARE` applies; a listing that compares fewer objects is not
limited."""

MAX_DEPTH: Final = 32
"""Nesting depth of objects and lists in a JSON record and in a schema. The record itself is the first level."""

MAX_COLUMNS: Final = 2000
"""Fields, at any depth, of an inferred or declared schema. A transform may add as many again to the rows."""

MAX_SCHEMA_BYTES: Final = 512 << 10
"""Bytes of an inferred or declared schema, as Spark's JSON. The schema of the rows may have twice as many."""

SCHEMA_WARN_SHARE: Final = 0.8
"""Share of `MAX_COLUMNS` or `MAX_SCHEMA_BYTES` at which `s3notify status` begins to warn of an inferred schema."""

MAX_CELLS: Final = 8 << 20
"""Most values that are parsed together: records (in JSON: objects) times columns. Larger inputs are parsed in parts."""

MAX_KEYS: Final = 4 * MAX_COLUMNS
"""Most different keys in JSON that is parsed together; a record with more keys is rejected or rescued."""

MAX_ROW_GROUP_BYTES: Final = (1 << 31) - 1
"""Bytes of a Parquet row group's columns: both as the footer states them and as they are decoded."""

MAX_ROW_GROUP_CELLS: Final = 1 << 28
"""Rows times columns of a Parquet row group; also the values of an Avro file's fields that are always null.

A few hundred bytes can hold billions of nulls."""

MAX_ROWS_PER_BYTE: Final = 100
"""Rows of a Parquet file for each of its bytes, beyond the first million rows. Constant columns cost few bytes."""

MAX_DECODED_BYTES: Final = 256 << 20
"""Bytes of the decoded rows of a Parquet, ORC or Avro object: 500 bytes can repeat one value to gigabytes."""

MAX_DECODED_PER_BYTE: Final = 1000
"""Decoded bytes for each byte of an object. The limit of an object is this, or `MAX_DECODED_BYTES` if that is
larger."""

BATCH_BYTES: Final = 16 << 20
"""Bytes of Arrow rows that pass between Python and the JVM in one step, unless one row is larger."""

MAX_TASK_BYTES: Final = 8 << 30
"""Memory that a Spark task may take beyond what its process already had; `MAX_TASK_SHARE` limits it further.

The last line of defence, on systems that can limit memory: one object may have `MAX_OBJECT_BYTES`, and is copied."""

MAX_TASK_SHARE: Final = 0.7
"""Share of the memory of the machine or container that a task may take."""

MAX_TRACE_BYTES: Final = 4096
"""Bytes of a traceback that are kept with the failure of a slot or an object."""

MAX_UNFORESEEN: Final = 20
"""Most objects of a source in quarantine at the same time because of unforeseen errors. Slots of further objects fail.

An unforeseen error may be a defect that affects every object. The other objects of a slot are committed in any case,
so the limit only costs retries. Without it, the rows of a whole table could disappear in one night.
"""

MAX_REJECTS: Final = 1000
"""Rejects that are kept of one object, or of one part of a big object. One further reject states the total."""

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Decoded bytes of a JSON document that is read as a whole."""

DRAIN_SECONDS: Final = 9.0
"""Seconds from SIGTERM until a command has ended: less than the 10 s after which container runtimes kill it."""

CREDENTIALS_SECONDS: Final = 60.0
"""Seconds for which credentials that do not renew themselves are used before they are looked up again."""

REMEMBERED_TABLES: Final = 64
"""Number of tables for which a process remembers the newest versions of the slots; it lists further tables again."""

MAX_DEFS_BYTES: Final = 256 << 10
"""Bytes of a `defs.yaml`."""

MAX_DEFS_NODES: Final = 20_000
"""Values in a document of a `defs.yaml`; an alias counts as all the values to which it refers."""

SESSIONS_MAX: Final = 4
"""Spark sessions at the same time for all runs on one machine, besides those of warm workers. Further runs wait."""

STATES_INLINE: Final = 256
"""Most states that a manifest contains; if there are more, they are written to a file."""

STATES_INLINE_BYTES: Final = 24 << 10
"""Most bytes of the states that a manifest contains. The whole manifest has 64 KB."""

STATE_PAGE: Final = 4096
"""States in a page of a state file. To find one key, one page is read."""

STATE_PAGE_BYTES: Final = 4 << 20
"""Bytes of a page in memory, unless one state is larger: keys, reasons and tracebacks may be long."""

STATE_FILE_BYTES: Final = (4 << 20, 64 << 20)
"""Least and largest size of a merged state file, in bytes: it gets about a hundredth of all state files."""

STATE_FILES_FRESH: Final = 8
"""Number of state files at level 0 at which they are merged into level 1."""

STATE_LEVEL_BYTES: Final = 4 << 20
"""Bytes at which level 1 of the states is merged into the next level. Each further level has ten times the limit."""

STATE_MERGE_BYTES: Final = 64 << 20
"""Bytes of state files that one round merges, unless the smallest possible merge is larger."""

STATE_CACHE_BYTES: Final = 256 << 20
"""Bytes of a process's memory for filters and pages of state files."""

STATE_WHOLE_BYTES: Final = 256 << 10
"""Bytes of the largest state file that is read whole, by one request."""

STATE_READ_BYTES: Final = 8 << 20
"""Bytes of a state file that one request reads, if several pages are read together."""

STATE_GAP_BYTES: Final = 128 << 10
"""Largest gap in bytes between two pages that one request reads together."""

CHANGES_INLINE: Final = 32
"""Most changes of states that a manifest contains; if there are more, they are written to a file."""

CHANGES_INLINE_BYTES: Final = 12 << 10
"""Most bytes of the changes that a manifest contains."""

PACK_WHOLE_BYTES: Final = 1 << 20
"""Bytes of the largest pack that is read whole, by one request. A larger pack is read in parts: its footer first, then
ranges."""

PACK_TAIL_BYTES: Final = 128 << 10
"""Bytes that are read first from the end of a larger pack, for its footer. A larger footer takes a second request."""

PACK_READ_BYTES: Final = 8 << 20
"""Bytes of a pack that one request reads: the request must end within its timeout."""

PACK_GAP_BYTES: Final = 128 << 10
"""Largest gap in bytes between two columns of a pack that one request reads together."""

PACK_STREAM_BYTES: Final = 64 << 20
"""Bytes of a row group that are read ahead. Larger row groups of other engines are read while they are decoded."""

READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes of packs that are being read, or wait to be decoded, while other packs are decoded."""

CLOCK_SKEW: Final = 3.0
"""Factor by which one machine's clock may run faster than another machine's clock."""

TOPICS_KNOWN_SECONDS: Final = 2.0
"""Seconds for which a writer relies on the topics that it read, by its own clock, from the start of the read.

A client that changes a setting of a topic waits `CLOCK_SKEW` times as long before it acts on the change."""

ROOM_HELD: Final = 32
"""Entries of spare space that a process reserves in one shard: one request then serves that many puts."""

ROOM_HELD_SHARE: Final = 1 / 16
"""Largest share of a shard's capacity that one process may hold as spare space."""

ROOM_IDLE_SHARE: Final = 1 / 4
"""Processes reserve spare space only while a shard is filled up to this share. The rest is kept for entries."""

REQUESTS_IN_FLIGHT: Final = 16
"""Most requests of one operation in flight at the same time, unless the operation sets another number."""

MAX_REASON: Final = 300
"""Characters of a message that says why a slot or an object failed."""

MAX_BACKLOG_REASON: Final = 200
"""Bytes of a reason in the rescan backlog: 1000 reasons are one DynamoDB item, whose limit is 400 KB."""

MAX_RESCUED_PATHS: Final = 64
"""Number of paths (of fields without a column, and of mismatching columns) that are counted separately."""

MAX_ORC_BLOCK_BYTES: Final = 1 << 23
"""Bytes of an ORC block before compression; the format stores the length in 23 bits.

pyarrow allocates as many bytes as the file's tail states."""

MAX_FOOTER_BYTES: Final = 32 << 20
"""Bytes of the footer of a Parquet file."""

MAX_AVRO_HEADER_BYTES: Final = 32 << 20
"""Bytes of the header of an Avro file, with its schema."""

MAX_POISON_BYTES: Final = 128 * 1024
"""Bytes that are kept of a poison message; the rest is cut off. Encoded as base64, they fit into a DynamoDB item."""

MAX_POISON: Final = 1000
"""Poison messages that are kept for one queue; further poison messages are refused until some are discarded."""

MAX_RECEIVES: Final = 10
"""Number of times that a message is received from a queue before it is kept as a poison message."""

CLUSTER_FILE_BYTES: Final = 128 << 20
"""Bytes at which a file of a clustered table is full."""

MAX_CODE_CHARS: Final = 1 << 20
"""Most characters of a module whose code gets a fingerprint."""

MAX_CODE_STATEMENTS: Final = 2000
"""Most statements of a project in a fingerprint; statements that are found after these are left out."""
