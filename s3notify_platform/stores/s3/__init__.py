"""Object stores over the S3 API: by boto3 for every store and operation, by obstore for many small objects."""

from s3notify_platform.stores.s3.store import S3ObjectStore

__all__ = ["S3ObjectStore"]
