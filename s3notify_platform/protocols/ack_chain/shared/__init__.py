"""Chains that users of the npm package xor-ack-dynamodb can stamp, too. Each chain is one record, which is changed by
compare-and-set.

    chains = SharedChains(XorAckTable(DynamoConfig(table="acks"), partition_key="tagID"))    # the npm package's table
    a, b = new_stamp(), new_stamp()
    chains.create("job", xor(a, b))                     # like the npm package's create; both clients may stamp it
    chains.stamp("job", a, operation_id="a")            # Stamped(missing=None): open, and stamps have no names
    chains.stamp("job", a, operation_id="a")            # no change; the npm package would apply it again
    chains.stamp("job", b)                              # Acked(): the npm package's item is deleted, as it expects
    chains.open_batch("batch", ["1", "2"])              # children with names, in the same table
    chains.stamp_children("batch", ["1"])               # Stamped(missing=1)

Steps
    1. `open_batch` names the children and draws a random seed. The stamp of each child is derived from the seed and the
       child's name. The record contains the XOR of all stamps. `create` begins a chain with a stamp, as the npm
       package does.
    2. A worker that has finished children reads the record, XORs the children's stamps into it, and replaces it by
       compare-and-set. If several threads stamp one chain at the same time, one thread sends all these stamps together.
    3. When the XOR is zero, the chain is acked. The record stays as a tombstone, so an acked chain can be distinguished
       from an unknown chain.
    4. In one stamp, a parent ends itself and begins more children (`starts`). So the chain never looks acked between
       the two steps.

Storage
    (partition, tag)                           JSON: the XOR, the status, the names of all children and of the
                                               missing children, seed, payload, digests of applied operation ids.
                                               `stores/dynamodb/xor_ack_table.py` keeps this JSON in an item of its own

Invariants: the chains have the invariants of `AckChains`. After a write whose outcome is unknown, the record is read
before any result is returned.

Limits
    - One process at a time writes the record: k concurrent processes need up to k(k+1)/2 attempts, as in the npm
      package.
    - A parent must begin the same children in every attempt. If a later attempt names other children, these children
      also begin, perhaps after the chain is acked.
    - The limits are `PAYLOAD_MAX` characters of payload, `OPERATIONS_MAX` raw stamps, and `SHARED_ATTEMPTS` attempts.

Requests: create 1, stamp 2, state 1, fail 2, delete 2; 2 more for each write of another client in between.

Reading order: shared_chains (the client), plans (the change that each operation makes to a record), record (the JSON of
a record). `kernel.group_commit` combines the requests of threads.
"""

from s3notify_platform.protocols.ack_chain.shared.record import child_stamp
from s3notify_platform.protocols.ack_chain.shared.shared_chains import SHARED_ATTEMPTS, SharedChains

__all__ = ["SHARED_ATTEMPTS", "SharedChains", "child_stamp"]
