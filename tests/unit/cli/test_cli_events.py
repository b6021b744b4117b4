"""`s3notify init NAME --events` and `s3notify doctor`, from the command to a change in the queue."""

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from s3notify_platform.channels import arrival
from s3notify_platform.cli import arriving
from s3notify_platform.cli.main import main
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.project import sources_of
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.event_project import Project
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.waiting import until


@pytest.mark.server
def test_nothing_is_created_before_the_answer(project: Project) -> None:
    before = project.file.read_text()
    ran = project.init(answer="n\n")
    assert ran.exit_code == 1
    for part in (
        "+ SQS queue 's3notify-orders-",
        "+ policy of the queue: only s3.amazonaws.com",
        "+ notification 's3n",
    ):
        assert part in ran.output
    assert "keys below 'raw/orders/'" in ran.output
    assert project.queues() == []
    assert project.notifications() == {}
    assert project.file.read_text() == before


@pytest.mark.server
@pytest.mark.parametrize("by", ["sqs", "sns", "eventbridge"])
def test_the_plan_fits_a_terminal_of_80_columns(
    project: Project, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Otherwise a narrow terminal would break the plan's lines within names, which the user compares with AWS."""
    monkeypatch.setenv("COLUMNS", "80")
    # These lines are not broken, so that users can copy them.
    whole = (str(project.file), "queue_url", "aws s3api")
    given = (("--by", by), ("--by", by, "--yes"), ("--remove", "--yes"))
    for ran in [project.init(*each, answer="n\n") for each in given]:
        plan = [line for line in ran.output.splitlines() if not any(text in line for text in whole)]
        assert len(plan) > 4
        assert max(map(len, plan)) <= 80, ran.output


@pytest.mark.server
def test_one_command_brings_new_objects_into_the_table(project: Project) -> None:
    """If the queue, the bucket's notification or the inlet in the YAML were missing, new objects would wait
    for a sweep. If `--remove` left the notification, the bucket would go on sending events that nobody
    receives.
    """
    before = project.file.read_text()
    ran = project.init(answer="y\n")
    assert ran.exit_code == 0, ran.output
    (url,) = project.queues()
    assert (
        f"  sqs: {{queue_url: '{url}', endpoint_url: '{project.server.endpoint_url}'}}\n"
        in project.file.read_text()
    )
    assert "  prefix: raw/orders/   # all of them\n" in project.file.read_text()
    (note,) = project.notifications()["QueueConfigurations"]
    assert note["Filter"]["Key"]["FilterRules"] == [{"Name": "prefix", "Value": "raw/orders/"}]

    (found,) = sources_of()
    queue = found.source().location.queue()
    queue.topics.create(
        "orders", TopicSettings(bucket=project.bucket, prefix="raw/orders/", slots=4, shards=1)
    )
    with project.inlet():
        project.client("s3").put_object(Bucket=project.bucket, Key="raw/orders/1.jsonl", Body=b'{"a": 1}\n')
        until(
            lambda: [entry.event.key for entry in queue.entries("orders", range(4))] == ["raw/orders/1.jsonl"]
        )
        source = found.source(commit="native")
        Ingest(jobs=LocalJobs(source=source), source=source).run(source.location.all_slots(), batch="1")
        assert [row["a"] for row in rows_of(source)] == [1]
        answer = project.run("doctor", "orders")
        assert answer.exit_code == 0, answer.output
        assert re.search(r"events: they arrive, \d+\.\d s after a write", answer.output)
        said = json.loads(project.run("doctor", "orders", "--json").output)
        assert said["events"]["fine"] is True
        assert 0 < said["events"]["seconds"] < 30

    again = project.init()
    assert again.exit_code == 0, again.output
    assert "Everything is there already" in again.output
    assert "= SQS queue" in again.output
    gone = project.init("--remove", answer="y\n")
    assert gone.exit_code == 0, gone.output
    assert project.queues() == []
    assert project.notifications() == {}
    assert project.file.read_text() == before
    assert "Nothing is left to delete" in project.init("--remove").output
    (listed,) = S3ObjectStore(project.server.config(project.bucket)).list("raw/").objects
    assert listed.key == "raw/orders/1.jsonl", "the probe is deleted"


@pytest.mark.server
@pytest.mark.parametrize("by", ["sns", "eventbridge"])
def test_events_come_by_sns_or_eventbridge(project: Project, by: str) -> None:
    """If a later command chose another way for the events, the inlet would get each event twice. For this
    reason, the command finds the earlier choice, and refuses another choice.
    """
    ran = project.init("--by", by, "--yes")
    assert ran.exit_code == 0, ran.output
    with project.inlet():
        answer = project.run("doctor", "orders")
    assert re.search(r"events: they arrive, \d+\.\d s after a write", answer.output), answer.output
    assert f"by {by}:" in project.init().output
    other = project.init("--by", "sqs")
    assert other.exit_code == 1
    assert f"already arrive by {by}" in other.output
    gone = project.init("--remove", "--yes")
    assert gone.exit_code == 0, gone.output
    assert ("still sends its events to EventBridge" in gone.output) is (by == "eventbridge")
    assert project.queues() == []


def _queue(project: Project) -> None:
    (url,) = project.queues()
    project.client("sqs").delete_queue(QueueUrl=url)


def _policy(project: Project) -> None:
    (url,) = project.queues()
    project.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})


