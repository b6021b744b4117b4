"""Schema, protocol and properties of the table, and changes of them that are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.delta.actions import LogVersion, MetaData, Protocol
from s3notify_platform.table.delta.metadata import DeltaSchema, delta_schema, objections, raised


def spark_schema(**columns: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": False, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


PLAIN = spark_schema(id="long", amount="decimal(12,2)")
BASE = ("appendOnly", "invariants")


class TestSchema:
    def test_lineage_comes_first_and_all_columns_may_be_null(self) -> None:
        """Otherwise readers would not find the lineage columns, or would not see their descriptions."""
        found = json.loads(delta_schema(PLAIN).schema)["fields"]
        assert [(each["name"], each["type"]) for each in found] == [
            ("_slot", "integer"),
            ("_key", "string"),
            ("_etag", "string"),
            ("_offset", "long"),
            ("id", "long"),
            ("amount", "decimal(12,2)"),
        ]
        assert all(each["nullable"] for each in found)
        assert found[0]["metadata"]["comment"]
        assert json.loads(delta_schema(None).schema)["fields"] == found[:4]

    @pytest.mark.parametrize(
        ("columns", "vectors", "protocol"),
        [
            ({}, False, Protocol()),
            ({"a b": "long"}, False, Protocol(reader=2, writer=5)),
            (
                {"at": "timestamp_ntz"},
                False,
                Protocol(
                    reader=3,
                    writer=7,
                    reader_features=("timestampNtz",),
                    writer_features=(*BASE, "timestampNtz"),
                ),
            ),
            (
                {"a": {"type": "struct", "fields": [{"name": "x y", "type": "date"}]}},
                True,
                Protocol(
                    reader=3,
                    writer=7,
                    reader_features=("columnMapping", "deletionVectors"),
                    writer_features=("appendOnly", "columnMapping", "deletionVectors", "invariants"),
                ),
            ),
        ],
    )
    def test_protocol_requires_only_needed_features(
        self, columns: dict[str, Any], vectors: bool, protocol: Protocol
    ) -> None:
        """Otherwise engines that could read a table would refuse it."""
        found = delta_schema(spark_schema(**columns), vectors=vectors)
        assert found.protocol == protocol
        assert found.properties.get("delta.enableDeletionVectors") == ("true" if vectors else None)
        assert ("delta.columnMapping.mode" in found.properties) == (
            "Mapping" in str(protocol) or protocol.reader == 2
        )
        assert "delta.setTransactionRetentionDuration" not in found.properties

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"_KEY": "string"}, "column '_KEY': the table already has '_key'"),
            ({"a": "long", "A": "long"}, "column 'A': the table already has 'a'"),
            ({"a": "interval"}, "column 'a': Delta has no type interval"),
            ({"a": {"type": "array", "elementType": "void"}}, "column 'a.element': Delta has no type void"),
            (
                {"a": {"type": "struct", "fields": [{"name": "x", "type": "void"}]}},
                r"'a\.x': Delta has no type void",
            ),
            ({"a": {"type": "udt", "class": "x"}}, "no type udt"),
            ({"a": "variant"}, "column 'a': Delta has no type variant"),
        ],
    )
    def test_column_that_delta_cannot_have_is_named(self, columns: dict[str, Any], message: str) -> None:
        """Otherwise the user would not learn which column must be cast or renamed."""
        with pytest.raises(UsageError, match=message):
            delta_schema(spark_schema(**columns))

    @pytest.mark.parametrize("name", ["amount", "the amount"])
    def test_comments_of_the_user_stay(self, name: str) -> None:
        """Otherwise comments in the user's DDL would be lost in nested fields, or in columns with mapped names."""
        told = {"nullable": True, "metadata": {"comment": "Before tax"}}
        inner = {"type": "struct", "fields": [{"name": "net", "type": "double", **told}]}
        columns = [{"name": name, "type": inner, **told}]
        found = delta_schema(json.dumps({"type": "struct", "fields": columns}))
        outer = json.loads(found.schema)["fields"][-1]
        for column in (outer, outer["type"]["fields"][0]):
            assert column["metadata"]["comment"] == "Before tax"

    def test_ids_of_mapped_columns_stay(self) -> None:
        """Otherwise engines would read wrong columns after the schema grew."""

        def ids(found: DeltaSchema) -> dict[str, int]:
            fields = json.loads(found.schema)["fields"]
            return {each["name"]: each["metadata"]["delta.columnMapping.id"] for each in fields}

        few, many = (
            ids(delta_schema(spark_schema(**dict.fromkeys(names, "long"))))
            for names in (["a b"], ["x", "a b", "y"])
        )
        assert few.items() <= many.items()
        assert len({*many.values()}) == len(many)


