"""Ack chains: has all the work of this batch been done? One small record, however many children (xor-ack).

Steps
    1. `open_batch` names the children and draws a seed; each child's stamp is derived from seed and name. The
       record holds the XOR of all of them.
    2. Whoever has finished children XORs their stamps into the record, by compare-and-set: read, replace.
       Threads that stamp one chain at the same time are combined: one of them sends for all.
    3. The XOR is zero: the chain is acked. A tombstone keeps it apart from a chain that never was.
    4. A parent's end and its children's starts go into one stamp (`starts`), so that the chain never looks
       done in between.

Storage
    (partition, tag)                           JSON: the XOR, status, names of all and of missing children
                                               (numbers as ranges, also those below one parent: a batch of
                                               1000 slots is 11 bytes if whole, 5 KB at worst), seed,
                                               payload, digests of applied operation ids

Invariants
    - Each child is applied once, whoever stamps it and however often; so is each operation id of a raw stamp.
    - A chain that is acked or failed stays so. Its tombstone expires for tidiness alone (`purge`).
    - One operation of a chain gets `Acked`; only a crash can keep the answer from it, and a retry gets it then.
    - A write in doubt is looked for in the record before anything else is said about it.

Limits
    - One record is written by one process at a time: k processes at once cost up to k(k+1)/2 attempts.
    - A parent's starts are the same whoever ends it. Others are begun too, but may come too late.
    - `PAYLOAD_MAX` characters of payload, `OPERATIONS_MAX` raw stamps, `ATTEMPTS` tries.

Differs from xor-ack-dynamodb: a retried stamp is a no-op; a finished and an unknown chain are told apart; a
chain has a deadline, a reason and names of what is missing; stamps have at least 8 random bytes; concurrent
stamps are combined. `stores/xor_ack_table.py` keeps chains in that package's own table.

Read `chains.py` first: the client. `plans.py` says what each operation does to a record, `values.py` what it
returns, `record.py` how a record is spelled, `combining.py` how threads send together.
"""

from s3notify_platform.protocols.ack_chain.chains import ATTEMPTS, AckChains
from s3notify_platform.protocols.ack_chain.plans import (
    OPERATIONS_MAX,
    PAYLOAD_MAX,
    STAMP_BYTES_MIN,
)
from s3notify_platform.protocols.ack_chain.record import pack_names, unpack_names
from s3notify_platform.protocols.ack_chain.values import (
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    ChainState,
    Stamped,
    StampOutcome,
    Status,
    Tag,
    child_stamp,
    in_order,
    new_stamp,
    overdue,
    xor,
)

__all__ = [
    "ATTEMPTS",
    "OPERATIONS_MAX",
    "PAYLOAD_MAX",
    "STAMP_BYTES_MIN",
    "AckChains",
    "Acked",
    "AlreadyAcked",
    "AlreadyFailed",
    "ChainState",
    "StampOutcome",
    "Stamped",
    "Status",
    "Tag",
    "child_stamp",
    "in_order",
    "new_stamp",
    "overdue",
    "pack_names",
    "unpack_names",
    "xor",
]
