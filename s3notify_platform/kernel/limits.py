"""The limits on all input from outside, and the sizes, times and numbers that several modules share.

Each limit has a name, a unit and a default. Code checks a limit before it does the work that the limit bounds. Other
numbers are in other modules. The parameters of an algorithm are in the algorithm's module. The limits that a user can
set for a service are settings of the service. The limits of a topic and of the REST front are in the modules with their
rules.
"""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""Largest size in bytes of a record, and of an object that a task must keep in memory as a whole."""

MAX_KEY_BYTES: Final = 1024
"""Largest size in bytes of a key, in UTF-8. S3 has the same limit."""

MAX_PUBLISHED_BYTES: Final = 5 << 40
"""Largest size in bytes of an object that a publisher writes. S3 has the same limit."""

MAX_PARTS: Final = 10_000
"""Largest number of parts of a multipart upload. S3 has the same limit."""

PART_BYTES: Final = 8 << 20
"""Size in bytes of the first part of an upload. A smaller object is written by one PUT. S3 requires at least 5 MiB."""

PARTS_BYTES: Final = 256 << 20
"""Largest number of bytes of an upload's parts that are in memory at the same time. A single larger part is also
allowed."""

COPIED_AT_ONCE_BYTES: Final = 1 << 30
"""Largest size in bytes of an object that one request copies. S3 allows 5 GiB, but the answer for such an object may
take longer than any timeout.
"""

COPIED_PART_BYTES: Final = 128 << 20
"""Smallest size in bytes of each part that the store copies."""

OVERDUE_SECONDS: Final = 3600.0
"""People see a warning if a batch is open, or if a change is not committed, for more than this number of seconds. The
wall clock measures the seconds."""

OUTAGE_SECONDS: Final = 60.0
"""Seconds in total for which a run waits for a store that throttles or does not answer. Then the run fails."""

OUTAGE_WAIT_SECONDS: Final = 10.0
"""Longest time in seconds that a run waits before its next attempt."""

MAX_RAW_BYTES: Final = 1 << 20
"""Largest number of raw bytes that quarantine keeps for one rejected record or object."""

CARRIED_PACK_BYTES: Final = 64 << 10
"""Size in bytes of the largest pack that a task sends to the driver. The driver writes this pack together with the
version's manifest.
"""

HELD_PACK_BYTES: Final = 256 << 20
"""Largest number of bytes of rewritten packs that the driver keeps in memory until the version is committed. Further
packs are stored early."""

WITHDRAWN_SHARE: Final = 0.5
"""Largest share of the compared objects whose rows one listing may withdraw. A larger withdrawal needs the confirmation
of a person.
"""

WITHDRAWN_OBJECTS: Final = 100
"""`WITHDRAWN_SHARE` applies to a listing that compares at least this number of objects. A smaller listing has no
limit."""

MAX_DEPTH: Final = 32
"""Largest nesting depth of objects and lists in a JSON record and in a schema. The record itself is the first level."""

MAX_COLUMNS: Final = 2000
"""Largest number of fields, at any depth, of an inferred or declared schema. Rows after a transform may have twice as
many fields."""

MAX_SCHEMA_BYTES: Final = 512 << 10
"""Largest size in bytes of an inferred or declared schema in Spark's JSON format. The schema of rows after a transform
may have twice as many bytes."""

SCHEMA_WARN_SHARE: Final = 0.8
"""`s3notify status` warns of an inferred schema from this share of `MAX_COLUMNS` or `MAX_SCHEMA_BYTES`."""

REWRITE_WARN_TIMES: Final = 10
"""Largest normal value of this ratio: the bytes that the newest batches wrote again, divided by the bytes that they
changed. `s3notify status` warns of a larger ratio.
"""

REWRITE_WARN_BYTES: Final = 64 << 20
"""`REWRITE_WARN_TIMES` applies only if the newest batches wrote at least this many bytes again. In a small table, each
change writes most of the table again, at little cost.
"""

MAX_CELLS: Final = 8 << 20
"""Largest number of values that are parsed together: records (in JSON: objects, at any depth) times columns. Larger
inputs are parsed in parts."""

MAX_HALVED: Final = 4000
"""Largest number of failing reads while the types of an object's values are inferred. Each failed read is repeated with
halves of the records, or of one record's values. After this number of failed reads, the types of all other values
remain unknown.
"""

MAX_RECORD_BYTES: Final = 64 << 20
"""Largest size in bytes of a record, if its object is read in pieces. Longer records are rejected."""

MAX_CSV_HEADER_BYTES: Final = 1 << 20
"""Largest size in bytes of the header of a CSV object."""

MAX_ZSTD_WINDOW_LOG: Final = 27
"""Largest window of zstd, as a power of 2 (128 MB). Streams that need a larger window are refused. The tool `zstd`
refuses them, too."""

MAX_SNAPPY_BLOCK_BYTES: Final = 64 << 20
"""Largest size in bytes of a snappy block of Hadoop. No writer makes larger blocks, so a block that declares a larger
size is damaged."""

MAX_AVRO_BLOCK_BYTES: Final = 16 << 20
"""Largest size in bytes of an Avro block, stored or decompressed. Writers make blocks of 16 KB to 1 MB."""

MAX_AVRO_BLOCK_ROWS: Final = 1_000_000
"""Largest number of records of an Avro block. Each record becomes a Python value."""

MAX_WHOLE_BYTES: Final = 512 << 20
"""Largest size in bytes of an object whose key or headers obstore cannot represent. Such an object is read as a whole.
"""

MAX_TIME_PATTERN: Final = 200
"""Largest number of characters of a pattern of times."""

MAX_RULES: Final = 100
"""Largest number of rules on the rows of a source."""

MAX_RULE_TOKENS: Final = 1000
"""Largest number of words and signs in a rule's predicate."""