def _notification(project: Project) -> None:
    project.client("s3").put_bucket_notification_configuration(
        Bucket=project.bucket, NotificationConfiguration={}
    )


@pytest.mark.server
@pytest.mark.parametrize(
    ("damage", "part"),
    [(_queue, "SQS queue"), (_policy, "policy of the queue"), (_notification, "notification '")],
)
def test_doctor_names_a_missing_part(project: Project, damage: Callable[[Project], None], part: str) -> None:
    """The output must end with the command that makes the missing part again."""
    project.init("--yes")
    damage(project)
    answer = project.run("doctor", "orders")
    assert answer.exit_code == 1
    (line,) = (line for line in answer.output.splitlines() if line.startswith("events:"))
    assert line.startswith(f"events: {part}")
    assert line.endswith("is missing: `s3notify init orders --events` makes it")
    assert project.init("--yes").exit_code == 0


@pytest.mark.server
def test_doctor_accepts_an_inlet_that_does_not_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise users, who run `doctor` before the inlet's first start, would search for a fault in a correct setup. If
    the bucket sends no events, `doctor` names the command that sets up events.
    """
    answer = project.run("doctor", "orders")
    assert "events: not set up; `s3notify init orders --events`" in answer.output
    project.init("--yes")
    monkeypatch.setattr(arrival, "ARRIVAL_SECONDS", 0.5)
    answer = project.run("doctor", "orders")
    assert answer.exit_code == 0, answer.output
    assert re.search(
        r"events: they arrive in queue 's3notify-orders-\w+', where about \d+ wait", answer.output
    )
    assert "start `s3notify dev`" in answer.output


@pytest.mark.server
@pytest.mark.parametrize("more", ["", "  modified_after: '2020-01-01T00:00:00Z'\n"])
def test_doctor_judges_by_the_newest_object(project: Project, more: str) -> None:
    """A source that reads hidden files would read a probe, too. So doctor writes no probe, and judges by another
    object.
    """
    project.init("--yes")
    (line,) = (line for line in project.file.read_text().splitlines() if "sqs:" in line)
    project.write(f"  hidden_files: read\n{more}{line}\n")
    answer = project.run("doctor", "orders")
    assert "the bucket has no object to judge by" in answer.output, answer.output
    project.client("s3").put_object(Bucket=project.bucket, Key="raw/orders/1.jsonl", Body=b"{}\n")
    answer = project.run("doctor", "orders")
    assert "the newest object, 'raw/orders/1.jsonl', was not announced: write an object" in answer.output
    assert project.run("signal", "raw/orders/1.jsonl").exit_code == 0
    answer = project.run("doctor", "orders")
    assert re.search(r"events: they arrive: the newest object, .* was announced after \d+ s", answer.output)
    (listed,) = S3ObjectStore(project.server.config(project.bucket)).list("raw/").objects
    assert listed.key == "raw/orders/1.jsonl"


@pytest.mark.server
def test_doctor_does_not_judge_by_a_part_of_the_objects(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `doctor` would mistake an old object for the newest, and would report a delay that no event had."""
    monkeypatch.setattr(arriving, "LOOKED_AT_MAX", 1)
    project.init("--yes")
    (line,) = (line for line in project.file.read_text().splitlines() if "sqs:" in line)
    project.write(f"  hidden_files: read\n{line}\n")
    for number in range(2):
        project.client("s3").put_object(Bucket=project.bucket, Key=f"raw/orders/{number}", Body=b"{}\n")
    answer = project.run("doctor", "orders")
    assert "the newest object, " not in answer.output
    assert "more than 1 objects are below 'raw/orders/'" in answer.output
    assert "`s3notify explain KEY` shows whether it was announced" in answer.output


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"__type": "AccessDenied", "message": "no"}'
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


