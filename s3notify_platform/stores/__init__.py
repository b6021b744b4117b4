"""Adapters of the ports: memory, S3, DynamoDB, SQS, records on a bucket, leases, counting; and the probe of a store.

SDK types stay inside this package: callers see only the values of `ports` and the errors of `errors`.
"""
