"""YAML in the folder of a command is untrusted text: it is read, and nothing in it is run."""

import os
import time
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_DEFS_BYTES
from s3notify_platform.local.project import folders, sources_of

SECRET = "hunter2-of-the-environment"
SOURCE = "type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: orders\n  bucket: b\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PLAIN", SECRET)


def write(text, place="defs/orders/defs.yaml"):
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


HOSTILE = [
    "{{ env.__class__.__init__.__globals__['os'].system('touch ran') }}",
    "{{ env.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('touch ran').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ range(10**9) | list }}",
    "{% for n in range(10**9) %}{{ n }}{% endfor %}",
    "{% set x = 'a' * 10**10 %}{{ x }}",
    "{{ 'a' * 10**10 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ env.PLAIN.upper() }}",
    "{{ env.PLAIN | length }}",
    "{{ env.PLAIN ~ env.PLAIN }}",
    "{{ env['PLAIN'] }}",
    "{{ env(*['PLAIN']) }}",
    "{{ env(env.PLAIN) }}",
    "{{ env('NO_SUCH_VARIABLE') }}",
    "{{ env.AWS_SECRET_ACCESS_KEY }}",
    "{{ env('AWS_SECRET_ACCESS_KEY', 'x') }}",
    "{{ env('NO_SUCH', env.AWS_SECRET_ACCESS_KEY) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ unknown }}",
    "{{ env.PLAIN",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("command", [("status",), ("history", "orders", "--slot", "1"), ("explain", "raw/1")])
def test_hostile_expressions_are_refused(text, command):
    """The YAML may come from an untrusted person. If a command evaluated hostile expressions, the YAML could run
    programs, fill the memory, or show secrets. Without file, setting and remedy in the message, a user could not repair
    the YAML.
    """
    quoted = text.replace("'", "''")
    write(f"{SOURCE}  prefix: '{quoted}'\n")
    began = time.monotonic()
    ran = CliRunner().invoke(main, [*command])
    assert ran.exit_code == 1, ran.output
    assert "defs/orders/defs.yaml: prefix: " in ran.output
    assert "{{ env('NAME', default) }}" in ran.output
    assert SECRET not in ran.output
    assert not Path("ran").exists()
    assert time.monotonic() - began < 20


def test_lookups_of_variables_are_evaluated(monkeypatch):
    """Otherwise commands would refuse a YAML that Dagster accepts. A value that looks like a number becomes a number,
    because commands and Dagster would otherwise use different values.
    """
    monkeypatch.setenv("SLOTS", "16")
    write(
        SOURCE
        + dedent("""\
          prefix: "raw/{{ env.PLAIN }}/{{ env('NO_SUCH', 'x') }}/"
          slots: "{{ env('SLOTS') }}"
          list_seconds: "{{ env('NO_SUCH', env('SLOTS')) }}"
          s3: {endpoint_url: "{{ env('NO_SUCH', none) }}", region: "{{ env('NO_SUCH', 'eu-west-1') }}"}
        """)
        .replace("\n", "\n  ")
        .join(["  ", ""])
    )
    (source,) = sources_of()
    assert source.values["prefix"] == f"raw/{SECRET}/x/"
    assert (source.values["slots"], source.values["list_seconds"]) == (16, 16)
    assert "endpoint_url" not in source.values
    assert source.values["region"] == "eu-west-1"


PLAIN_NAMES = (
    "KMS_KEY_ID", "KMS_KEY", "LANDING_KMS_KEY_ARN", "KEY_FILE", "TLS_KEY_FILE", "KEYSPACE_PREFIX", "JSON_PATH",
)  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_variable_may_have_the_name_of_a_setting_that_is_no_secret(monkeypatch, name):
    """Otherwise all commands would refuse a YAML that Dagster accepts, because `kms_key_id` and `key_file` are
    settings.
    """
    monkeypatch.setenv(name, "x")
    write(f"{SOURCE}  s3: {{kms_key_id: '{{{{ env.{name} }}}}'}}\n")
    (source,) = sources_of()
    assert source.values["kms_key_id"] == "x"


SECRETS = (
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "ORDERS_KEY", "API_KEY_2", "API_KEY_ID", "KEY", "KMS_SECRET_KEY",
    "MINIO_PASSWORD", "DB_PASSWD", "AWS_SESSION_TOKEN", "DATABRICKS_PAT", "PAT_OF_BOB", "credentials",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_variable_with_the_name_of_a_secret_is_refused(monkeypatch, name):
    """Otherwise a command would print a secret, because settings are printed."""
    monkeypatch.setenv(name, SECRET)
    write(f"{SOURCE}  s3: {{kms_key_id: '{{{{ env.{name} }}}}'}}\n")
    (source,) = sources_of()
    with pytest.raises(UsageError, match=f"{name} is the name of a secret") as refusal:
        _ = source.values
    assert SECRET not in str(refusal.value)


def test_the_value_of_an_unknown_key_is_not_evaluated():
    """If a key of `S3Resource` has a secret as its value, the error must name the key, and must not show the secret."""
    write(
        f"{SOURCE}  s3: {{aws_secret_access_key: '{{{{ env.AWS_SECRET_ACCESS_KEY }}}}', region: eu-west-1}}\n"
    )
    with pytest.raises(UsageError, match=r"s3\.aws_secret_access_key: there is no such setting") as raised:
        sources_of()
    assert SECRET not in str(raised.value)


BOMB = "\n".join(
    [
        "a0: &a0 {x: 1}",
        *(f"a{n}: &a{n} {{{', '.join(f'k{m}: *a{n - 1}' for m in range(9))}}}" for n in range(1, 12)),
    ]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))]
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "after resolving aliases"),
        (MERGES, "after resolving aliases"),
        (SOURCE + "  spark: &a {config: {b: *a}}\n", "alias of itself"),
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 5000, "nested too deeply"),
        ("a: 2026-99-99\n", "month must be"),
        ("a: " + "x" * MAX_DEFS_BYTES, "split it"),
        ("a: !!python/object/apply:os.system ['touch ran']\n", "could not determine a constructor"),
        ("a: [", "while parsing"),
        ("\ud800".encode("utf-16", "surrogatepass"), "utf-8"),
    ],
)
def test_oversized_and_endless_files_are_refused(text, reason):
    """Otherwise a small file with aliases or deep nesting could use all memory."""
    file = write("")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.monotonic()
    with pytest.raises(UsageError, match=reason) as refusal:
        sources_of()
    assert "defs/orders/defs.yaml" in str(refusal.value)
    assert time.monotonic() - began < 20
    assert not Path("ran").exists()


