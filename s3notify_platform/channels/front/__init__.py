"""The REST front: topics and bucket notifications by the APIs of S3, SNS and Ceph, on any store.

`notification_front` is the service, and has the table of its answers. `sigv4` verifies requests. `sns_topics` and
`s3_configurations` map requests to topics and their rules: the front has no data model of its own.
"""
