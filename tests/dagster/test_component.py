"""Sources in YAML: loaded from a user's folder, several at a time."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from s3notify_platform import definitions
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.orchestration import S3NotifyComponent
from s3notify_platform.orchestration.resources import SlotSpark
from s3notify_platform.orchestration.ticks import with_requirements
from s3notify_platform.protocols.conditional_commit import LeaseSettings
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.site import Site

ORDERS = """
type: s3notify_platform.S3NotifyComponent
attributes:
  name: orders
  bucket: landing
  prefix: raw/orders/
  format: jsonl
  schema: "order_id bigint, amount decimal(12,2)"
  transform: my_sources.orders.code.clean
  slot_assets: [my_sources.orders.code.paid]
  owners: [ann@example.com, "team:sales"]
  s3:
    endpoint_url: http://127.0.0.1:1
    access_key_id_env: ORDERS_KEY
    secret_access_key_env: ORDERS_SECRET
  spark:
    config: {spark.driver.memory: 1g}
"""
CODE = """
from s3notify_platform import s3_slot_asset

def clean(orders):
    return orders

@s3_slot_asset(source="orders")
def paid(orders):
    "Paid ones."
    return orders
"""
CLICKS = """
type: s3notify_platform.S3NotifyComponent
attributes:
  name: clicks
  bucket: landing
  prefix: raw/clicks/
  slots: 100
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with two sources, one of them with code beside it."""
    found = tmp_path / "my_sources"
    for name, text in {"orders": ORDERS, "clicks": CLICKS}.items():
        (found / name).mkdir(parents=True)
        (found / name / "defs.yaml").write_text(text)
    (found / "orders" / "code.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return found


def test_a_component_resolves_from_yaml() -> None:
    """Every attribute must have its documented name."""
    found = S3NotifyComponent.resolve_from_yaml(
        dedent("""
        name: orders
        bucket: landing
        prefix: raw/
        schema: "id bigint"
        encoding: cp1252
        code_version: "1"
        slots: 10
        parallel_runs: 2
        max_open: 3
        s3: {region: eu-central-1}
        spark: {master: "spark://host:7077"}
        """)
    )
    assert (found.name, found.row_schema, found.slots, found.max_open) == ("orders", "id bigint", 10, 3)
    assert found.s3.region == "eu-central-1"
    assert found.code_version == "1"
    assert found.spark.master == "spark://host:7077"
    assert found.assets().io.source.location.keyspace_prefix == "_s3notify/orders/keyspace/"
    assert found.assets().io.source.input.encoding == "cp1252"


def test_tags_and_pool_reach_runs_and_steps() -> None:
    """Kubernetes' launcher needs the tags, and Dagster's queue needs the pool. So every job, every sensor and each step
    with Spark must have both.
    """
    pod = {"container_config": {"resources": {"limits": {"memory": "4Gi"}}}}
    found = S3NotifyComponent.resolve_from_yaml(
        dedent("""
        name: orders
        bucket: landing
        prefix: raw/
        http: {port: 8080}
        run_tags:
          team: sales
          dagster-k8s/config: {container_config: {resources: {limits: {memory: 4Gi}}}}
        op_tags: {cost: high}
        pool: spark
        """)
    ).definitions()
    jobs = [job for job in found.resolve_all_job_defs() if not job.name.startswith("__")]
    assert {job.name.removeprefix("orders_") for job in jobs} == {"ingest", "services"}
    for job in jobs:
        assert job.tags["team"] == "sales"
        assert json.loads(job.tags["dagster-k8s/config"]) == pod
    for name in ("orders_slots", "orders_checks"):
        step = found.resolve_implicit_global_asset_job_def().get_node_named(name).definition
        assert step.pools == {"spark"}
        assert step.tags["cost"] == "high"


class _Place(dg.ConfigurableResource):
    port: int = 3


class _OwnS3(S3Resource):
    place: _Place


def test_ticks_get_the_resources_that_a_resource_requires() -> None:
    """A resource may require another resource that is configured at launch, although no field of the first resource
    shows this requirement. Without the other resource, each tick of the source's sensor would fail.
    """
    place = _Place.configure_at_launch()
    lake = _OwnS3(place=place, endpoint_url="http://127.0.0.1:3")
    attributes = {"name": "orders", "bucket": "landing", "prefix": "raw/", "resources": {"s3": "lake"}}
    own = dg.Definitions(resources={"lake": lake, "place": place, "other": S3Resource()})
    repository = dg.Definitions.merge(S3NotifyComponent(**attributes).definitions(), own).get_repository_def()
    needed = with_requirements(repository.get_top_level_resources(), ["orders_slots"])
    assert {*needed} == {"orders_slots", "lake", "place"}
    with dg.build_resources(needed) as resources:
        assert resources.orders_slots.source.input.bucket.endpoint_url == "http://127.0.0.1:3"


def test_resources_have_the_source_s_name_and_may_be_replaced() -> None:
    """The project's own resources `spark` and `s3` can exist beside the source's resources. If the YAML names the
    project's resources, runs and sensors must use the project's resources.
    """
    attributes = {"name": "orders", "bucket": "landing", "prefix": "raw/"}
    own = {"spark": SlotSpark(), "s3": S3Resource(endpoint_url="http://127.0.0.1:2")}
    beside = S3NotifyComponent(**attributes, s3={"endpoint_url": "http://127.0.0.1:1"}).definitions()
    assert {*beside.resources} == {"orders_slots", "orders_spark", "orders_s3", "orders_dynamodb"}
    instead = S3NotifyComponent(**attributes, resources={"s3": "s3", "spark": "spark"}).definitions()
    assert {*instead.resources} == {"orders_slots", "orders_dynamodb"}
    for mine, port in ((beside, 1), (instead, 2)):
        merged = dg.Definitions.merge(mine, dg.Definitions(resources=own))
        job = merged.resolve_job_def("orders_ingest")
        assert ("s3notify/spark" in job.tags) == (port == 1), "a worker has no session of another resource"
        with dg.build_resources(job.resource_defs) as resources:
            assert resources.orders_slots.source.input.bucket.endpoint_url == f"http://127.0.0.1:{port}"
            assert (resources.orders_slots.spark is resources.spark) == (port == 2)
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match="required by resource with key 'orders_slots'"
    ):
        dg.Definitions.validate_loadable(instead)
    with pytest.raises(ValueError, match="only spark, s3 and dynamodb"):
        S3NotifyComponent(**attributes, resources={"duckdb": "x"}).definitions()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"schema": "id bigit"}, "schema 'id bigit' does not parse: there is no type 'bigit'"),
        ({"schema": "id"}, "give columns with their types"),
        ({"prefix": "/raw/"}, "prefix '/raw/'"),
        ({"bucket": "s3://landing"}, "bucket 's3://landing': give its name alone"),
        ({"s3": {"endpoint_url": "localhost:9000"}}, "endpoint 'localhost:9000': give its URL"),
        ({"sweep_cron": "daily"}, "invalid cron schedule 'daily'"),
        ({"transform": "nowhere.clean"}, "cannot import 'nowhere.clean'"),
        ({"fresh_seconds": 0}, "fresh_seconds"),
    ],
)
def test_wrong_attributes_are_refused_when_definitions_load(
    attributes: dict[str, object], reason: str
) -> None:
    """The error must come before any request."""
    with pytest.raises(Exception, match=re.escape(reason)):
        S3NotifyComponent(
            **{"name": "orders", "bucket": "landing", "prefix": "raw/"} | attributes
        ).definitions()


def test_dynamodb_tables_and_their_credentials_are_set_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAML names environment variables with the credentials. The variables must be looked up only on use. A YAML
    with the credentials themselves must be refused.
    """
    text = """
        name: orders
        bucket: landing
        prefix: raw/
        commit: dynamodb
        dynamodb:
          records_table: records
          lease_table: leases
          lease_timeout_seconds: 5
          lease_ttl_seconds: 600
          region: eu-central-1
          access_key_id_env: TABLES_KEY
          secret_access_key_env: TABLES_SECRET
        """
    component = S3NotifyComponent.resolve_from_yaml(dedent(text))
    assert component.dynamodb.lease_table == "leases"
    monkeypatch.setenv("TABLES_SECRET", "s3cr3t")
    with dg.build_resources({"io": component.assets().io}) as resources:
        source = resources.io.source
    assert (source.commit.choice, source.location.records_table.table) == ("dynamodb", "records")
    assert source.commit.leases == LeaseSettings(timeout_seconds=5.0, ttl_seconds=600.0)
    table = source.commit.lease_table
    assert (table.region, table.secret_access_key_env) == ("eu-central-1", "TABLES_SECRET")
    assert "s3cr3t" not in repr(source)
    with pytest.raises(Exception, match="secret_access_key"):
        S3NotifyComponent.resolve_from_yaml(dedent(text).replace("key_env", "key"))