def test_a_pipe_is_refused():
    """If a pipe were opened, the reading would never end."""
    Path("defs/orders").mkdir(parents=True)
    os.mkfifo("defs/orders/defs.yaml")
    with pytest.raises(UsageError, match="not a regular file"):
        sources_of()


def test_ordinary_aliases_are_read():
    write(
        "a: &s3 {region: eu-west-1}\n---\n"
        + SOURCE.replace("bucket: b", "bucket: &b b\n  platform_bucket: *b")
    )
    (source,) = sources_of()
    assert source.values["platform_bucket"] == "b"


def test_only_folders_of_the_current_project_are_read():
    """Folders of other projects must be read only with `--defs`, whether they are beside or inside the current
    project.
    """
    write(SOURCE, "downloads/defs/orders/defs.yaml")
    write(SOURCE, "src/shop/defs/orders/defs.yaml")
    assert folders() == [], "this folder is not a project"
    assert CliRunner().invoke(main, ["history", "orders", "--slot", "1"]).exit_code == 2
    assert len(sources_of("downloads/defs")) == 1
    write("", "pyproject.toml")
    assert folders() == [Path("src/shop/defs")]
    write("", "src/shop/pyproject.toml")
    assert folders() == [Path("downloads/defs")]
    write("", "downloads/pyproject.toml")
    assert folders() == []
    write(SOURCE)
    assert folders() == [Path("defs")]
