"""Everything that `s3notify init` makes and prints.

`dynamo_tables`: the DynamoDB tables, and templates of them. `role_policies`: the least IAM policy of each role.
`events`: what has S3 announce its changes.
"""

from s3notify_platform.deploy.dynamo_tables import (
    Json,
    Tables,
    cloudformation,
    create_tables,
    examine_tables,
    terraform,
)
from s3notify_platform.deploy.role_policies import ROLES, Places, Role, policy

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
    "terraform",
]
