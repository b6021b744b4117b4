"""Adapters of the ports: memory, S3, DynamoDB, records on a bucket, leases, counting; and the probe of a store.

SDK types stop here: what leaves this package are the values of `ports` and the errors of `errors`.
"""
