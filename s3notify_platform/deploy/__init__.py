"""Everything that `s3notify init` makes and prints.

`dynamo_tables`: the DynamoDB tables, and templates for them. `role_policies`: the least IAM policy of each role.
`events`: the setup by which S3 announces a bucket's changes.
"""

from s3notify_platform.deploy.dynamo_tables import (
    Json,
    Tables,
    cloudformation,
    create_tables,
    examine_tables,
    terraform,
)
from s3notify_platform.deploy.role_policies import ROLES, Places, Role, policy, regional_arn

__all__ = [
    "ROLES",
    "Json",
    "Places",
    "Role",
    "Tables",
    "cloudformation",
    "create_tables",
    "examine_tables",
    "policy",
    "regional_arn",
    "terraform",
]
