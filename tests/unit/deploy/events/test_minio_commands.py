"""The commands that MinIO's administrator types."""

import shlex
from dataclasses import replace

from s3notify_platform.deploy.events.minio_commands import making, removing
from tests.unit.deploy.events.test_event_templates import SITE


def test_commands_make_and_remove_the_same_target() -> None:
    """Otherwise the commands would show the secret, the shell would run parts of a prefix, or a target would be left
    behind.
    """
    target = SITE.name.replace("-", "_")
    config, restart, add = making(SITE, "https://inlet.example.com:8086/", "S3NOTIFY_RECEIVER_SECRET")
    assert config.startswith(f"mc admin config set ALIAS notify_webhook:{target} endpoint=https://inlet")
    assert 'auth_token="$S3NOTIFY_RECEIVER_SECRET"' in config
    assert "queue_dir=" in config
    assert restart == "mc admin service restart ALIAS"
    arn = f"arn:minio:sqs::{target}:webhook"
    assert add == f"mc event add ALIAS/acme-landing {arn} --event put,delete,ilm --prefix raw/orders/"
    remove, reset, _ = removing(SITE)
    assert remove == add.replace("event add", "event remove")
    assert reset == f"mc admin config reset ALIAS notify_webhook:{target}"
    odd = making(replace(SITE, prefix="raw/it's; rm/"), "https://i.example.com/?a=$(x)", "SECRET")
    assert shlex.split(odd[2])[-1] == "raw/it's; rm/"
    assert shlex.split(odd[0])[6] == "endpoint=https://i.example.com/?a=$(x)"
    assert "--prefix" not in making(replace(SITE, prefix=""), "https://i.example.com/", "SECRET")[2]
