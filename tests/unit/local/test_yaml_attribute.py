"""A line is added to a source's YAML and removed again. The other lines stay unchanged."""

from pathlib import Path

import pytest
import yaml

from s3notify_platform.local.yaml_attribute import add_attribute, line_of, remove_attribute

VALUE = {"queue_url": "https://sqs.eu-central-1.amazonaws.com/123456789012/s3notify-orders-d62fcd94"}
LINE = line_of("sqs", VALUE)
PLAIN = """\
# defs/orders/defs.yaml
type: s3notify_platform.S3NotifyComponent
attributes:
  name: orders        # of the asset
  bucket: acme-landing
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "defs.yaml"


@pytest.mark.parametrize(
    ("text", "indent"),
    [
        (PLAIN, 2),
        (PLAIN.rstrip("\n"), 2),
        (f"{PLAIN}\n\n# the end\n", 2),
        (f"{PLAIN}  latest:\n    key: a\n    order_by: b   # the later one\n", 2),
        (f"{PLAIN}  slot_assets:\n    - a.b\n    - c.d\nrequirements:\n  env: [A]\n", 2),
        (f"{PLAIN}  description: |\n    of the shop\n\n    and more\n", 2),
        (f"{PLAIN}  schema: >-\n    a int,\n    b int\nrequirements: {{}}\n", 2),
        (f"{PLAIN}  s3: {{region: eu-central-1,\n    profile: x}}\n", 2),
        (f"type: dg.Other\nattributes: {{}}\n---\n{PLAIN}---\ntype: dg.Other\n", 2),
        (PLAIN.replace("  name", "      name").replace("  bucket", "      bucket"), 6),
        (PLAIN.replace("attributes:", "'attributes' :"), 2),
    ],
    ids=["plain", "no newline", "comment", "group", "list", "block", "folded", "flow", "documents", "indent", "quoted"],
)  # fmt: skip
def test_only_one_line_is_added_and_removed(file: Path, text: str, indent: int) -> None:
    file.write_text(text)
    file.chmod(0o640)
    assert add_attribute(file, "orders", "sqs", VALUE)
    added = file.read_text()
    (line,) = (set(added.splitlines()) - set(text.splitlines())) or {""}
    assert line == " " * indent + LINE
    assert "".join(each for each in added.splitlines(keepends=True) if each.strip() != LINE) == (
        text if text.endswith("\n") else f"{text}\n"
    )
    (mine,) = (one for one in yaml.safe_load_all(added) if one.get("attributes", {}).get("name") == "orders")
    assert mine["attributes"]["sqs"] == VALUE
    assert add_attribute(file, "orders", "sqs", VALUE), "adding it again succeeds"
    assert file.read_text() == added
    assert file.stat().st_mode & 0o777 == 0o640
    assert remove_attribute(file, "orders", "sqs", VALUE)
    assert file.read_text().rstrip("\n") == text.rstrip("\n")
    assert not [each for each in file.parent.iterdir() if each != file]


@pytest.mark.parametrize(
    "text",
    [
        "type: s3notify_platform.S3NotifyComponent\nattributes: {name: orders, bucket: b}\n",
        f"{PLAIN}  sqs: {{queue_url: another}}\n",
        f"{PLAIN}  sqs:\n",
        PLAIN.replace("orders", "clicks"),
        "[]\n",
        "",
    ],
    ids=["in one line", "another queue", "null", "another source", "no mapping", "empty"],
)
def test_a_file_that_a_person_must_edit_stays_unchanged(file: Path, text: str) -> None:
    file.write_text(text)
    assert not add_attribute(file, "orders", "sqs", VALUE)
    assert not remove_attribute(file, "orders", "sqs", VALUE)
    assert file.read_text() == text


def test_an_attribute_that_a_person_wrote_in_another_form_is_not_removed(file: Path) -> None:
    file.write_text(f"{PLAIN}  sqs:\n    queue_url: {VALUE['queue_url']}   # ours\n")
    assert add_attribute(file, "orders", "sqs", VALUE)
    assert not remove_attribute(file, "orders", "sqs", VALUE)


def test_a_symbolic_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "orders.yaml"
    real.write_text(PLAIN)
    file.symlink_to(real)
    assert add_attribute(file, "orders", "sqs", VALUE)
    assert file.is_symlink()
    assert LINE in real.read_text()
