"""Templates of the event setup, for users who make it by Terraform or CloudFormation.

`s3notify init NAME --events` finds the resources that a template made, and makes the missing resources. With
CloudFormation the bucket's notification is missing, because only the template that makes the bucket can contain it.

If events go by SNS, and the bucket announces the source's keys to a topic already, a template subscribes the queue to
that topic, and does not change the bucket. The bucket's account is `site.bucket_account`; "" means the account that
applies the template.
"""

import json
from typing import Any

from s3notify_platform.deploy.dynamo_tables import Json
from s3notify_platform.deploy.events.event_part import allowing
from s3notify_platform.deploy.events.event_site import AWS_EVENTS, SENDERS, EventSite, Way
from s3notify_platform.deploy.events.queue_part import RETENTION_SECONDS
from s3notify_platform.stores.aws.bucket_notifications import BucketNotifications, Kind


def terraform_events(site: EventSite, way: Way, others: BucketNotifications) -> Json:
    """Terraform's JSON. `others`: the bucket's current notifications. The template repeats these notifications, because
    Terraform's resource replaces all notifications of a bucket. Resources have the site's name in Terraform, so one
    folder may have the templates of several sources, if each source has its own bucket. Sources of one bucket must
    share one `aws_s3_bucket_notification`. Pure.
    """
    name = site.name
    queue, rule = f"${{aws_sqs_queue.{name}.arn}}", f"${{aws_cloudwatch_event_rule.{name}.arn}}"
    their_topic = site.their_topic(others) if way == "sns" else ""
    topic = their_topic or f"${{aws_sns_topic.{name}.arn}}"
    account = site.bucket_account or f"${{data.aws_caller_identity.{name}.account_id}}"
    sending = _sending(
        site,
        way,
        queue,
        source={"sqs": site.bucket_arn, "sns": topic, "eventbridge": rule}[way],
        account=account,
    )
    resources: Json = {
        "aws_sqs_queue": {
            name: {
                "name": site.queue_name,
                "message_retention_seconds": RETENTION_SECONDS,
                "receive_wait_time_seconds": 20,
            }
        },
        "aws_sqs_queue_policy": {
            name: {
                "queue_url": f"${{aws_sqs_queue.{name}.url}}",
                "policy": json.dumps(_policy(sending)),
            }
        },
    }
    notification: Json = {
        "//": "This resource replaces all notifications of the bucket: keep one per bucket, with all notifications.",
        "bucket": site.bucket.bucket,
        "depends_on": [f"aws_sqs_queue_policy.{name}"],
        **_terraform_others(site, others),
    }
    match way:
        case "sqs":
            notification.setdefault("queue", []).append(_terraform_block(site, "queue_arn", queue))
        case "sns":
            resources["aws_sns_topic_subscription"] = {
                name: {
                    "topic_arn": topic,
                    "protocol": "sqs",
                    "endpoint": queue,
                    "raw_message_delivery": True,
                }
            }
            if not their_topic:
                notification.setdefault("topic", []).append(_terraform_block(site, "topic_arn", topic))
                notification["depends_on"].append(f"aws_sns_topic_policy.{name}")
                policy = json.dumps(_policy(_publishing(site, topic, account)))
                resources |= {
                    "aws_sns_topic": {name: {"name": site.name}},
                    "aws_sns_topic_policy": {name: {"arn": topic, "policy": policy}},
                }
        case "eventbridge":
            notification["eventbridge"] = True
            resources |= {
                "aws_cloudwatch_event_rule": {
                    name: {"name": site.name, "event_pattern": json.dumps(site.pattern())}
                },
                "aws_cloudwatch_event_target": {
                    name: {
                        "rule": f"${{aws_cloudwatch_event_rule.{name}.name}}",
                        "target_id": site.name,
                        "arn": queue,
                    }
                },
            }
    if not their_topic:
        resources["aws_s3_bucket_notification"] = {name: notification}
    return {"data": {"aws_caller_identity": {name: {}}}, "resource": resources}


