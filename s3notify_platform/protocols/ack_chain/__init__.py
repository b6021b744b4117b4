r"""Ack chains: is all the work of this batch done? Its state is an XOR, however many children (xor-ack).

    store = S3ObjectStore(S3Config(bucket="acme"))                 # or DynamoRecordStore in place of the next line's
    chains = AckChains(ObjectRecordStore(store, "acks/", keys_recur=keys_recur))
    chain = chains.open_batch("nightly 2026-11-23", ["orders", "clicks"], deadline_seconds=3600)
    chains.stamp_children(chain, ["orders"])                       # Stamped(missing=1), however often
    chains.stamp_children(chain, ["clicks"], starts=["report"])    # ends one and begins another: Stamped(missing=1)
    print(chains.state(chain).missing)                             # ('report',); `chains.fail(chain, "why")` gives up
    match chains.stamp_children(chain, ["report"]):
        case Acked(): print("all done")                            # for one stamp: the last one
        case AlreadyAcked() | AlreadyFailed() | Stamped(): pass

Steps
    1. `open_batch` creates the head: it names the children. `create` begins a chain with a stamp instead.
    2. A worker that has finished children creates a record that names them: its stamp. Then it scans the chain's keys.
       Each child that was begun and each that has ended is XORed once. So two stamps that end the same child, as those
       of two runs that finish the same slot, do not cancel out; nor do two raw stamps with one operation id.
    3. A stamp of all children brings the XOR to zero by itself: `finish` creates `closed` in its place. Otherwise
       who sees the XOR at zero creates `closed`, and gets `Acked` if that was created by this call. A chain that is
       failed is closed likewise; of all that close a chain the first one decides. Later stamps change nothing.
    4. A parent that starts more children finishes itself and begins them in one stamp (`starts`), so the chain never
       looks acked in between: of any stamps that a scan shows, the XOR is zero only if nothing is missing.
    5. A stamper that finds no head removes its stamp: `TagNotFound`.

Storage
    (partition, "{tag}\0head")                 JSON: first children, payload, deadline. Never changed; `reuse` puts
                                               another chain's in its place, once this one has ended
    (partition, "{tag}\0{identity}.…")         stamps, how it was closed; the names are in the keys (`records`)
    The identity is a digest of the head's version, so what is left of a deleted chain does not count in the next one
    with its tag. A stamp takes as many bytes as the children have bits: 167 characters of 1000 slots at worst.

Invariants
    - Records are created, and removed with their chain, but never changed. So nothing is contended; a record in doubt
      is looked for by the scan, and created again; one that arrives late names what has ended anyway.
    - Each child counts once, by any number of callers and calls; so does each operation id of a raw stamp.
    - A chain that is acked or failed stays so. It is kept for a while, and removed to free space (`purge`), or to
      use its tag again at once where that is asked for (`reuse`).
    - One operation of a chain gets `Acked`. If a crash kept the answer from its caller, a retry gets it. If somebody
      who only looked saw the end first, it is for one stamper to claim, by one more record.
    - A scan that takes several pages is not a snapshot. It shows all that was there when it began, and stamps only
      bring a chain nearer to its end; so what is seen to be done is done.

Limits
    - A parent begins the same children in every attempt. Others are begun too, but may come after the chain is acked.
    - A stamp that is created while the chain is failed may get `Stamped`, and be among the missing.
    - A scan takes a request for each 1000 stamps. `PAYLOAD_MAX` characters of payload, `TAG_BYTES_MAX` bytes of tag.

Requests: create 1, stamp 2, finish 1, state 1, fail 2; 1 more in all for closing by a stamp, for whoever reads how it
was closed, and where a tag is given in place of a `Chain`. Removing: 1 for each record, 2 on a bucket. Create with
`reuse`, over a chain that has ended: up to 7, and removing that one.

Differs from xor-ack-dynamodb: a repeated stamp changes nothing. A finished chain differs from an unknown one. A chain
has a deadline, a reason, and the names of what is missing. Stamps have at least 8 random bytes. Stampers do not
contend. `shared` works chains together with that package, in its own table.

Reading order: chains (the client), records (keys and values, and what they say together), stamps (values), names.
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
