"""The setup by which a bucket announces its changes: an SQS queue, its policy, the bucket's notification.

    SQS             bucket → queue
    SNS             bucket → topic → queue; a topic that the bucket announces these keys to already is used as it is
    EventBridge     bucket → the account's default bus → rule → queue; goes beside any other notification
    Ceph RGW        bucket → topic → our HTTP inlet
    MinIO           bucket → webhook → our HTTP inlet; its administrator types the commands

Guarantees. Each is a row of parts (`event_part.Part`), made in this order and removed in the reverse one. A part looks
before it writes and afterwards, so that all of it may be killed anywhere and be repeated, and a lost answer is no
matter. All that is made has one name, `s3notify-SOURCE-…`, of the source and where it keeps its own objects, so that
two environments on one bucket do not meet. Queues, topics and rules that are made carry it as a tag as well: only
these are deleted again. One item is ours in documents that others write, too (the bucket's notifications, policies of
queues and topics), and theirs stay as they are.

Least privilege. The queue takes `sqs:SendMessage` alone, from one service, for one source: this bucket
(`aws:SourceArn`, `aws:SourceAccount`), this topic, or this rule.
"""
