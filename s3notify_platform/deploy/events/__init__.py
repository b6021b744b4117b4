"""The setup by which a bucket announces its changes: an SQS queue, its policy, the bucket's notification.

    - SQS: bucket → queue.
    - SNS: bucket → topic → queue. If the bucket already announces the source's keys to a topic, that topic is used.
    - EventBridge: bucket → the account's default bus → rule → queue. EventBridge works beside any other notification.
    - Ceph RGW: bucket → topic → our HTTP inlet.
    - MinIO: bucket → webhook → our HTTP inlet. An administrator of MinIO types the commands.

Guarantees. Each setup is a sequence of parts (`event_part.Part`), made in this order and removed in reverse order. A
part reads the current state before it writes, and again afterwards. So the setup may be repeated after a kill at any
point, and a lost answer does no damage. All resources that are made have the same name, `s3notify-SOURCE-…`. The name
is derived from the source's name and from the place of the source's own objects, so two environments on one bucket do
not collide. Each queue, topic and rule that is made also has this name as a tag. Only resources with the tag are
deleted again. In a document with several writers (the bucket's notifications, the policy of a queue or topic), the
setup changes only one item, which is its own.

Least privilege. The queue allows only `sqs:SendMessage`, from one service, for one sender: this bucket
(`aws:SourceArn`, `aws:SourceAccount`), this topic, or this rule.
"""
