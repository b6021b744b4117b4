"""Settings of record formats, column names and row rules; see `settings`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, kw_only=True)
class FormatSettings:
    """Separators of records, notation of values, names of columns, and rules for rows."""

    csv_delimiter: Annotated[
        str,
        About(
            "Character between the values of CSV, like ; or \\t; default: a comma, or a tab in .tsv objects"
        ),
    ] = ""
    csv_quote: Annotated[
        str, About("Character around quoted values of CSV; empty: values are never quoted")
    ] = '"'
    csv_escape: Annotated[
        str, About("Character before a quote or delimiter in a CSV value, like \\; empty: quotes are doubled")
    ] = ""
    csv_comment: Annotated[
        str,
        About("Character that begins comment lines of CSV, like #; empty: there are no comment lines"),
    ] = ""
    csv_skip_lines: Annotated[
        int, About("Lines of a CSV object to skip before its header or first record", unit="lines", minimum=0)
    ] = 0
    csv_names: Annotated[
        str,
        About(
            "Columns of CSV objects without a header, separated like the values in the objects, like id,amount; "
            "empty: the objects have a header"
        ),
    ] = ""
    csv_nulls: Annotated[
        str,
        About(
            "Texts that are read as null in CSV columns other than strings, like NULL|-; default: "
            "NULL|null|NA|N/A|n/a"
        ),
    ] = ""
    json_path: Annotated[
        str, About("Path to the records in a JSON document, like data.items; empty: the document itself")
    ] = ""
    column_names: Annotated[
        Literal["as_is", "safe"],
        About(
            "Names of new columns: as_is keeps the names in the objects; safe uses only letters, digits and _, so "
            "that order id becomes order_id in the table, the transform and all settings except schema, "
            "schema_hints, date_format, timestamp_format, time_zone and decimal_comma. Engines without Delta's column "
            "mapping cannot read a table if a column name contains a space or one of ,;{}()="
        ),
    ] = "as_is"
    date_format: Annotated[
        str,
        About(
            "Format of dates in CSV and JSON as a Java pattern, also for single columns, like "
            "dd.MM.yyyy|born=yyyyMMdd|order.day=d/M/yy; default: 2026-01-31. Letters: y M d H h m s S a X x Z, "
            "'text', [optional]"
        ),
    ] = ""
    timestamp_format: Annotated[
        str,
        About(
            "Format of timestamps, written as in date_format, like dd.MM.yyyy "
            "HH:mm[:ss]|ordered=yyyy-MM-dd'T'HH:mm:ss.SSSXXX; default: 2026-01-31T12:00:00.5Z, with or without "
            "zone"
        ),
    ] = ""
    time_zone: Annotated[
        str,
        About(
            "Zone of timestamps in CSV and JSON that name no zone, also for single columns, like "
            "Europe/Berlin|ordered=UTC. A local time that occurs twice is read as the first of the two; a local "
            "time that never occurs does not fit its column; default: UTC"
        ),
    ] = ""
    decimal_comma: Annotated[
        str,
        About(
            "Decimal and floating point columns in which CSV values and JSON texts use a decimal comma "
            '("1.234,56" is 1234.56), like amount|price, or all'
        ),
    ] = ""
    payload_column: Annotated[
        str,
        About(
            "Column for the raw record of each row, like payload; null for objects of the formats parquet, avro, "
            "orc, binary"
        ),
    ] = ""
    expect: Annotated[
        str,
        About(
            'SQL rules for rows before the transform, like "amount >= 0" or "positive: amount >= 0; known: region '
            "is not null\". A row that breaks a rule goes to quarantine with the rule's name; a row for which a "
            "rule is null stays. Operators: = != < <= > >=, and, or, not, is [not] null, in, between, like"
        ),
    ] = ""
    expect_warn: Annotated[
        str,
        About(
            "Rules that only warn, written as in expect, like region is not null: the rows stay, and Dagster's check "
            "schema_changes names the broken rules with the numbers of rows"
        ),
    ] = ""
