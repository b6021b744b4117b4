"""Channels carry changes into the notification queue, and out of it.

`QueuedPublisher` (see `open_publisher`) writes objects and announces them. `inlets` receive changes that other systems
report. `delivery`, an outlet, pushes the entries of topics to their endpoints. The reconciler finishes the work of
killed writers. `front` answers requests of S3 and SNS clients for topics and notifications. Inlets, outlets and the
front are services, registered in `registry`.

Threat model. All input is hostile. The holder of a role's keys is trusted with that role only. `s3notify init --print
iam` prints the minimal policy of each role.

    - Writer: it writes signals, and objects below the source's prefix. A writer may write no other object of the
      platform, so it cannot commit to a table.
    - Publisher: a writer that also adds entries to the queue and removes them.
    - Inlet: it writes signals and the queue. An inlet reads no object, and cannot commit to a table.
    - Outlet: it reads and writes the queue. An outlet connects only to networks that its operator's `Egress` allows.
      Publishers and inlets themselves send the events of topics that are not persistent. So publishers and inlets have
      an `Egress`, too.
    - Run: it writes tables, records, signals and the queue. A run cannot write objects of the source.
    - Creator of a topic (with the keys of a publisher, inlet or outlet): it chooses the topic's endpoint. A worker
      connects only to endpoints that its `Egress` permits. With a topic that is not persistent, the creator can make
      each call of a publisher or an inlet wait for up to 120 s. A topic may name only secrets whose names begin with
      `S3NOTIFY_PUSH_` or `S3NOTIFY_SEND_`, and files in `ca_folder`.
    - Client of the front (with one of the front's keys): it creates push topics, and chooses which changes of one
      bucket these topics get. Such a client cannot see, change or delete topics that the front did not make.
    - Sender of events (with the inlet's secret, or by the policy of the SQS queue): it reports changes of one bucket. A
      sender can name neither another bucket nor the platform's own objects.
    - Anybody else who reaches the HTTP inlet or the front: each such client gets a share of the connections, each
      connection for some seconds. All these clients together cause at most one log line every few seconds. With
      `plain_http` and without `trusted_proxies`, anybody can take all connections.
    - Trusted proxy: its headers name the sender of a request. The request counts in this sender's share of the
      connections. The proxy has no secret of its own, but it sees the senders' secrets.
    - Endpoint: the platform waits for the endpoint's answer until a deadline, and uses only the status of the answer.
      Redirects are not followed.

Each secret gives access to:
    - The keys of a role: everything that this role may do. Settings contain only the names of the keys
      (`stores.credentials`).
    - The HTTP inlet's secret: the right to report changed keys. Without TLS this secret can be read on the network.
    - A key of the front: the right to create topics. The key's secret is never sent. Without TLS a request can be
      replayed unchanged for a quarter of an hour.
    - A push HMAC key: nothing on the platform. The holder of such a key can send forged events to the endpoint that
      uses the key.
    - The embedded server's key: everything on that server, which listens on loopback. The key is in a folder of mode
      0700. The server's inner ports (the ports of its parts) require secret keys that only the server itself has
      (`local.server`).

A false report costs requests, but it never adds, changes or removes a row: rows come from the objects that a run finds.
The sweep finds a change whose report is missing. Writers are not protected from each other. A writer that may write
below a prefix can overwrite the objects below this prefix, fill the queue to capacity, and move signals.
"""

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher

__all__ = ["Egress", "Keyspace", "QueuedPublisher", "Refused", "open_publisher"]
