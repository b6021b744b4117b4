"""The ways of changes into the notification queue, and out of it.

`QueuedPublisher` (see `open_publisher`) writes objects and announces them; `inlets` take in changes that other systems
report; `delivery` pushes topics to their endpoints; the reconciler finishes the work of killed writers; `front` answers
requests of S3's and SNS's clients for topics and notifications. Inlets, outlets and the front are services, registered
in `registry`.

Threat model. What arrives is hostile. Whoever holds a role's keys is trusted with that role alone; `s3notify init
--print iam` prints the least policy of each.

    writer            writes objects below the source's prefix, and signals. Every other object of the platform's is
                      denied to it: it cannot commit
    publisher         a writer that also adds entries to the queue and takes them out
    inlet             signals, the queue. It reads no object and cannot commit
    outlet            the queue. It connects only to networks that its operator's `Egress` allows
    run               the tables, records, signals and the queue. It cannot write objects of the source
    creator of a topic (with the keys of a publisher, inlet or outlet) decides where entries go: within `Egress`, with
                      no secret but one named `S3NOTIFY_PUSH_…`, with no file but one of `ca_folder`
    client of the front (with one of its keys) creates topics, which push: those that the front made, and of them which
                      changes of one bucket they take. It cannot see, change or delete another one
    sender of events  (with the inlet's secret, or by the policy of the SQS queue) reports changes of one bucket. It
                      cannot name another one, nor the platform's own objects
    anybody else who reaches the HTTP inlet or the front: a share of its connections, for some seconds each, and a line
                      of log in some seconds; all of them with `plain_http`, unless `trusted_proxies` are named
    a trusted proxy   which sender a request counts for. It shows no secret of its own, and is shown that of senders
    an endpoint       answers: only the status counts, within a deadline, and redirects are not followed

What each secret opens:
    keys of a role             that role. They are named, not stored: `stores.credentials`
    the HTTP inlet's secret    having keys looked at. Without TLS it can be read on its way
    a key of the front         creating topics. Its secret is never sent; without TLS a request can be sent again, as it
                               was, for a quarter of an hour
    a push HMAC key            nothing here. Who has it can send its endpoint events in our name
    the embedded server's      all of that server, which listens on loopback; in a folder of mode 0700. Its inner ports
                               take keys that it alone has: `local.server`

A false report costs requests, and never makes, changes or removes a row: rows are of the objects as a run finds them. A
report that never came is found by the sweep. Writers are not protected from each other: who may write below a prefix
may overwrite what is there, fill the queue up to its capacity, and move signals.
"""

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher

__all__ = ["Keyspace", "QueuedPublisher", "Refused", "open_publisher"]
