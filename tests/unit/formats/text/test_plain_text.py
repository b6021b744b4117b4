"""Text: each line is one record with one value."""

from s3notify_platform.formats.registry import FORMATS
from tests.support.parsing import take


def test_each_line_is_one_row_and_keeps_its_spaces() -> None:
    """Otherwise the rows could not reproduce the lines of the file: blank lines would be missing, or indented lines
    would lose their spaces.
    """
    schema = FORMATS["text"].fixed_schema
    assert schema is not None
    rows, rejects = take([b"a\n\n  b \r\nlast", b""], schema, "text")
    assert [(offset, row["value"]) for _, offset, row in rows] == [
        (0, "a"),
        (2, ""),
        (3, "  b "),
        (9, "last"),
    ]
    assert rejects == []


def test_a_line_that_is_not_utf_8_is_a_reject() -> None:
    """Otherwise a line in another encoding would keep the other lines of the object out of the table, or would be
    loaded with replaced characters.
    """
    schema = FORMATS["text"].fixed_schema
    assert schema is not None
    rows, rejects = take([b"a\n\xff\nb\n"], schema, "text")
    assert [row["value"] for _, _, row in rows] == ["a", "b"]
    assert [(reject.offset, reject.raw) for reject in rejects] == [(2, b"\xff")]