MAX_RULE_DEPTH: Final = 50
"""Largest nesting depth of brackets and NOTs in a rule's predicate."""

MAX_RULE_DIGITS: Final = 38
"""Largest number of digits before the decimal point of a number in a rule. The same limit applies after the decimal
point."""

MAX_DECIMAL_DIGITS: Final = 38
"""Largest number of digits of a decimal, in Spark and in Delta."""

MAX_KEYS: Final = 4 * MAX_COLUMNS
"""Largest number of different fields, at any depth, of all JSON records that are parsed together. A record with more
fields is rejected or rescued.
"""

MAX_ROW_GROUP_BYTES: Final = (1 << 31) - 1
"""Largest number of bytes in the columns of a Parquet row group. The limit applies to the size in the footer, and to
the decoded bytes.
"""

MAX_ROW_GROUP_CELLS: Final = 1 << 28
"""Largest number of cells (rows times columns) of a Parquet row group. Also the largest number of values in the
always-null fields of an Avro file.

Without the limit, a file of some hundred bytes could become billions of nulls.
"""

MAX_ROWS_PER_BYTE: Final = 100
"""Largest number of rows of a Parquet or ORC file for each byte of the file. The limit is high, because constant
columns need few bytes."""

UNLIMITED_ROWS: Final = 1_000_000
"""A Parquet or ORC file with at most this many rows is not limited by `MAX_ROWS_PER_BYTE`."""

MAX_DECODED_BYTES: Final = 256 << 20
"""Largest size in bytes of an object after decoding: the rows of Parquet, ORC or Avro, or the text of a compressed
object. `MAX_DECODED_PER_BYTE` may allow more. Without a limit, 500 bytes could become gigabytes that repeat one
value.
"""

MAX_DECODED_PER_BYTE: Final = 1000
"""Largest number of decoded bytes for each byte of an object. A small object may have up to
`MAX_DECODED_BYTES` in any case.
"""

BATCH_BYTES: Final = 16 << 20
"""Largest number of bytes of Arrow rows that pass between Python and the JVM in one step, unless one row is larger."""

MAX_TASK_BYTES: Final = 8 << 30
"""Bytes of memory that a Spark task may take, in addition to the memory that its process had before the task. The limit
is lower if `MAX_TASK_SHARE` allows fewer bytes.

This limit works only on systems that can limit the memory of a process. The task needs room for an object of
`MAX_OBJECT_BYTES`, and for copies of the object.
"""

MAX_TASK_SHARE: Final = 0.7
"""Share of the memory of the machine or container that a task may take."""

MAX_TRACE_BYTES: Final = 4096
"""Largest number of bytes of a traceback that are kept with the failure of a slot or an object."""

MAX_UNFORESEEN: Final = 20
"""Largest number of objects of a source that are in quarantine because of unforeseen errors. If more objects have such
errors, the slots of these objects fail.

An unforeseen error may be a defect that affects every object. The other objects of a slot are committed in any case, so
the only effect of the limit is that slots are retried. Without the limit, such a defect could remove all rows of a
table in one night.
"""

MAX_FAILING_OBJECTS: Final = 10_000
"""Largest number of objects of one slot that are in quarantine as a whole. If more objects fail, they do not go to
quarantine, and the slot stays failed."""

