"""`s3notify doctor`: its output and its exit code."""

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.cli.main import main
from s3notify_platform.local.dagster_versions import Versions
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.kinds import KINDS
from s3notify_platform.stores.open_store import open_store, queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.event_project import Project
from tests.support.intake_site import event
from tests.support.tables import create_lease_table, create_record_table
from tests.support.toy_inlet import TOY as TOY_INLET
from tests.support.toy_store import TOY, ToyStore


@pytest.fixture
def doctor(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return lambda *arguments: CliRunner().invoke(main, ["doctor", *arguments])


@pytest.mark.server
def test_a_good_store_is_accepted(doctor, ministack):
    """Otherwise a user would search for a fault in a store that the platform can use. The output names the commit mode,
    and the abilities that the store lacks.
    """
    bucket = ministack.make_bucket()
    result = doctor(
        "--bucket", bucket, "--endpoint-url", ministack.endpoint_url, "--platform-prefix", "scratch/"
    )
    assert result.exit_code == 0, result.output
    assert "commit: native (the store honours If-None-Match and If-Match on PUT)" in result.output
    assert "records: on the bucket" in result.output
    assert "copy_if_absent: a COPY onto an existing object was applied" in result.output


@pytest.mark.server
def test_no_line_of_doctor_is_wider_than_a_terminal(doctor, ministack, monkeypatch):
    """Otherwise the terminal would break names of buckets and tables, and nobody could copy them."""
    bucket = f"acme-landing-of-all-shops-{ministack.make_bucket()}"[:63].ljust(63, "x")
    S3ObjectStore(ministack.config(bucket)).client.create_bucket(Bucket=bucket)
    records, leases = ministack.table_config(), ministack.table_config()
    create_record_table(records)
    monkeypatch.setenv("COLUMNS", "80")
    place = ["orders", "--bucket", bucket, "--endpoint-url", ministack.endpoint_url]
    tables = ["--records-table", records.table, "--dynamodb-endpoint-url", ministack.endpoint_url]
    for more in (
        [],
        tables,
        [*tables, "--lease-table", f"{leases.table}-that-is-missing"],
        ["--committed-tags", "a=b"],
    ):
        lines = doctor(*place, *more).output.splitlines()
        assert [line for line in lines if len(line) > 80] == []
        assert any(bucket in line for line in lines)


@pytest.mark.server
def test_tags_of_committed_objects_need_versioning(doctor, ministack):
    """The user must learn before the first commit that versioning is missing, because a commit also succeeds without
    versioning.
    """
    bucket = ministack.make_bucket()
    options = [
        "--bucket",
        bucket,
        "--endpoint-url",
        ministack.endpoint_url,
        "--committed-tags",
        "archive=yes",
    ]
    result = doctor(*options)
    assert result.exit_code == 1, result.output
    assert "commit: native" in result.output
    assert "enable its versioning" in result.output
    store = S3ObjectStore(ministack.config(bucket))
    store.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert doctor(*options).exit_code == 0


@pytest.mark.server
def test_a_missing_bucket_is_named_with_the_remedy(doctor, ministack):
    result = doctor("--bucket", "no-such-bucket", "--endpoint-url", ministack.endpoint_url)
    assert result.exit_code == 1
    assert "no bucket 'no-such-bucket'" in result.output
    assert "create the bucket" in result.output


@pytest.fixture
def weak(ministack):
    """Arguments that name a bucket on a server which ignores the conditions of requests."""
    with FaultProxy(ministack.endpoint_url, drops_conditions=True) as proxy:
        yield ["--bucket", ministack.make_bucket(), "--endpoint-url", proxy.url]


@pytest.mark.server
def test_a_store_without_conditions_needs_tables(doctor, ministack, weak):
    """Otherwise `doctor` would accept a store on which concurrent commits overwrite each other. The output names the
    missing tables. With these tables, the store is accepted.
    """
    result = doctor(*weak)
    assert result.exit_code == 1
    assert "name a DynamoDB lease_table (for slot commits) and a records_table" in result.output
    records, leases = ministack.table_config(), ministack.table_config()
    tables = ["--records-table", records.table, "--lease-table", leases.table]
    tables += ["--dynamodb-endpoint-url", ministack.endpoint_url]

    missing = doctor(*weak, *tables)
    assert missing.exit_code == 1
    assert f"leases table {leases.table!r} does not exist: create it with `s3notify init`" in missing.output

    create_record_table(records)
    create_lease_table(leases)
    good = doctor(*weak, *tables)
    assert good.exit_code == 0, good.output
    assert "commit: dynamodb (this store lacks create-if-absent" in good.output
    assert f"records: table {records.table!r}" in good.output
    assert good.output.count("is correct") == 2

    swapped = doctor(*weak, "--records-table", leases.table, *tables[2:])
    assert swapped.exit_code == 1
    assert "has the keys path (S, HASH), etag (S, RANGE), not partition" in swapped.output


@pytest.mark.server
def test_a_user_may_choose_leases(doctor, ministack):
    """Leases must also work on a store that has conditional writes."""
    leases = ministack.table_config()
    create_lease_table(leases)
    good = ["--bucket", ministack.make_bucket(), "--endpoint-url", ministack.endpoint_url]
    lease_table = ["--lease-table", leases.table, "--dynamodb-endpoint-url", ministack.endpoint_url]
    assert "commit: native" in doctor(*good, *lease_table).output
    assert "commit: dynamodb (requested)" in doctor(*good, *lease_table, "--commit", "dynamodb").output
    as_text = doctor(*good, *lease_table[2:], "--commit", f"dynamo:{leases.table}:5000").output
    assert "commit: dynamodb (requested)" in as_text
    assert f"leases table {leases.table!r} is correct" in as_text


@pytest.mark.server
def test_native_commits_are_refused_without_conditions(doctor, weak):
    """The error must say what the store lacks."""
    result = doctor(*weak, "--commit", "native")
    assert result.exit_code == 1
    assert "native commits need" in result.output


def test_an_endpoint_without_a_server_is_named(doctor):
    result = doctor("--bucket", "some-bucket", "--endpoint-url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9 is unavailable" in result.output


def test_the_main_help_lists_doctor():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "doctor" in result.output


@pytest.mark.server
def test_a_topic_of_another_deployment_is_refused(doctor, ministack):
    """Otherwise two deployments would read one topic, and each change would reach only one of their tables. The output
    names the setting that gives the source its own topic.
    """
    bucket = ministack.make_bucket()
    queue = NotificationQueue(queue_records(ministack.config(bucket)))
    queue.topics.create("orders", TopicSettings(slots=40), tables=("prod",))
    place = ["orders", "--bucket", bucket, "--endpoint-url", ministack.endpoint_url]
    found = doctor(*place, "--slot-count", "40")
    assert found.exit_code == 1, found.output
    assert "topic 'orders' serves table prod" in found.output
    assert "queue_prefix" in found.output
    assert "has 40 slots, but its source has 1000" in doctor(*place).output
    assert doctor(*place, "--queue-prefix", "_s3notify/dev/queue/").exit_code == 0


def test_missing_credentials_give_one_line_of_output(doctor, monkeypatch, tmp_path):
    """Otherwise the user would see a traceback, without advice on how to give credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # Other tests of this process use bucket `b` with keys, and an opened store stays open.
    result = doctor("--bucket", "without-keys", "--endpoint-url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "Error: no credentials for bucket 'without-keys' at http://127.0.0.1:9: name environment"
    )


@pytest.mark.server
@pytest.mark.parametrize("refused", [False, True])
def test_versions_that_do_not_fit_each_other_are_reported(doctor, ministack, monkeypatch, refused):
    """Otherwise a user would not know which command installs versions that fit. If the package's Dagster part does not
    load, exit code 0 would let a script start a deployment that cannot run.
    """
    found = Versions(
        problem="dagster 1.14.0 is installed. Type: pip install dagster==1.13.27", refused=refused
    )
    monkeypatch.setattr("s3notify_platform.local.dagster_versions.installed_versions", lambda: found)
    result = doctor("--bucket", ministack.make_bucket(), "--endpoint-url", ministack.endpoint_url)
    assert f"versions: {found.problem}" in result.output
    assert result.exit_code == refused


BUCKET = "toys-of-the-doctor"


def test_doctor_examines_another_kind_of_store(doctor, monkeypatch, tmp_path):
    """If `doctor` did not get its store from `open_store`, a new kind of store would need changes in `doctor`, too.
    Such a kind consists only of a file and an entry in `KINDS`.
    """
    monkeypatch.setitem(KINDS, "toy", TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    (tmp_path / "defs" / "orders").mkdir(parents=True)
    (tmp_path / "defs" / "orders" / "defs.yaml").write_text(
        f"attributes: {{name: orders, bucket: {BUCKET}, prefix: raw/, s3: {{scheme: toy}}}}\n"
    )
    result = doctor("orders", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["bucket"], found["endpoint"], found["commit"]) == (BUCKET, f"toy://{BUCKET}/", "native")
    store = open_store(S3Config(bucket=BUCKET, scheme="toy"))
    assert isinstance(store, ToyStore)
    assert not store.list("", limit=1).objects, "the probe's objects are deleted again"


@pytest.mark.server
def test_doctor_judges_another_inlet_by_the_newest_object(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise doctor would report that the YAML has no inlet, or would report a failure. Only people know which
    buckets send their changes to the inlet's service.
    """
    monkeypatch.setitem(SERVICES, TOY_INLET.name, TOY_INLET)
    project.write("  toy: {queue_name: changes}\n")
    unknown = project.run("doctor", "orders")
    assert unknown.exit_code == 0, unknown.output
    (line,) = (line for line in unknown.output.splitlines() if line.startswith("events:"))
    assert line.startswith("events: the YAML has inlet 'toy'; no probe was written, since ")
    assert line.endswith(", and the bucket has no object to judge by")
    project.client("s3").put_object(Bucket=project.bucket, Key="raw/orders/1.jsonl", Body=b"{}\n")
    missed = project.run("doctor", "orders")
    assert "'raw/orders/1.jsonl', was not announced: write an object" in missed.output
    assert missed.exit_code == 1, "otherwise a script would count lost events as fine"
    assert json.loads(project.run("doctor", "orders", "--json").stdout)["events"]["fine"] is False
    assert project.run("signal", "raw/orders/1.jsonl").exit_code == 0
    announced = project.run("doctor", "orders")
    assert re.search(
        r"events: they arrive: the newest object, .* was announced after \d+ s", announced.output
    )
    assert announced.exit_code == 0, announced.output


@pytest.mark.server
def test_doctor_finds_an_inlet_with_default_settings(project: Project) -> None:
    """Otherwise doctor would say that the YAML has no inlet, although Dagster runs this inlet."""
    project.write("  http: {}\n")
    answer = project.run("doctor", "orders")
    assert answer.exit_code == 1, answer.output
    assert "is missing: `s3notify init orders --events --receiver URL` makes it" in answer.output


@pytest.mark.server
def test_doctor_probes_the_inlet_that_another_source_shares(project: Project) -> None:
    """Otherwise doctor would advise to set up events that arrive already. A source has no events if the bucket
    announces none of its changes. A source with another queue shares no inlet.
    """
    assert project.init("--yes").exit_code == 0
    s3 = project.client("s3")
    (note,) = project.notifications()["QueueConfigurations"]
    second = project.file.parent.with_name("clicks") / "defs.yaml"
    second.parent.mkdir()
    text = re.sub(r" sqs: .*", "", project.file.read_text()).replace("orders", "clicks")
    with project.inlet():
        second.write_text(text)
        answer = project.run("doctor", "clicks")
        assert answer.exit_code == 0, answer.output
        assert "events: not set up; `s3notify init clicks --events`" in answer.output
        rules = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "raw/clicks/"}]}}
        notes = {"QueueConfigurations": [note, note | {"Id": "clicks", "Filter": rules}]}
        s3.put_bucket_notification_configuration(Bucket=project.bucket, NotificationConfiguration=notes)
        answer = project.run("doctor", "clicks")
        assert answer.exit_code == 0, answer.output
        assert re.search(r"events: they arrive, \d+\.\d s after a write", answer.output), answer.output
    second.write_text(f"{text}  queue_prefix: _s3notify/other/\n")
    assert "events: not set up" in project.run("doctor", "clicks").output