def test_leases_need_a_table() -> None:
    """The error must come when the definitions are built, not in the first run."""
    with pytest.raises(UsageError, match="commit: dynamodb needs a lease_table"):
        S3NotifyComponent(name="orders", bucket="landing", prefix="raw/", commit="dynamodb").definitions()


def test_sources_of_a_folder_are_loaded_side_by_side(folder: Path) -> None:
    """All sources are in one code location. If two sources had an asset, a job, a sensor or a resource with the same
    name, Dagster could not load any source of the folder.
    """
    defs = definitions.load(folder)
    keys = {key.path[-1] for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {
        *("orders", "paid", "orders_summary", "orders_queue"),
        *("clicks", "clicks_summary", "clicks_queue"),
    }
    repository = defs.get_repository_def()
    assert {job.name for job in repository.get_all_jobs()} == {
        *("orders_ingest", "clicks_ingest", "__ASSET_JOB"),
        *(f"__anonymous_asset_job_{name}_upkeep" for name in ("orders", "clicks")),
    }
    assert {sensor.name for sensor in repository.sensor_defs} == {
        *("orders_sensor", "orders_slot_automation", "orders_upkeep"),
        *("clicks_sensor", "clicks_upkeep"),
    }
    assert set(repository.get_top_level_resources()) == {
        f"{source}_{part}" for source in ("orders", "clicks") for part in ("slots", "spark", "s3", "dynamodb")
    }
    graph = defs.resolve_asset_graph()
    assert {key.name for key in graph.asset_check_keys} == {
        *("complete", "chains_settled", "quarantine", "schema_changes"),
    }
    for source, slots in {"orders": 1000, "clicks": 100}.items():
        parts = graph.get(dg.AssetKey(source)).partitions_def
        assert isinstance(parts, dg.StaticPartitionsDefinition)
        assert len(parts.get_partition_keys()) == slots
    dg.Definitions.validate_loadable(defs)


def test_sources_of_a_folder_leave_each_other_s_objects_alone(folder: Path) -> None:
    """A source of the whole bucket must neither read nor report the platform objects of other sources in the bucket."""
    (folder / "whole").mkdir()
    whole = "type: s3notify_platform.S3NotifyComponent\nattributes: {name: whole, bucket: landing}\n"
    other = "{name: other, bucket: landing, prefix: in/, platform_prefix: own/, queue_prefix: q/}"
    (folder / "whole" / "defs.yaml").write_text(
        f"{whole}---\ntype: s3notify_platform.S3NotifyComponent\nattributes: {other}\n"
    )
    orders = folder / "orders" / "defs.yaml"
    orders.write_text(f"{orders.read_text()}  platform_prefix: of/orders/\n  platform_bucket: elsewhere\n")
    resources = definitions.load(folder).get_repository_def().get_top_level_resources()
    with dg.build_resources({"io": resources["whole_slots"]}) as built:
        source = built.io.source
    keys = ("own/records/1", "q/topics/1", "of/orders/records/1", "in/1")
    assert [key for key in keys if source.choice.covers(key)] == ["of/orders/records/1", "in/1"]
    assert {"own/", "q/"} <= {*source.own}


@pytest.mark.thorough
def test_sources_side_by_side_do_not_affect_each_other(site_of: Callable[..., Site]) -> None:
    """In one bucket and one instance, a batch of one source must not affect the other source."""
    orders = site_of(prefix="raw/orders/")
    clicks = site_of(name="clicks", prefix="raw/clicks/", bucket=orders.component.bucket)
    both = dg.Definitions.merge(orders.defs, clicks.defs)
    dg.Definitions.validate_loadable(both)
    orders.settle()
    clicks.settle()
    orders.write(3)
    clicks.write(3, body=clicks.line(300))
    (of_orders,) = orders.tick()
    (of_clicks,) = clicks.tick()
    assert of_orders.run_key != of_clicks.run_key
    assert orders.launch(of_orders).success
    clicks.tick()
    assert clicks.state.open
    assert clicks.launch(of_clicks).success
    assert orders.rows() == {3: [3]}
    assert clicks.rows() == {3: [300]}
    assert orders.grid()["materialized"] == clicks.grid()["materialized"] == {3}


def test_jobs_run_their_step_in_the_process_of_the_run(folder: Path) -> None:
    """If the step had a second process, that process would start Python and Spark's client again."""
    repository = definitions.load(folder).get_repository_def()
    for name in ("orders_ingest", "clicks_ingest"):
        assert repository.get_job(name).executor_def.name == "in_process"


@pytest.mark.parametrize(("running", "status"), [(True, "RUNNING"), (False, "STOPPED")])
def test_everything_starts_as_the_component_says(
    site_of: Callable[..., Site], running: bool, status: str
) -> None:
    """`running` must apply to sensor, automation and upkeep."""
    site = site_of(running=running, slot_assets=["tests.support.transforms.paid_orders"], deliver={})
    repository = site.defs.get_repository_def()
    assert {sensor.default_status.name for sensor in repository.sensor_defs} == {status}


def test_the_demo_s_definitions_load() -> None:
    defs = definitions.load(DEMO_FOLDER)
    dg.Definitions.validate_loadable(defs)
    assert dg.AssetKey("orders") in defs.resolve_asset_graph().get_all_asset_keys()


@pytest.mark.parametrize("folder", ["defs", ""])
def test_without_a_source_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """`workspace.yaml` must load an asset that says how to define a source, and no sensor that would write anywhere."""
    monkeypatch.delenv(DEFS_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    if folder:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, folder, raising=False)
    defs = definitions.defs()
    assert "defs/orders/defs.yaml" in defs.resolve_asset_graph().get(dg.AssetKey("no_source_yet")).description
    repository = defs.get_repository_def()
    assert not repository.sensor_defs
    assert not repository.schedule_defs


@pytest.mark.parametrize("name", ["not there", "missing"])
def test_a_folder_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    """The folder may be missing, or have a name that Python cannot import. Without the message, a user would
    not learn which folders `S3NOTIFY_DEFS` may name.
    """
    folder = tmp_path / name
    if name == "not there":
        folder.mkdir()
    with pytest.raises(UsageError, match="must be a folder, named like"):
        definitions.load(folder)


def test_all_fields_are_described() -> None:
    """Without a description, a user who writes the YAML would have to guess the meaning of a field. If a field had
    neither an example nor a default nor choices, the user would have to guess the form of the value.
    """
    model = S3NotifyComponent.get_model_cls()
    assert model is not None
    schema = model.model_json_schema()
    owners = {"": schema, **schema["$defs"]}
    fields = {
        f"{owner}.{name}": field
        for owner, found in owners.items()
        for name, field in found.get("properties", {}).items()
    }
    assert len(fields) > 70
    assert [name for name, field in fields.items() if not field.get("description")] == []
    plain = [
        name
        for name, field in fields.items()
        if field.get("default") in (None, "")
        and not {"enum", "$ref"} & field.keys()
        and "$defs" not in str(field)
        and " like " not in f" {field['description']}".replace("Like", "like").replace("like:", "like ")
        and '"' not in field["description"]
    ]
    assert plain == []
