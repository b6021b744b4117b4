"""`python -m s3notify_platform.cli`: the same as `s3notify`."""

from s3notify_platform.cli.main import run

run()
