"""Records that a quick check suspects are converted one by one, with the same result as without the check."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats import records
from s3notify_platform.formats import row_conversion as conversion
from s3notify_platform.formats.csv.csv_cut import STANDARD
from s3notify_platform.formats.csv.csv_format import CsvRecords
from s3notify_platform.formats.json.jsonl import JsonLines
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.formats.text_values import most_values
from tests.support.parsing import take

SCHEMA = pa.schema(
    [
        ("i", pa.int8()),
        ("f", pa.float32()),
        ("d", pa.decimal128(6, 2)),
        ("t", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("l", pa.list_(pa.struct([("x", pa.int64()), ("l", pa.list_(pa.date32()))]))),
    ]
)
TEXTS = [
    "",
    "1",
    " 1",
    "-1 ",
    "+1",
    "007",
    "127",
    "128",
    "0x1F",
    "1.0",
    "1.",
    ".5",
    "1e3",
    "1e39",
    "NaN",
    "-inf",
    "Infinity",
    "true",
    "FALSE",
    "tRue",
    "10000",
    "1.555",
    "2024-02-29",
    "2024-02-30",
    "2024-13-01",
    " 2024-01-01",
    "2024-05-06T07:08:09Z",
    "2024-05-06 07",
    "2024-05-06T07:08",
    "2024-05-06T0708",
    "2024-05-06T07:08:09.123456789+02:00",
    "2024-05-06T24:00:00",
    "yesterday",
    "ü",
    "a b",
]
JSON = [
    *(f'"{text}"' for text in TEXTS),
    "0",
    "-0",
    "1",
    "127",
    "128",
    "1.0",
    "1e2",
    "1.555",
    "10000",
    "1e39",
    "1e999",
    "NaN",
    "Infinity",
    "-Inf",
    "true",
    "null",
    "[]",
    "{}",
    "[null]",
    '[{"x":1,"l":["2024-01-01"]}]',
    '[{"x":"1"},{"l":[1,"2024-01-01"]}]',
    '[{"y":1}]',
    '[{"x":1,"x":2}]',
    "[" * 40 + "]" * 40,
    '"\\ud800"',
    '"\\u0032024-01-01"',
    "tru",
    "01",
    '"\x01"',
]

json_lines = st.one_of(
    st.builds(
        lambda names, values: (
            "{" + ",".join(f'"{name}": {value}' for name, value in zip(names, values, strict=False)) + "}"
        ),
        st.lists(st.sampled_from([*SCHEMA.names, "new", "i"]), max_size=3),
        st.lists(st.sampled_from(JSON), min_size=3, max_size=3),
    ).map(str.encode),
    st.sampled_from([b"bad", b"null", b"[]", b'{"s":"\xff"}', b"{} {}", b'{"s":"']),
)
csv_lines = st.one_of(
    st.lists(st.sampled_from(TEXTS), min_size=6, max_size=9).map(lambda values: ",".join(values).encode()),
    st.lists(st.sampled_from(TEXTS), min_size=8, max_size=8).map(lambda values: ",".join(values).encode()),
    st.sampled_from([b'"1",,,,,,"a\nb",', b'1,,,,,,"a"b,', b",,,,,,\xff,", b'"', b"1\r,,,,,,,"]),
)


def outcome(body: bytes, fmt: str, mismatches: str, *, inferred: bool) -> tuple[Any, Any]:
    """Returns the rows and the rejects. The rows are texts, so that NaN equals NaN."""
    rows, rejects = take([body], SCHEMA, fmt, mismatches=mismatches, inferred=inferred)
    return [repr(row) for row in rows], rejects


@given(
    st.sampled_from(["jsonl", "csv"]).flatmap(
        lambda fmt: st.tuples(
            st.just(fmt), st.lists(json_lines if fmt == "jsonl" else csv_lines, min_size=3, max_size=40)
        )
    ),
    st.sampled_from(["quarantine", "rescue"]),
    st.booleans(),
)
def test_suspects_give_the_same_result_as_without_the_check(
    lines: tuple[str, list[bytes]], mismatches: str, inferred: bool
) -> None:
    """Without the check, bad records are found by halving the block. Rows, rejects and reasons must be the same."""
    fmt, made = lines
    body = b"".join(
        line + b"\n" for line in ([] if fmt == "jsonl" else [",".join(SCHEMA.names).encode()]) + made
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "RECOVER_RECORDS", 2)
        found = outcome(body, fmt, mismatches, inferred=inferred)
        for parser in (JsonLines, CsvRecords):
            patch.setattr(parser, "convert_most", parser.convert)
        assert outcome(body, fmt, mismatches, inferred=inferred) == found


@pytest.mark.parametrize(
    ("fmt", "line", "bad"),
    [
        ("jsonl", b'{"i": %d, "l": [{"x": %d}]}\n', [b'{"i": "n/a"}\n', b'{"l": [{"x": true}]}\n', b"bad\n"]),
        ("csv", b"%d,%d.5,,,,,,\n", [b"x1,,,,,,,\n", b",,,yesterday,,,,\n", b"1\n", b'"1"x,,,,,,,\n']),
    ],
)
def test_bad_records_do_not_slow_down_the_others(
    fmt: str, line: bytes, bad: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that fit are converted at most twice. Otherwise scattered bad records would halve a block again and
    again, and an object with 1 bad record in 100 would take several times as long to load.
    """
    converted: list[int] = []
    parser: Any = JsonLines if fmt == "jsonl" else CsvRecords
    convert = parser.convert

    def counting(self: Any, part: records.Records) -> records.Converted:
        converted.append(len(part.start))
        found: records.Converted = convert(self, part)
        return found

    monkeypatch.setattr(parser, "convert", counting)
    many = [line % (n % 100, n) for n in range(5000)]
    for place, one in enumerate(bad * 20):
        many[place * 53 + 7] = one
    header = b"" if fmt == "jsonl" else ",".join(SCHEMA.names).encode() + b"\n"
    body = header + b"".join(many)
    rows, rejects = take([body], SCHEMA, fmt)
    assert (len(rows), len(rejects)) == (5000 - len(bad) * 20, len(bad) * 20)
    assert sum(converted) <= 2 * 5000
    for parsed in FORMATS[fmt].parse([("k", body)], Target(schema=SCHEMA)):
        assert (np.diff(parsed.offset) > 0).all(), "rows are in the order of their records"