def cloudformation_events(site: EventSite, way: Way, others: BucketNotifications) -> Json:
    """A template without the bucket's own part, which `s3notify init NAME --events` makes afterwards. `others`: the
    bucket's current notifications. Pure.
    """
    queue, rule = {"Fn::GetAtt": ["Queue", "Arn"]}, {"Fn::GetAtt": ["Rule", "Arn"]}
    their_topic = site.their_topic(others) if way == "sns" else ""
    topic: Any = their_topic or {"Ref": "Topic"}
    account: Any = site.bucket_account or {"Ref": "AWS::AccountId"}
    source: dict[Way, Any] = {"sqs": site.bucket_arn, "sns": topic, "eventbridge": rule}
    sending = _sending(site, way, queue, source=source[way], account=account)
    resources: Json = {
        "Queue": {
            "Type": "AWS::SQS::Queue",
            "DeletionPolicy": "Delete",
            "UpdateReplacePolicy": "Delete",
            "Properties": {
                "QueueName": site.queue_name,
                "MessageRetentionPeriod": RETENTION_SECONDS,
                "ReceiveMessageWaitTimeSeconds": 20,
            },
        },
        "QueuePolicy": {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": "Queue"}],
                "PolicyDocument": _policy(sending),
            },
        },
    }
    match way:
        case "sqs":
            pass
        case "sns":
            resources["Subscription"] = {
                "Type": "AWS::SNS::Subscription",
                "Properties": {
                    "TopicArn": topic,
                    "Protocol": "sqs",
                    "Endpoint": queue,
                    "RawMessageDelivery": True,
                },
            }
            if not their_topic:
                policy = _policy(_publishing(site, topic, account))
                resources |= {
                    "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": site.name}},
                    "TopicPolicy": {
                        "Type": "AWS::SNS::TopicPolicy",
                        "Properties": {"Topics": [topic], "PolicyDocument": policy},
                    },
                }
        case "eventbridge":
            resources["Rule"] = {
                "Type": "AWS::Events::Rule",
                "Properties": {
                    "Name": site.name,
                    "EventPattern": site.pattern(),
                    "Targets": [{"Id": site.name, "Arn": queue}],
                },
            }
    return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}


def _sending(site: EventSite, way: Way, queue: Any, *, source: Any, account: Any) -> Json:
    service = next(service for service, of in SENDERS.items() if of == way)
    owner = account if way == "sqs" else ""
    return allowing(
        site.name, service=service, action="sqs:SendMessage", resource=queue, source=source, account=owner
    )


def _publishing(site: EventSite, topic: Any, account: Any) -> Json:
    return allowing(
        site.name,
        service="s3.amazonaws.com",
        action="sns:Publish",
        resource=topic,
        source=site.bucket_arn,
        account=account,
    )


def _policy(statement: Json) -> Json:
    return {"Version": "2012-10-17", "Statement": [statement]}


def _terraform_block(site: EventSite, kind: str, arn: str) -> Json:
    block: Json = {"id": site.name, kind: arn, "events": list(AWS_EVENTS)}
    return block | ({"filter_prefix": site.prefix} if site.prefix else {})


def _terraform_others(site: EventSite, others: BucketNotifications) -> Json:
    names: dict[Kind, tuple[str, str]] = {
        "queue": ("queue", "queue_arn"),
        "topic": ("topic", "topic_arn"),
        "function": ("lambda_function", "lambda_function_arn"),
    }
    blocks: dict[str, list[Json]] = {}
    for one in (one for one in others.each if one.id != site.name):
        name, arn = names[one.kind]
        block: Json = {"id": one.id, arn: one.arn, "events": sorted(one.events)}
        block |= {k: v for k, v in (("filter_prefix", one.prefix), ("filter_suffix", one.suffix)) if v}
        blocks.setdefault(name, []).append(block)
    return {**blocks, **({"eventbridge": True} if others.eventbridge else {})}