@pytest.mark.server
def test_doctor_names_topics_that_no_source_of_the_project_reads(project: Project) -> None:
    """Otherwise the topic of a renamed source would fill up, and then refuse all writers of its keys. Other projects
    may use the bucket, so such a topic is no error.
    """
    config = project.server.config(project.bucket)
    queue = NotificationQueue(queue_records(config))
    topics = queue.topics
    ours = TopicSettings(bucket=project.bucket, prefix="raw/orders/", slots=4)
    hook = Endpoint(url="http://127.0.0.1:9/").dumps()
    topics.create("orders", ours)
    topics.create("pushed", replace(ours, endpoint=hook))
    topics.create("of-others", replace(ours, bucket="another-bucket"))
    assert json.loads(project.run("doctor", "orders", "--json").stdout)["notes"] == []
    topics.create("former", ours, tables=("former-table",))
    queue.push("former", event("raw/orders/1.jsonl"))
    ran = project.run("doctor", "orders")
    assert ran.exit_code == 0, ran.output
    (note,) = json.loads(project.run("doctor", "orders", "--json").stdout)["notes"]
    assert note in " ".join(ran.output.split())
    assert note.startswith(
        "topic 'former' has 1 of 10,000 entries, and no source of this project has its name"
    )
    (advice,) = re.findall(r"`s3notify (.*?)`", note)
    assert project.run(*advice.split(), "--yes").exit_code == 0
    assert [topic.name for topic in topics.all()] == ["of-others", "orders", "pushed"]


@pytest.mark.server
def test_doctor_names_the_settings_in_which_the_topic_differs(project: Project) -> None:
    """Otherwise a user would not know why the rows of some objects come late. When the YAML changes, the
    topic keeps its former settings. Objects that the former settings exclude then wait for the sweep.
    """
    topics = NotificationQueue(queue_records(project.server.config(project.bucket))).topics
    topics.create("orders", TopicSettings(bucket=project.bucket, prefix="raw/orders/eu/", slots=4))
    (note,) = json.loads(project.run("doctor", "orders", "--json").stdout)["notes"]
    assert note.startswith(
        "topic 'orders' exists with other settings: prefix is 'raw/orders/eu/', not 'raw/orders/'; "
    )