@pytest.mark.server
def test_doctor_needs_no_permission_to_read_the_setup(project: Project) -> None:
    """The credentials of a run cannot read the setup of the events. The probe must still show that events arrive."""
    project.init("--yes")
    text = project.file.read_text()
    with project.inlet(), ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"endpoint_url: 'http://127.0.0.1:{server.server_address[1]}'}}"
        project.file.write_text(text.replace(f"endpoint_url: '{project.server.endpoint_url}'}}", url))
        assert project.file.read_text() != text
        answer = project.run("doctor", "orders")
        server.shutdown()
    project.file.write_text(text)
    assert answer.exit_code == 0, answer.output
    assert "events: they arrive, " in answer.output


@pytest.mark.server
def test_doctor_says_that_it_could_not_read_the_setup(project: Project) -> None:
    """Otherwise doctor would say that all parts exist, although it has no permission to read them, and saw no event."""
    project.init("--yes")
    before = project.file.read_text()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        refusing = f"endpoint_url: 'http://127.0.0.1:{server.server_address[1]}'}}"
        (line,) = (line for line in project.file.read_text().splitlines() if "sqs:" in line)
        line = line.replace(f"endpoint_url: '{project.server.endpoint_url}'}}", refusing)
        project.write(f"  hidden_files: read\n{line}\n")
        answer = project.run("doctor", "orders")
        server.shutdown()
    project.file.write_text(before)
    assert refusing in line
    assert "events: the parts were not checked: " in answer.output, answer.output
    assert "judge by" in answer.output


@pytest.mark.server
def test_a_killed_removal_is_completed_by_a_repetition(project: Project) -> None:
    """Otherwise the YAML would still name the deleted queue, and the inlet would poll a queue that does not
    exist. If the command also removed a line that names another queue, the source would receive no more
    events.
    """
    before = project.file.read_text()
    project.init("--yes")
    _queue(project)
    _notification(project)
    gone = project.init("--remove", "--yes")
    assert gone.exit_code == 0, gone.output
    assert project.file.read_text() == before
    project.write("  sqs: {queue_url: 'http://127.0.0.1:9/000000000000/of-others'}\n")
    text = project.file.read_text()
    assert project.init("--remove", "--yes").exit_code == 0
    assert project.file.read_text() == text


@pytest.mark.server
def test_a_yaml_in_one_line_is_left_to_the_user(project: Project) -> None:
    text = f"attributes: {{name: orders, bucket: {project.bucket}, prefix: raw/orders/, slots: 4, s3: "
    text += (
        f"{{endpoint_url: '{project.server.endpoint_url}'}}}}\ntype: s3notify_platform.S3NotifyComponent\n"
    )
    project.file.write_text(text)
    ran = project.init("--yes")
    assert ran.exit_code == 0, ran.output
    assert project.file.read_text() == text
    assert "Add to the attributes in the source's YAML:\n  sqs: {queue_url: " in ran.output