PROTOCOLS = [
    delta_schema(spark_schema(**columns), vectors=vectors).protocol
    for columns in ({}, {"a b": "long"}, {"t": "timestamp_ntz"})
    for vectors in (False, True)
]


class TestRaised:
    @pytest.mark.parametrize("wanted", PROTOCOLS)
    @pytest.mark.parametrize("known", PROTOCOLS)
    def test_raised_protocol_includes_both_protocols(self, known: Protocol, wanted: Protocol) -> None:
        """Otherwise a table would lose a feature that its files need, or its protocol would depend on the order of the
        changes.
        """
        found = raised(known, wanted)
        assert found == raised(wanted, known)
        assert raised(found, wanted) == found == raised(found, known)
        assert found.reader >= max(known.reader, wanted.reader)
        assert {*found.reader_features} >= {*known.reader_features, *wanted.reader_features}
        if 2 in (known.reader, wanted.reader) and found.reader == 3:
            assert "columnMapping" in found.reader_features
            assert {*found.writer_features} >= {"columnMapping", "checkConstraints", "generatedColumns"}
        assert (found.reader == 3) == (found.writer == 7)

    def test_first_protocol_is_used_unchanged(self) -> None:
        assert raised(None, Protocol()) == Protocol()


class TestObjections:
    SCHEMA = delta_schema(PLAIN)
    METADATA = MetaData(
        id="t", schema=SCHEMA.schema, created_ms=1, configuration=SCHEMA.properties, name="orders"
    )

    def found(self, protocol: Protocol | None = None, **changes: Any) -> list[str]:
        metadata = replace(self.METADATA, **changes) if changes else None
        version = LogVersion(metadata=metadata, protocol=protocol)
        return objections(version, metadata=self.METADATA, protocol=self.SCHEMA.protocol)

    def properties(self, **changes: str) -> list[str]:
        changed = {f"delta.{name.replace('__', '.')}": value for name, value in changes.items()}
        return self.found(configuration=dict(self.METADATA.configuration) | changed)

    def test_harmless_changes_are_accepted(self) -> None:
        """Otherwise a table would be refused after another engine changed a comment or a tuning property."""
        assert self.found() == []
        assert self.found(self.SCHEMA.protocol, id="t") == []
        assert self.found(name="other", description="d", created_ms=9) == []
        assert self.found(configuration={**self.METADATA.configuration, "owner": "me"}) == []
        assert self.properties(checkpointInterval="10", logRetentionDuration="interval 1 day") == []
        commented = json.loads(self.METADATA.schema)
        commented["fields"][-1]["metadata"]["comment"] = "in EUR"
        assert self.found(schema=json.dumps(commented, indent=1)) == []

    def test_changed_protocol_is_refused(self) -> None:
        """Otherwise readers and writers would accept a version in which another engine raises or lowers the
        protocol.
        """
        (found,) = self.found(Protocol(reader=3, writer=7, writer_features=("rowTracking",)))
        assert found == "it changes the protocol from reader 1, writer 2 to reader 3, writer 7 (rowTracking)"

    def test_changed_id_partitions_and_columns_are_refused(self) -> None:
        """Otherwise another engine could change the id, the partitions or the columns of the table."""
        fields = json.loads(self.METADATA.schema)["fields"]
        other = [each | {"nullable": False} if each["name"] == "id" else each for each in fields[:-1]]
        added = {"name": "new", "type": "long", "nullable": True, "metadata": {}}
        assert self.found(
            id="u",
            partition_columns=("_slot",),
            schema=json.dumps({"type": "struct", "fields": [*other, added]}),
        ) == [
            "it changes the table's id from 't' to 'u'",
            "it partitions the table by _slot",
            "it drops the column 'amount'",
            "it adds the column 'new'",
            "it changes the column 'id'",
        ]
        (found,) = self.found(schema="{")
        assert "cannot be read" in found

    def test_properties_that_bind_writers_are_refused(self) -> None:
        """Otherwise another engine could set constraints that the platform ignores, or delete needed files."""
        assert self.properties(
            constraints__positive="amount > 0",
            appendOnly="true",
            setTransactionRetentionDuration="interval 1 day",
            deletedFileRetentionDuration="interval 1 day",
        ) == [
            "it sets delta.appendOnly to 'true'",
            "it adds the constraint positive: amount > 0",
            "it sets delta.deletedFileRetentionDuration to 'interval 1 day', which was 'interval 5200 weeks'",
            "it sets delta.setTransactionRetentionDuration, after which engines forget the table's manifest",
        ]
        assert self.found(configuration={}) == [
            "it unsets delta.deletedFileRetentionDuration, which was 'interval 5200 weeks'",
            "it unsets delta.enableExpiredLogCleanup, which was 'false'",
        ]
