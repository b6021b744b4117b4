"""Templates of events equal the command's setup. Terraform's template keeps existing notifications."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cfnlint.api import lint_all

from s3notify_platform.deploy.events.event_part import StatementPart
from s3notify_platform.deploy.events.event_setup import EventSetup
from s3notify_platform.deploy.events.event_site import EventSite, Way
from s3notify_platform.deploy.events.event_templates import cloudformation_events, terraform_events
from s3notify_platform.stores.aws.bucket_notifications import BucketNotifications, Notification
from s3notify_platform.stores.config import S3Config

WAYS: tuple[Way, ...] = ("sqs", "sns", "eventbridge")
SITE = EventSite(
    source="orders",
    bucket=S3Config(bucket="acme-landing", region="eu-central-1"),
    prefix="raw/orders/",
    platform_bucket="acme-landing",
    platform_prefix="_s3notify/orders/",
    queue_prefix="_s3notify/queue/",
    account="123456789012",
    bucket_account="123456789012",
)


def resolved(text: str) -> Any:
    """Parses a text of the template, with values in place of Terraform's references."""
    for reference, value in (
        (f"${{aws_sqs_queue.{SITE.name}.arn}}", SITE.queue_arn),
        (f"${{aws_sns_topic.{SITE.name}.arn}}", SITE.topic_arn),
        (f"${{aws_cloudwatch_event_rule.{SITE.name}.arn}}", SITE.rule_arn),
        (f"${{data.aws_caller_identity.{SITE.name}.account_id}}", SITE.account),
    ):
        text = text.replace(reference, value)
    assert "${" not in text
    return json.loads(text)


def statements(way: Way, bucket_account: str) -> list[Any]:
    """Returns the policy statements that the command writes, without a request."""
    site = replace(SITE, bucket_account=bucket_account or SITE.account)
    parts = EventSetup(site=site).parts_by(way, SITE.topic_arn)
    return [part.statement for part in parts if isinstance(part, StatementPart)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bucket_account", ["", "999999999999"])
def test_terraform_has_the_same_policies(way: Way, bucket_account: str) -> None:
    site = replace(SITE, bucket_account=bucket_account)
    found = terraform_events(site, way, BucketNotifications())["resource"]
    policies = [found["aws_sqs_queue_policy"][SITE.name]["policy"]]
    policies += [one["policy"] for one in found.get("aws_sns_topic_policy", {}).values()]
    assert [resolved(text)["Statement"] for text in policies] == [
        [one] for one in statements(way, bucket_account)
    ]
    assert found["aws_sqs_queue"][SITE.name]["name"] == SITE.queue_name
    rules = found.get("aws_cloudwatch_event_rule", {}).values()
    assert [json.loads(rule["event_pattern"]) for rule in rules] == [SITE.pattern()] * (way == "eventbridge")


@pytest.mark.parametrize("way", WAYS)
def test_terraform_takes_the_templates_of_several_sources_in_one_folder(way: Way) -> None:
    """Otherwise Terraform would refuse a resource that is defined twice. Long names are shortened, and two deployments
    may have a source of the same name.
    """
    places = [("orders", ""), ("orders", "dev/"), (f"{'o' * 50}_1", ""), (f"{'o' * 50}_2", "")]
    names: list[str] = []
    for source, before in places:
        platform_prefix = f"{before}_s3notify/{source}/"
        site = replace(SITE, source=source, platform_prefix=platform_prefix)
        template = terraform_events(site, way, BucketNotifications())
        kinds = [*template["resource"].values(), *template["data"].values()]
        (name,) = {name for kind in kinds for name in kind}
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name), "Terraform's identifiers"
        names.append(name)
    assert len(set(names)) == len(places)


@pytest.mark.parametrize("way", WAYS)
def test_terraform_keeps_existing_notifications(way: Way) -> None:
    """Terraform's resource replaces all notifications. So the template must contain the notifications of
    other users.
    """
    theirs = Notification(
        id="theirs", kind="function", arn="arn:l", events=frozenset({"s3:ObjectCreated:Put"}), suffix=".csv"
    )
    ours = SITE.notification("queue", SITE.queue_arn)
    there = BucketNotifications().having(theirs).having(ours).to_eventbridge()
    (found,) = terraform_events(SITE, way, there)["resource"]["aws_s3_bucket_notification"].values()
    assert found["lambda_function"] == [
        {"id": "theirs", "lambda_function_arn": "arn:l", "events": ["s3:ObjectCreated:Put"], "filter_suffix": ".csv"}
    ]  # fmt: skip
    assert found["eventbridge"] is True
    blocks = [*found.get("queue", []), *found.get("topic", [])]
    assert [block["id"] for block in blocks] == [SITE.name] * (way != "eventbridge")
    assert all(block["filter_prefix"] == "raw/orders/" for block in blocks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bucket_account", ["", "999999999999"])
def test_cloudformation_is_valid_and_has_the_same_policies(way: Way, bucket_account: str) -> None:
    site = replace(SITE, bucket_account=bucket_account)
    template = cloudformation_events(site, way, BucketNotifications())
    found = lint_all(json.dumps(template))
    assert [match for match in found if not match.rule.id.startswith("I")] == []
    text = json.dumps(template)
    for reference, value in (
        ({"Fn::GetAtt": ["Queue", "Arn"]}, SITE.queue_arn),
        ({"Fn::GetAtt": ["Rule", "Arn"]}, SITE.rule_arn),
        ({"Ref": "Topic"}, SITE.topic_arn),
        ({"Ref": "AWS::AccountId"}, SITE.account),
    ):
        text = text.replace(json.dumps(reference), json.dumps(value))
    resources = json.loads(text)["Resources"]
    made = [one["Properties"]["PolicyDocument"]["Statement"] for one in resources.values()
            if "PolicyDocument" in one["Properties"]]  # fmt: skip
    assert made == [[one] for one in statements(way, bucket_account)]
    names = {resources["Queue"]["Properties"]["QueueName"]} | {
        one["Properties"][name]
        for one in resources.values()
        for name in ("TopicName", "Name")
        if name in one["Properties"]
    }
    assert names == {SITE.name}