MAX_REJECTS: Final = 1000
"""Largest number of rejects that are kept for one object, or for one part of a big object. One further reject states
the number of rejects that are not kept.
"""

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Largest number of decoded bytes of a JSON document that is read as a whole."""

DRAIN_SECONDS: Final = 9.0
"""A command ends within this number of seconds after SIGTERM. Container runtimes kill a process after 10 s."""

CREDENTIALS_SECONDS: Final = 60.0
"""Seconds after which credentials that do not renew themselves are looked up again."""

REMEMBERED_TABLES: Final = 64
"""A process remembers the newest snapshot of at most this many tables. With more tables, the process forgets the
snapshot of the table that it used least recently.
"""

MAX_DEFS_BYTES: Final = 256 << 10
"""Largest size in bytes of a `defs.yaml`."""

MAX_DEFS_NODES: Final = 20_000
"""Largest number of values in a document of a `defs.yaml`. An alias counts as all the values to which it refers."""

SESSIONS_MAX: Final = 4
"""Largest number of Spark sessions at the same time on one machine, not counting the sessions of warm workers. Further
runs wait.
"""

STATES_INLINE: Final = 256
"""Largest number of states that a manifest contains. If there are more states, they are written to a file."""

STATES_INLINE_BYTES: Final = 24 << 10
"""Largest number of bytes of the states that a manifest contains."""

STATE_PAGE: Final = 4096
"""Number of states in a page of a state file. The lookup of one key reads one page."""

STATE_PAGE_BYTES: Final = 4 << 20
"""Largest size in bytes of a page in memory, unless one state is larger. Keys, reasons and tracebacks may be long."""

STATE_FILE_BYTES: Final = (4 << 20, 64 << 20)
"""Smallest and largest size in bytes of a merged state file. Within these bounds, a file has about a hundredth of the
bytes of all state files."""

STATE_FILES_FRESH: Final = 8
"""When level 0 has this many state files, files are merged into level 1."""

STATE_LEVEL_BYTES: Final = 4 << 20
"""When the state files of level 1 have this many bytes together, files are merged into level 2. Each further level may
have ten times the bytes of the level before it.
"""

STATE_MERGE_BYTES: Final = 64 << 20
"""Bytes of state files that one round merges, unless the smallest possible merge is larger."""

STATE_CACHE_BYTES: Final = 256 << 20
"""Largest number of bytes of memory that a process uses for filters and pages of state files."""

STATE_WHOLE_BYTES: Final = 256 << 10
"""Bytes of the largest state file that one request reads as a whole."""

STATE_READ_BYTES: Final = 8 << 20
"""Largest number of bytes of a state file that one request reads, if several pages are read together."""

STATE_GAP_BYTES: Final = 128 << 10
"""Largest gap in bytes between two pages that one request reads together."""

MANIFEST_BYTES: Final = 1 << 20
"""Largest size in bytes of a manifest. A larger manifest is refused before the version's files are written.

Each commit writes the counts of 1000 slots and the inline parts, up to 120 KB. The limit is higher because a table of
100 million objects has about 110 state files, and the manifest names the first and the last key of each file. With keys
of `MAX_KEY_BYTES`, such a manifest has up to 650 KB."""

CHANGES_INLINE: Final = 32
"""Largest number of changes of states that a manifest contains. If there are more changes, they are written to a
file."""

CHANGES_INLINE_BYTES: Final = 12 << 10
"""Largest number of bytes of the changes that a manifest contains."""

PACK_WHOLE_BYTES: Final = 1 << 20
"""Bytes of the largest pack that one request reads as a whole. A larger pack is read in parts: its footer first, then
ranges."""

PACK_TAIL_BYTES: Final = 128 << 10
"""A pack of more than `PACK_WHOLE_BYTES` is read from its end first, where the footer is: this number of bytes. A
larger footer needs a second request."""

PACK_READ_BYTES: Final = 8 << 20
"""Largest number of bytes of a pack that one request reads. A larger request might not end within its timeout."""

PACK_GAP_BYTES: Final = 128 << 10
"""Largest gap in bytes between two columns of a pack that one request reads together."""

PACK_STREAM_BYTES: Final = 64 << 20
"""Bytes of the largest row group that is read completely before it is decoded. Larger row groups, which other engines
may have written, are read while they are decoded."""

READ_AHEAD_BYTES: Final = 32 << 20
"""Bytes of packs that are read in advance while other packs are decoded."""

CLOCK_SKEW: Final = 3.0
"""Factor by which one machine's clock may run faster than another machine's clock."""

TOPICS_KNOWN_SECONDS: Final = 2.0
"""Seconds for which a writer relies on the topics that it has read. The writer's clock measures the seconds, from the
start of the read.

