"""Defaults that run on this machine: an S3 server, a Java, `dagster dev`, the demo."""