@pytest.mark.server
def test_an_overlapping_notification_is_named_before_any_queue_is_made(project: Project) -> None:
    project.client("sqs").create_queue(QueueName=f"q-{project.bucket}")
    arn = f"arn:aws:sqs:us-east-1:000000000000:q-{project.bucket}"
    theirs = {"Id": "crawler", "QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}
    project.client("s3").put_bucket_notification_configuration(
        Bucket=project.bucket, NotificationConfiguration={"QueueConfigurations": [theirs]}
    )
    ran = project.init("--yes")
    assert ran.exit_code == 1
    assert "'crawler'" in ran.output
    assert "--by eventbridge" in ran.output
    assert project.queues() == []
    assert project.init("--yes", "--by", "eventbridge").exit_code == 0
    assert project.notifications()["QueueConfigurations"] == [theirs]


@pytest.mark.server
def test_templates_are_only_printed(project: Project) -> None:
    """If the command also made the queue or the bucket's notification, the user's Terraform or CloudFormation
    would not manage them. CloudFormation cannot change an existing bucket. Without the message about the next
    command, the bucket would send no events.
    """
    before = project.file.read_text()
    found = json.loads(project.init("--print", "terraform").stdout)
    (notification,) = found["resource"]["aws_s3_bucket_notification"].values()
    assert notification["bucket"] == project.bucket
    ran = project.init("--print", "cloudformation", "--by", "sns")
    assert "Topic" in json.loads(ran.stdout)["Resources"]
    assert "s3notify init orders --events --by sns" in ran.stderr
    assert project.queues() == []
    assert project.notifications() == {}
    assert project.file.read_text() == before


@pytest.mark.parametrize(
    ("attributes", "options", "region"),
    [
        ("s3: {region: eu-central-1}", (), "eu-central-1"),
        ("s3: {region: eu-central-1}\n  dynamodb: {region: eu-west-1}", (), "eu-central-1"),
        ("s3: {region: eu-central-1}", (), "us-east-1"),
        ("dynamodb: {records_table: t}", ("--account", "999999999999"), "eu-central-1"),
        ("s3: {region: cn-north-1}", (), "cn-north-1"),
    ],
    ids=["all in one region", "tables elsewhere", "queue elsewhere", "tables of another account", "China"],
)
def test_the_policy_of_the_inlet_covers_the_queue_in_the_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attributes: str, options: tuple[str, ...], region: str
) -> None:
    """Otherwise SQS would refuse the inlet. The queue's region, account and name come from the queue's URL, and not
    from the bucket or the tables.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.parent.mkdir(parents=True)
    china = region.startswith("cn-")
    url = f"https://sqs.{region}.amazonaws.com{'.cn' * china}/123456789012/s3notify-orders-d62fcd94"
    file.write_text(
        "type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: orders\n  bucket: b\n  prefix: raw/\n"
        f"  {attributes}\n  sqs: {{queue_url: '{url}', region: {region}}}\n"
    )
    ran = CliRunner().invoke(main, ["init", "orders", "--print", "iam", "--role", "inlet", *options])
    assert ran.exit_code == 0, ran.output
    granted = {one["Resource"]: one["Action"] for one in json.loads(ran.stdout)["Statement"]}
    queue = f"arn:aws{'-cn' * china}:sqs:{region}:123456789012:s3notify-orders-d62fcd94"
    assert [arn for arn in granted if ":sqs:" in arn] == [queue]
    assert "sqs:ReceiveMessage" in granted[queue]
    assert all(":999999999999:" in arn for arn in granted if ":dynamodb:" in arn)


def test_the_inlet_command_takes_settings_from_the_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sources of the bucket that configure the inlet must have the same settings for it. Options of the command
    line override these settings.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    for name, bucket, more in (
        ("orders", "one", "sqs: {queue_url: 'https://one', visibility_seconds: 70}"),
        ("views", "one", "poll_seconds: 1"),
        ("clicks", "two", "sqs: {queue_url: 'https://two', visibility_seconds: 70}"),
        ("visits", "two", "sqs: {queue_url: 'https://three', visibility_seconds: 70}"),
    ):
        file = tmp_path / "defs" / name / "defs.yaml"
        file.parent.mkdir(parents=True)
        head = f"type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: {name}\n  bucket: {bucket}\n"
        file.write_text(f"{head}  {more}\n")
    group = main.get_command(click.Context(main), "inlet")
    assert isinstance(group, click.Group)
    _, command, _ = group.resolve_command(click.Context(group), ["sqs"])
    assert command is not None

    def taken(*arguments: str) -> tuple[str, int]:
        found = command.make_context("sqs", list(arguments)).params
        return found["set_queue_url"], found["set_visibility_seconds"]

    assert taken("--bucket", "one") == ("https://one", 70)
    assert taken("--bucket", "one", "--queue-url", "https://given") == ("https://given", 70)
    assert taken("--bucket", "two", "--queue-url", "https://given") == ("https://given", 70)
    with pytest.raises(UsageError, match=r"differ in sqs\.queue_url: clicks has 'https://two', visits has"):
        taken("--bucket", "two")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["orders", "--remove"], "need --events"),
        (["orders", "--by", "sns"], "need --events"),
        (["--events"], "needs the NAME of the source"),
        (["orders", "--events"], "needs the NAME of the source, and --bucket"),
        (["orders", "--events", "--bucket", "b", "--event-queue", "a.fifo"], "FIFO"),
    ],
)
def test_incomplete_or_wrong_options_are_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    ran = CliRunner().invoke(main, ["init", *arguments])
    assert ran.exit_code in (1, 2)
    assert said in ran.output
