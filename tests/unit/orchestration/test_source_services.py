"""The services of a source in YAML: the digest of their settings."""

import pytest

from s3notify_platform.orchestration.component import S3NotifyComponent


def component(name: str = "orders", **more: object) -> S3NotifyComponent:
    given = {"bucket": "landing", "prefix": f"raw/{name}/", "http": {"plain_http": True}} | more
    return S3NotifyComponent(name=name, **given)


def digest(source: S3NotifyComponent) -> str:
    services = source.services()
    return services.by_name["http"].digest(services.assets.io)


@pytest.mark.parametrize(
    "changed",
    [
        {"http": {"plain_http": True, "port": 8087}},
        {"http": {"plain_http": True, "secret_envs": ("NEW_SECRET",)}},
        {"http": {"plain_http": True, "allow_networks": ("10.0.0.0/8",)}},
        {"queue_prefix": "_s3notify/other/"},
        {"platform_bucket": "platform"},
        {"prefix": "raw/"},
        {"slots": 40},
        {"dynamodb": {"records_table": "records"}},
        {"s3": {"access_key_id_env": "KEY", "secret_access_key_env": "SECRET"}},
    ],
    ids=str,
)
def test_a_changed_setting_of_a_service_changes_its_digest(changed: dict[str, object]) -> None:
    """Otherwise the service's run would use the old setting until somebody terminates it."""
    assert digest(component(**changed)) != digest(component())


def test_a_setting_that_a_service_does_not_use_keeps_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each reload after an edit of the YAML would interrupt the service. A secret must not be digested."""
    before = digest(component())
    monkeypatch.setenv("S3NOTIFY_RECEIVER_SECRET", "a secret of one environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    assert digest(component(max_objects=7, description="Orders", deliver={})) == before
