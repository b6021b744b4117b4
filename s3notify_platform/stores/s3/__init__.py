"""Object stores over the S3 API: by boto3 whatever the store, by obstore where many small objects are read."""

from s3notify_platform.stores.s3.store import S3ObjectStore, new_client

__all__ = ["S3ObjectStore", "new_client"]
