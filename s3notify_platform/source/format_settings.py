"""The settings of how records are written, how columns are named, and what rows must hold; see `settings`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, kw_only=True)
class FormatSettings:
    """How records are separated and their values written, and how the rows made of them are named and must be."""

    csv_delimiter: Annotated[
        str,
        About("Character between the values of CSV, like ; or \\t; default: a comma, in .tsv objects a tab"),
    ] = ""
    csv_quote: Annotated[str, About("Character around values of CSV that need it, or none")] = '"'
    csv_escape: Annotated[
        str, About("Character before a quote or delimiter in a CSV value, like \\; empty: quotes are doubled")
    ] = ""
    csv_comment: Annotated[
        str,
        About("Lines of CSV that begin with this character, like #, are no records; empty: there are none"),
    ] = ""
    csv_skip_lines: Annotated[
        int, About("Lines of a CSV object before its header or first record", unit="lines", minimum=0)
    ] = 0
    csv_names: Annotated[
        str,
        About(
            "Columns of CSV objects without a header, separated as their values, like id,amount; empty: they have one"
        ),
    ] = ""
    csv_nulls: Annotated[
        str,
        About("Texts that are null in CSV columns but strings, like NULL|-; default: NULL|null|NA|N/A|n/a"),
    ] = ""
    json_path: Annotated[
        str, About("Where the records of a JSON document are, like data.items; empty: the document itself")
    ] = ""
    column_names: Annotated[
        Literal["as_is", "safe"],
        About(
            "Names of new columns: as they are in the objects; or safe, of letters, digits and _, so that order id is "
            "order_id for the table, its transform, and all settings but schema, schema_hints and those of notation. "
            "Engines without Delta's column mapping read no table whose columns have a space or one of ,;{}()= in "
            "their names"
        ),
    ] = "as_is"
    date_format: Annotated[
        str,
        About(
            "How dates are written in CSV and JSON, in Java's letters, and in columns of their own, like "
            "dd.MM.yyyy|born=yyyyMMdd|order.day=d/M/yy; default: 2026-01-31. Letters: y M d H h m s S a X x Z, "
            "'text', [optional]"
        ),
    ] = ""
    timestamp_format: Annotated[
        str,
        About(
            "The same of timestamps, like dd.MM.yyyy HH:mm[:ss]|ordered=yyyy-MM-dd'T'HH:mm:ss.SSSXXX; default: "
            "2026-01-31T12:00:00.5Z, with or without zone"
        ),
    ] = ""
    time_zone: Annotated[
        str,
        About(
            "Zone of timestamps in CSV and JSON that have none, like Europe/Berlin: of a time that its clocks show "
            "twice, the first; one that they never show does not fit; default: UTC"
        ),
    ] = ""
    decimal_comma: Annotated[
        str,
        About(
            'Decimal and floating point columns of CSV, and such texts in JSON, in which "1.234,56" is 1234.56, like '
            "amount|price, or all"
        ),
    ] = ""
    payload_column: Annotated[
        str,
        About(
            "Column with the record that a row is from, as it stands in the object, like payload; null for objects of "
            "other formats than csv, tsv, jsonl, json, text"
        ),
    ] = ""
    expect: Annotated[
        str,
        About(
            'Rules of rows before the transform, in SQL, like "amount >= 0" or "positive: amount >= 0; known: region '
            'is not null". A row that breaks one goes to quarantine with the name of the rule; one of which it is '
            "null stays. There are = != < <= > >=, and, or, not, is [not] null, in, between, like"
        ),
    ] = ""
    expect_warn: Annotated[
        str,
        About(
            "Rules, as those of expect, whose breaches are counted in the batch's results, like region is not null; "
            "the rows stay"
        ),
    ] = ""
