r"""Ack chains (xor-ack) track whether all the work of a batch is done. The state of a chain is one XOR, for any number
of children.

    store = S3ObjectStore(S3Config(bucket="acme"))                 # or use a DynamoRecordStore in the next line
    chains = AckChains(ObjectRecordStore(store, "acks/", keys_recur=keys_recur))
    chain = chains.open_batch("nightly 2026-11-23", ["orders", "clicks"], deadline_seconds=3600)
    chains.stamp_children(chain, ["orders"])                       # Stamped(missing=1), also if repeated
    chains.stamp_children(chain, ["clicks"], starts=["report"])    # ends one and begins another: Stamped(missing=1)
    print(chains.state(chain).missing)                             # ('report',); `chains.fail(chain, "why")` gives up
    match chains.stamp_children(chain, ["report"]):
        case Acked(): print("all done")                            # only one stamp gets this: the last one
        case AlreadyAcked() | AlreadyFailed() | Stamped(): pass

Steps
    1. `open_batch` creates the head, which names the children. `create` begins a chain with a stamp instead of names.
    2. When a worker finishes children, it creates a stamp: a record that names these children. Then the worker scans
       the chain's keys. Each child enters the XOR once when the child begins and once when the child ends, even if
       several stamps name the child. So two workers that finish the same child do not cancel each other out. Two raw
       stamps with the same operation id also count once.
    3. A stamp of all children brings the XOR to zero by itself, so `finish` creates the record `closed` directly.
       Otherwise, each worker that sees the XOR at zero tries to create `closed`. The worker that succeeds gets `Acked`.
       A failed chain is also closed by a record `closed`. The first record `closed` of a chain decides how the chain
       ended. Later stamps change nothing.
    4. In one stamp, a parent ends itself and begins more children (`starts`). So the chain never looks acked between
       the two steps. A scan may show only some of the stamps. Even then, the XOR is zero only if no child is missing.
    5. A stamper that finds no head removes its stamp and raises `TagNotFound`.

Storage
    (partition, "{tag}\0head")                 JSON: first children, payload, deadline. The head never changes. After
                                               the chain's end, `reuse` replaces the head with a new chain's head
    (partition, "{tag}\0{identity}.…")         stamps, and how the chain was closed; see `chain_records` for the names

    The identity is a digest of the head's version, so leftovers of a deleted chain do not count in the next chain with
    the same tag. A stamp has one bit for each child, so a stamp for 1000 slots has at most 167 characters.

Invariants
    - Records are never changed: they are only created, and later removed with their chain. So writers never contend. If
      the outcome of a record's creation is unknown, the scan shows whether the record exists. If the record does not
      exist, its creation is tried again. A record that is stored late is harmless, because the children that the record
      names have ended in any case.
    - Each child counts once, even if several callers or calls name it. Raw stamps with the same operation id also count
      once.
    - An acked chain stays acked, and a failed chain stays failed. An ended chain is kept for a while. `purge` removes
      an ended chain to free space. `reuse` removes an ended chain because the caller needs the tag again.
    - Exactly one operation of a chain gets `Acked`. If the caller of this operation crashed before the answer arrived,
      a retry of the operation gets `Acked`. If a call that only reads was the first to see the chain's end, no stamp
      has got `Acked` yet. In this case, one stamper creates one more record to claim `Acked`.
    - A scan of several pages is not a snapshot. The scan shows all records that existed when the scan began. Stamps
      only bring a chain nearer to its end. So if a scan shows a chain as done, the chain is done.

Limits
    - A parent must begin the same children in every attempt. If a later attempt names other children, these children
      also begin, perhaps after the chain is acked.
    - `fail` and a stamp may run at the same time. The stamp may then get `Stamped`, but its children stay missing.
    - A scan takes one request for each 1000 stamps. Limits: `PAYLOAD_MAX` characters of payload, `TAG_BYTES_MAX` bytes
      of tag.

Requests: create 1, stamp 2, finish 1, state 1, fail 2. The stamp that closes the chain costs 1 request more. A call
that reads how the chain was closed also costs 1 request more. A call with a tag instead of a `Chain` also costs 1
request more. The removal of a chain costs 1 request for each record, or 2 if the records are on a bucket. A `create`
with `reuse` costs up to 7 requests if it replaces an ended chain. The removal of the ended chain costs its own
requests.

The protocol differs from xor-ack-dynamodb in several points. A repeated stamp changes nothing. A finished chain can be
distinguished from an unknown chain. A chain has a deadline, a reason if it failed, and the names of missing children.
Stamps have at least 8 random bytes. Stampers never conflict with each other. The package `shared` works with the chains
and the table of xor-ack-dynamodb.

Reading order: chains (the client), chain_records (keys and values, and how to read them together), stamps (values),
names.
"""

from s3notify_platform.protocols.ack_chain.chain_records import Chain
from s3notify_platform.protocols.ack_chain.chains import ACK, AckChains, keys_recur
from s3notify_platform.protocols.ack_chain.names import in_order, pack_names, unpack_names
from s3notify_platform.protocols.ack_chain.stamps import (
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    ChainState,
    Stamped,
    StampOutcome,
    new_stamp,
    overdue,
    xor,
)

__all__ = [
    "ACK",
    "AckChains",
    "Acked",
    "AlreadyAcked",
    "AlreadyFailed",
    "Chain",
    "ChainState",
    "StampOutcome",
    "Stamped",
    "in_order",
    "keys_recur",
    "new_stamp",
    "overdue",
    "pack_names",
    "unpack_names",
    "xor",
]
