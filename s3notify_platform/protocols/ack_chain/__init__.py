"""Ack chains: is all the work of this batch done? One small record, however many children (xor-ack).

Steps
    1. `open_batch` names the children and draws a random seed. The stamp of each child is derived from seed and name.
       The record holds the XOR of all stamps.
    2. A worker that has finished children XORs their stamps into the record, by compare-and-set: read, replace.
       Threads that stamp one chain at the same time are combined: one of them sends for all.
    3. When the XOR is zero, the chain is acked. It stays as a tombstone, which differs from a chain that never was.
    4. A parent that starts more children finishes itself and begins them in one stamp (`starts`), so the chain never
       looks acked in between.

Storage
    (partition, tag)                           JSON: the XOR, the status, the names of all children and of the
                                               missing ones, seed, payload, digests of applied operation ids.
                                               Numbers are stored as ranges, also those below one parent: a
                                               batch of 1000 slots takes 11 bytes if whole, 5 KB at worst

Invariants
    - Each child is applied once, by any number of callers and calls; so is each operation id of a raw stamp.
    - A chain that is acked or failed stays so. Its tombstone expires only to free space (`purge`).
    - Exactly one operation of a chain gets `Acked`. If a crash kept the answer from its caller, a retry gets it.
    - After a write in doubt the record is read before any result is returned.

Limits
    - One process at a time writes the record: k processes at once need up to k(k+1)/2 attempts.
    - A parent begins the same children in every attempt. Others are begun too, but may come after the chain is acked.
    - `PAYLOAD_MAX` characters of payload, `OPERATIONS_MAX` raw stamps, `ATTEMPTS` attempts.

Requests: create 1, stamp 2, state 1, fail 2, delete 2; 2 more for each other writer in between.

Differs from xor-ack-dynamodb: a repeated stamp changes nothing. A finished chain differs from an unknown one. A chain
has a deadline, a reason, and the names of what is missing. Stamps have at least 8 random bytes. Concurrent stamps are
combined. `stores/dynamodb/xor_ack_table.py` keeps chains in that package's own table.

Reading order: chains (the client), plans (what each operation does to a record), stamps (values), record
(the record as JSON), combining (how threads send together).
"""

from s3notify_platform.protocols.ack_chain.chains import ATTEMPTS, AckChains
from s3notify_platform.protocols.ack_chain.record import pack_names, unpack_names
from s3notify_platform.protocols.ack_chain.stamps import (
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    ChainState,
    Stamped,
    StampOutcome,
    child_stamp,
    in_order,
    new_stamp,
    overdue,
    xor,
)

__all__ = [
    "ATTEMPTS",
    "AckChains",
    "Acked",
    "AlreadyAcked",
    "AlreadyFailed",
    "ChainState",
    "StampOutcome",
    "Stamped",
    "child_stamp",
    "in_order",
    "new_stamp",
    "overdue",
    "pack_names",
    "unpack_names",
    "xor",
]
