"""Adapters of the ports: memory, S3, records on a bucket, counting; and the probe of what a store keeps.

SDK types stop here: what leaves this package are the values of `ports` and the errors of `errors`.
"""