A client that changes a setting of a topic waits `CLOCK_SKEW` times this number of seconds before it acts on the
change."""

ROOM_HELD: Final = 32
"""Largest number of entries for which a process reserves spare room in one shard. So one request can reserve the room
for this many entries.
"""

ROOM_HELD_SHARE: Final = 1 / 16
"""Largest share of a shard's capacity that one process may take as spare room."""

ROOM_IDLE_SHARE: Final = 1 / 4
"""A process takes spare room only in a shard that is filled to at most this share. The rest of the shard is kept for
entries.
"""

REQUEST_ATTEMPTS: Final = 5
"""Largest number of attempts of one request to a store. A failed attempt is repeated only if it had no effect, or if a
repetition is harmless."""

RETRY_CEILING_SECONDS: Final = 2.0
"""Longest time in seconds before the next attempt of one request to a store."""

TASK_READS_IN_FLIGHT: Final = 32
"""Largest number of reads of objects or packs that one task has in flight."""

REQUESTS_IN_FLIGHT: Final = 16
"""Largest number of requests of one operation that are in flight at the same time, unless the operation sets another
number."""

MAX_REASON: Final = 300
"""Largest number of characters in the reason of a failed slot or object."""

MAX_BACKLOG_REASON: Final = 200
"""Largest number of bytes of a reason in the rescan backlog. 1000 reasons are in one DynamoDB item, whose limit is 400
KB."""

MAX_RESCUED_PATHS: Final = 64
"""Largest number of paths with a count of their own. A path names a field that has no column, or a column whose values
do not fit."""

MAX_ORC_BLOCK_BYTES: Final = 1 << 23
"""Largest size in bytes of an ORC block before compression. The format stores the length in 23 bits.

The limit is needed, because pyarrow allocates as many bytes as the file's tail declares.
"""

MAX_FOOTER_BYTES: Final = 32 << 20
"""Largest size in bytes of the footer of a Parquet file."""

MAX_AVRO_HEADER_BYTES: Final = 32 << 20
"""Largest size in bytes of the header of an Avro file, which includes the schema."""

MAX_EVENT_TEXT: Final = 1024
"""Largest number of characters of a text in the details of an event."""

MAX_EVENT_PAIRS: Final = 16
"""Largest number of names in one part of an event's details, and largest number of values in such a part."""

MAX_EVENT_FIELD: Final = 200
"""Largest number of characters of an event's ETag, sequencer or name. Amazon's values have up to 38, 20 and 41
characters."""

MAX_VERSION_ID: Final = 1024
"""Largest number of characters of a version id. S3 has the same limit."""

MAX_CONFIGURATION_ID: Final = 255
"""Largest number of characters of the id of a notification configuration. S3 has the same limit."""

MAX_UNPACKED_BYTES: Final = 1_000_000
"""Largest size in bytes of a part of a record's key after decompression."""

MAX_UNREAD_BYTES: Final = 256 << 10
"""Largest number of bytes of a refused request that an HTTP inlet reads, so that the peer gets the answer."""

PROGRESS_SECONDS: Final = 10.0
"""Seconds between two reports of an inlet's counts."""

MAX_ANSWER_BYTES: Final = 64 << 10
"""Largest number of bytes of an endpoint's answer that are read. After the whole answer is read, the connection can be
used again. After a longer answer, the connection is closed."""

SECRET_MIN: Final = 16
"""Smallest number of characters of a secret."""

MAX_POISON_BYTES: Final = 128 * 1024
"""Largest number of bytes of a poison message that are kept. The rest of the message is cut off. Encoded as base64, the
kept bytes fit into a DynamoDB item."""

MAX_POISON: Final = 1000
"""Largest number of poison messages that are kept for one queue. Further poison messages are refused until some are
discarded."""

MAX_RECEIVES: Final = 10
"""Number of times that a message is received from a queue before it is kept as a poison message."""

CLUSTER_FILE_BYTES: Final = 128 << 20
"""A file of a clustered table is full when it has this many bytes."""

MAX_CODE_CHARS: Final = 1 << 20
"""A module with more characters than this gets no fingerprint."""

MAX_CODE_STATEMENTS: Final = 2000
"""Largest number of statements of a project in a fingerprint. Further statements are left out."""