@pytest.mark.parametrize("text", [*TEXTS, "NA", "nan", "1e999", " NaN ", "\t5", "True", "TRUE", " true"])
@pytest.mark.parametrize("name", ["i", "f", "d", "day", "b"])
def test_a_text_is_converted_as_by_the_csv_reader(name: str, text: str) -> None:
    """A text must have the same result alone and next to a text that does not fit."""
    column = SCHEMA.field(name)
    values, mismatches = most_values(pa.array([text, "?"]), column, STANDARD.null_texts)
    header, fields = ",".join(SCHEMA.names), ["" for _ in SCHEMA.names]
    fields[SCHEMA.names.index(name)] = text
    rows, rejects = take([f"{header}\n{','.join(fields)}\n".encode()], SCHEMA, "csv")
    assert mismatches is not None
    assert mismatches.texts == ([text, "?"] if rejects else ["?"])
    if rows:
        assert repr(values[0].as_py()) == repr(rows[0][2][name])


@pytest.mark.parametrize("string", ["info", "Info", "Infinity"])
def test_a_text_like_infinity_does_not_hide_a_number_that_is_too_large(string: str) -> None:
    """Otherwise the number 1e999 would be loaded as an infinity if a string in the record looks like an infinity."""
    rows, (reject,) = take([b'{"f":1e999,"s":"%s"}' % string.encode()], SCHEMA, "jsonl")
    assert not rows
    assert "1e999" in reject.reason
