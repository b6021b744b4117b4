"""Repetition, removal and templates of `s3notify init NAME --events`, after somebody chose an account or a queue, or
deleted a part.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.channels import arrival
from s3notify_platform.stores.aws import service_requests
from tests.support.event_project import Project

pytestmark = pytest.mark.server

OWNER = "999999999999"


def _accounts(project: Project) -> list[str]:
    """The accounts that may send events, as stated in the policies of the source's queue and topic."""
    sqs, sns = project.client("sqs"), project.client("sns")
    (url,) = project.queues()
    texts = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]]
    name = url.rpartition("/")[2]
    topics = [one["TopicArn"] for one in sns.list_topics()["Topics"] if one["TopicArn"].endswith(f":{name}")]
    texts += [sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"] for arn in topics]
    found = [one for text in texts for one in json.loads(text)["Statement"] if one.get("Sid") == name]
    return [
        one["Condition"]["StringEquals"]["aws:SourceAccount"]
        for one in found
        if "StringEquals" in one["Condition"]
    ]


def _announce(project: Project, **notification: Any) -> None:
    """Sets a notification of another user as the bucket's only notification."""
    kind = "Topic" if "TopicArn" in notification else "Queue"
    project.client("s3").put_bucket_notification_configuration(
        Bucket=project.bucket, NotificationConfiguration={f"{kind}Configurations": [notification]}
    )


def _their_queue(project: Project) -> None:
    """Announces some changes of the source to another user's queue."""
    project.client("sqs").create_queue(QueueName=f"q-{project.bucket}")
    arn = f"arn:aws:sqs:us-east-1:000000000000:q-{project.bucket}"
    _announce(project, Id="crawler", QueueArn=arn, Events=["s3:ObjectCreated:*"])


def _their_topic(project: Project) -> str:
    """Announces all changes of the source to another user's topic, and returns the topic's ARN."""
    arn: str = project.client("sns").create_topic(Name=f"t-{project.bucket}")["TopicArn"]
    events = ["s3:LifecycleExpiration:*", "s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
    _announce(project, Id="theirs", TopicArn=arn, Events=events)
    return arn


@pytest.mark.parametrize("by", ["sqs", "sns"])
def test_a_repeated_init_keeps_the_account_of_the_bucket(
    project: Project, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Otherwise doctor would report a complete setup as incomplete, and its remedy would make AWS refuse all events."""
    monkeypatch.setattr(arrival, "ARRIVAL_SECONDS", 0.5)
    assert project.init("--by", by, "--bucket-account", OWNER, "--yes").exit_code == 0
    assert _accounts(project) == [OWNER]
    answer = project.run("doctor", "orders")
    assert "events: they arrive in queue" in answer.output, answer.output
    again = project.init()
    assert "Everything is there already" in again.output, again.output
    assert _accounts(project) == [OWNER]
    assert project.init("--bucket-account", "111111111111", "--yes").exit_code == 0
    assert _accounts(project) == ["111111111111"]


@pytest.mark.parametrize("template", ["terraform", "cloudformation"])
@pytest.mark.parametrize("by", ["sqs", "sns"])
def test_a_template_contains_the_account_of_the_bucket(project: Project, template: str, by: str) -> None:
    """Otherwise the template's queue or topic would refuse all events of a bucket in another account."""
    given = ("--print", template, "--by", by)
    assert OWNER in project.init(*given, "--bucket-account", OWNER).stdout
    wrong = project.init(*given, "--bucket-account", "acme")
    assert wrong.exit_code == 1
    assert "give its 12 digits" in wrong.output


def test_removal_forgets_a_queue_with_a_chosen_name(project: Project) -> None:
    """Otherwise the source's YAML would keep an inlet whose queue is deleted."""
    before, name = project.file.read_text(), f"chosen-{project.bucket}"
    assert project.init("--event-queue", name, "--yes").exit_code == 0
    assert name in project.file.read_text()
    gone = project.init("--remove", "--yes")
    assert "the queue is removed" in gone.output, gone.output
    assert project.file.read_text() == before


def test_removal_names_an_inlet_that_it_keeps(project: Project) -> None:
    """If a queue with a chosen name is gone already, nobody knows who made the queue, so the queue's line stays in the
    YAML. A message must name this line.
    """
    name = f"chosen-{project.bucket}"
    project.init("--event-queue", name, "--yes")
    text = project.file.read_text()
    sqs = project.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
    gone = project.init("--remove", "--yes")
    assert gone.exit_code == 0, gone.output
    assert f"defs.yaml: `sqs` stays: remove it if queue '{name}' is deleted" in gone.output
    assert project.file.read_text() == text


def _delete_queue(project: Project) -> None:
    (url,) = project.queues()
    project.client("sqs").delete_queue(QueueUrl=url)


def test_a_rule_is_found_without_its_queue(project: Project) -> None:
    """Otherwise a repeated init would choose another way, and the removal would not delete the rule of EventBridge."""
    before = project.file.read_text()
    rules = project.client("events").list_rules()["Rules"]
    project.init("--by", "eventbridge", "--yes")
    _delete_queue(project)
    again = project.init(answer="n\n")
    assert "by eventbridge:" in again.output, again.output
    assert "+ SQS queue" in again.output
    gone = project.init("--remove", "--yes")
    assert "by eventbridge:" in gone.output
    assert "removed: EventBridge rule" in gone.output, gone.output
    assert project.client("events").list_rules()["Rules"] == rules
    assert project.file.read_text() == before


def test_a_topic_is_found_without_its_queue(project: Project) -> None:
    """Otherwise the removal would not delete the topic of SNS."""
    project.init("--by", "sns", "--yes")
    (url,) = project.queues()
    _delete_queue(project)
    project.client("s3").put_bucket_notification_configuration(
        Bucket=project.bucket, NotificationConfiguration={}
    )
    gone = project.init("--remove", "--yes")
    assert f"removed: SNS topic '{url.rpartition('/')[2]}'" in gone.output, gone.output
    assert "Nothing is left to delete" in project.init("--remove", "--yes").output


def test_a_subscription_to_another_users_topic_is_found_without_its_queue(project: Project) -> None:
    """Otherwise the removal would not delete the subscription."""
    arn = _their_topic(project)
    project.init("--by", "sns", "--yes")
    _delete_queue(project)
    gone = project.init("--remove", "--yes")
    assert f"removed: subscription of the queue to {arn}" in gone.output, gone.output
    assert project.client("sns").list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"] == []
    assert arn in [one["TopicArn"] for one in project.client("sns").list_topics()["Topics"]]


def test_a_subscription_that_others_made_stays(project: Project) -> None:
    """Otherwise the removal would cut off a queue that its owner subscribed to the topic."""
    arn, name = _their_topic(project), f"chosen-{project.bucket}"
    url = project.client("sqs").create_queue(QueueName=name)["QueueUrl"]
    queue_arn = f"arn:aws:sqs:us-east-1:000000000000:{name}"
    project.client("sns").subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)
    project.write(f"  sqs: {{queue_url: '{url}', endpoint_url: '{project.server.endpoint_url}'}}\n")
    gone = project.init("--remove", "--yes")
    assert "Nothing is left to delete" in gone.output, gone.output
    (left,) = project.client("sns").list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    assert left["Endpoint"] == queue_arn


class _OnlySqs(BaseHTTPRequestHandler):
    """A server of SQS that has no queue. The client of SNS cannot parse the server's answers, and the client of
    EventBridge is refused.
    """

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        by_sqs = self.headers.get("X-Amz-Target", "").startswith("AmazonSQS.")
        code = "com.amazonaws.sqs#QueueDoesNotExist" if by_sqs else "AccessDenied"
        body = json.dumps({"__type": code, "message": "no"}).encode()
        self.send_response(400 if by_sqs else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


def test_events_by_sqs_need_no_right_to_other_services(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an administrator who has rights only to SQS could not set events up. A removal that cannot see a rule
    or topic must not say that nothing is left.
    """
    monkeypatch.setattr(service_requests, "REQUEST_ATTEMPTS", 2)
    with ThreadingHTTPServer(("127.0.0.1", 0), _OnlySqs) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        given = ("--queue-endpoint-url", url, "--account", "000000000000")
        made = project.init(*given, answer="n\n")
        unsure = project.init(*given, "--remove", "--yes")
        sure = project.init(*given, "--remove", "--yes", "--by", "sqs")
        server.shutdown()
    assert "+ notification" in made.output, made.output
    assert unsure.exit_code == 1
    assert "to remove only the parts of one way, give --by" in unsure.output
    assert sure.exit_code == 0, sure.output
    assert "Nothing is left to delete" in sure.output


@pytest.mark.parametrize(
    ("file", "text"), [("dg.toml", "directory_type = 'project'\n"), ("pyproject.toml", "[tool.dg.project]\n")]
)
def test_dg_dev_is_named_in_a_project_of_dg(
    project: Project, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    """Otherwise a user of dg would start a second Dagster, with another home folder, beside the running Dagster."""
    monkeypatch.setattr(arrival, "ARRIVAL_SECONDS", 0.5)
    Path("pyproject.toml").write_text("[project]\nname = 'shop'\n")
    assert "restart `s3notify dev`, or reload" in project.init("--yes").output
    Path(file).write_text(text)
    assert "restart `dg dev` (or `s3notify dev`), or reload" in project.init("--yes").output
    answer = project.run("doctor", "orders")
    assert "no inlet receives them: start `dg dev` (or `s3notify dev`); if it runs" in answer.output, (
        answer.output
    )


def test_removal_prints_how_to_switch_eventbridge_off(project: Project) -> None:
    """Otherwise the bucket would send its events to EventBridge for ever, for $1 a million, although no rule is left.
    If the bucket's switch for EventBridge is off already, the output must not mention the switch.
    """
    given = ("--by", "eventbridge", "--yes")
    assert project.init(*given).exit_code == 0
    text = project.init("--remove", *given).output
    assert "still sends its events to EventBridge, for $1 a million events. This switch stays on" in text
    read, edit, write = text.splitlines()[-3:]
    assert read == (
        f"  aws s3api get-bucket-notification-configuration --bucket {project.bucket} > notifications.json"
    )
    assert "delete EventBridgeConfiguration from notifications.json" in edit
    assert write == (
        f"  aws s3api put-bucket-notification-configuration --bucket {project.bucket} "
        "--notification-configuration file://notifications.json"
    )
    found = project.notifications()
    del found["EventBridgeConfiguration"]
    project.client("s3").put_bucket_notification_configuration(
        Bucket=project.bucket, NotificationConfiguration=found
    )
    assert "EventBridge, for" not in project.init("--remove", *given).output


@pytest.mark.parametrize(
    "more", [("--print", "iam"), ("--print", "iam", "--role", "inlet"), ("--role", "inlet")]
)
def test_a_policy_of_a_role_is_not_printed_with_events(project: Project, more: tuple[str, ...]) -> None:
    """Otherwise a template of the events would be printed in place of the policy."""
    ran = project.init(*more)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert "take no --events" in ran.output


@pytest.mark.parametrize("template", ["terraform", "cloudformation"])
def test_a_template_with_an_overlapping_notification_is_refused(project: Project, template: str) -> None:
    """Otherwise S3 would refuse the template's notification after the queue is made."""
    _their_queue(project)
    for by in ("sqs", "sns"):
        ran = project.init("--print", template, "--by", by)
        assert ran.exit_code == 1
        assert ran.stdout == ""
        assert "'crawler'" in ran.output
        assert "--by eventbridge" in ran.output
    assert project.init("--print", template, "--by", "eventbridge").exit_code == 0


def test_cloudformation_needs_no_right_to_read_the_bucket(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a developer without rights to the bucket could not print this template, which contains nothing of the
    bucket. Terraform's template would delete notifications that it does not contain, so its user needs rights to the
    bucket.
    """
    bucket = project.bucket
    monkeypatch.setattr(project, "bucket", "absent-bucket")
    project.write("")
    printed, refused = project.init("--print", "cloudformation"), project.init("--print", "terraform")
    monkeypatch.setattr(project, "bucket", bucket)
    project.write("")
    assert "Queue" in json.loads(printed.stdout)["Resources"]
    assert "the bucket's notifications were not checked: " in printed.stderr
    assert refused.exit_code == 1
    assert refused.stdout == ""


@pytest.mark.parametrize("template", ["terraform", "cloudformation"])
def test_a_template_by_sns_subscribes_to_an_existing_topic(project: Project, template: str) -> None:
    """Otherwise S3 would refuse the template's own notification, since another topic gets these events already."""
    arn = _their_topic(project)
    sqs = project.init("--print", template)
    assert "--by sns subscribes the queue" in sqs.output
    ran = project.init("--print", template, "--by", "sns")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    if template == "terraform":
        resources = found["resource"]
        assert sorted(resources) == ["aws_sns_topic_subscription", "aws_sqs_queue", "aws_sqs_queue_policy"]
        (subscription,) = resources["aws_sns_topic_subscription"].values()
        assert subscription["topic_arn"] == arn
    else:
        resources = found["Resources"]
        assert sorted(resources) == ["Queue", "QueuePolicy", "Subscription"]
        assert resources["Subscription"]["Properties"]["TopicArn"] == arn
        assert ran.stderr == ""
    assert f'\\"aws:SourceArn\\": \\"{arn}\\"' in ran.stdout or f'"aws:SourceArn": "{arn}"' in ran.stdout


@pytest.mark.parametrize("more", ["  sqs: {queue_url: 'https://q.example.com/1/q'}\n", "  http: {}\n", ""])
def test_remove_names_the_command_that_removes_the_events(project: Project, more: str) -> None:
    """Otherwise the bucket's notification would stay, and a queue or topic without a reader would fill up."""
    project.write(more)
    for given in (("--dry-run",), ("--yes",), ("--yes", "--json")):
        ran = project.run("remove", "orders", *given)
        assert ran.exit_code == 0, ran.output
        assert ("`s3notify init orders --events --remove`" in ran.stderr) == bool(more)
        assert "--events" not in ran.stdout


def test_remove_ends_with_what_is_still_to_do(project: Project) -> None:
    """Otherwise a run of the inlet would continue with a deleted queue, and would fail until somebody found this run.
    If a folder contains more than the source, the output must not say to delete the folder, since other sources would
    be deleted, too.
    """
    steps = "in Dagster, reload the code, and then end the runs of the job orders_services, if there are any"
    removed = project.run("remove", "orders", "--yes")
    assert removed.stderr == f"Still to do: delete defs/orders/; {steps}\n"
    assert "Still to do" not in project.run("remove", "orders", "--dry-run").output
    source = project.file.read_text()
    project.file.write_text(f"{source}---\n{source.replace('name: orders', 'name: clicks')}")
    removed = project.run("remove", "orders", "--yes")
    assert removed.stderr == f"Still to do: delete the source from defs/orders/defs.yaml; {steps}\n"
    project.file.rename("defs/defs.yaml")
    project.file.parent.rmdir()
    Path("defs/defs.yaml").write_text(source)
    removed = project.run("remove", "orders", "--yes")
    assert removed.stderr == f"Still to do: delete the source from defs/defs.yaml; {steps}\n"
    Path("defs/defs.yaml").unlink()
    given = ("--bucket", project.bucket, "--endpoint-url", project.endpoint_url)
    assert project.run("remove", "orders", "--yes", *given).stderr == ""
    project.file.parent.mkdir()
    project.write("")
