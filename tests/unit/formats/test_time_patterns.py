"""Patterns of dates and times: the texts that a pattern reads, and the patterns that are valid.

Tests in `tests/spark` compare the patterns with those of Spark.
"""

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.arrow_values import timestamps
from s3notify_platform.formats.time_patterns import time_pattern
from s3notify_platform.kernel.errors import UsageError

UTC_TIME = pa.timestamp("us", tz="UTC")


def at(pattern: str, text: str) -> datetime | None:
    """Returns the time that a text means, or None if the text does not match the pattern."""
    try:
        (found,) = timestamps(time_pattern(pattern).iso(pa.array([text])), UTC_TIME).to_pylist()
    except pa.ArrowInvalid:
        return None
    assert isinstance(found, datetime)
    return found


def utc(*fields: int) -> datetime:
    return datetime(*fields, tzinfo=UTC)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("pattern", "text", "time"),
    [
        ("dd.MM.yyyy HH:mm", "31.01.2026 07:05", utc(2026, 1, 31, 7, 5)),
        ("dd.MM.yyyy HH:mm", "1.1.2026 07:05", None),
        ("dd.MM.yyyy HH:mm", "31.01.2026 07:05:00", None),
        ("dd.MM.yyyy HH:mm", "31.01.2026 24:00", None),
        ("dd.MM.yyyy HH:mm", "30.02.2026 00:00", None),
        ("dd.MM.yyyy HH:mm", "29.02.2024 00:00", utc(2024, 2, 29)),
        ("dd.MM.yyyy HH:mm", "2026-01-31 07:05", None),
        ("dd.MM.yyyy HH:mm", " 31.01.2026 07:05\t", utc(2026, 1, 31, 7, 5)),
        ("d/M/yy H:m:s", "3/2/26 7:5:9", utc(2026, 2, 3, 7, 5, 9)),
        ("d/M/yy H:m:s", "13/12/99 17:15:19", utc(2099, 12, 13, 17, 15, 19)),
        ("d/M/yy H:m:s", "3/13/26 7:5:9", None),
        ("MM/dd/yyyy hh:mm a", "01/31/2026 12:05 AM", utc(2026, 1, 31, 0, 5)),
        ("MM/dd/yyyy hh:mm a", "01/31/2026 12:05 pm", utc(2026, 1, 31, 12, 5)),
        ("MM/dd/yyyy hh:mm a", "01/31/2026 01:05 PM", utc(2026, 1, 31, 13, 5)),
        ("MM/dd/yyyy hh:mm a", "01/31/2026 13:05 PM", None),
        ("MM/dd/yyyy h a", "01/31/2026 9 AM", utc(2026, 1, 31, 9)),
        ("d MMM yyyy", "3 Feb 2026", utc(2026, 2, 3)),
        ("d MMM yyyy", "3 FEB 2026", utc(2026, 2, 3)),
        ("d MMMM yyyy", "3 september 2026", utc(2026, 9, 3)),
        ("d MMM yyyy", "3 Feber 2026", None),
        ("yyyyMMddHHmmss", "20260131070509", utc(2026, 1, 31, 7, 5, 9)),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-01-31T07:05:09.123+01:00", utc(2026, 1, 31, 6, 5, 9, 123_000)),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-01-31T07:05:09.1Z", utc(2026, 1, 31, 7, 5, 9, 100_000)),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-01-31T07:05:09.1+0100", None),
        ("yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "2026-01-31 07:05:09.123456789", utc(2026, 1, 31, 7, 5, 9, 123_456)),
        ("yyyy-MM-dd HH:mm:ss.S", "2026-01-31 07:05:09.5", utc(2026, 1, 31, 7, 5, 9, 500_000)),
        ("yyyy-MM-dd HH:mm:ss.S", "2026-01-31 07:05:09.55", None),
        ("yyyy-MM-dd HH:mmX", "2026-01-31 07:05-05", utc(2026, 1, 31, 12, 5)),
        ("yyyy-MM-dd HH:mmxx", "2026-01-31 07:05+0530", utc(2026, 1, 31, 1, 35)),
        ("yyyy-MM-dd HH:mmxx", "2026-01-31 07:05Z", None),
        ("yyyy-MM-dd HH:mmZ", "2026-01-31 07:05-0000", utc(2026, 1, 31, 7, 5)),
        ("yyyy-MM-dd[ HH:mm[:ss[.SSS]]][X]", "2026-01-31", utc(2026, 1, 31)),
        ("yyyy-MM-dd[ HH:mm[:ss[.SSS]]][X]", "2026-01-31Z", utc(2026, 1, 31)),
        ("yyyy-MM-dd[ HH:mm[:ss[.SSS]]][X]", "2026-01-31 07:05", utc(2026, 1, 31, 7, 5)),
        ("yyyy-MM-dd[ HH:mm[:ss[.SSS]]][X]", "2026-01-31 07:05:09.25+01", utc(2026, 1, 31, 6, 5, 9, 250_000)),
        ("yyyy-MM-dd[ HH:mm[:ss[.SSS]]][X]", "2026-01-31 07", None),
        ("yyyy[-MM[-dd]]", "2026", utc(2026, 1, 1)),
        ("yyyy[-MM[-dd]]", "2026-03", utc(2026, 3, 1)),
        ("yyyy", "0000", None),
        ("yyyy'年'M'月'd'日'", "2026年1月31日", utc(2026, 1, 31)),
        ("yyyy.MM.dd 'o''clock' HH", "2026.01.31 o'clock 07", utc(2026, 1, 31, 7)),
        ("yyyy''MM", "2026'01", utc(2026, 1, 1)),
        ("yyyy*MM", "2026*01", utc(2026, 1, 1)),
        ("yyyy*MM", "20260001", None),
    ],
)  # fmt: skip
def test_a_text_is_read_by_its_pattern(pattern: str, text: str, time: datetime | None) -> None:
    assert at(pattern, text) == time


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("dd.MM.YYYY", "'YYYY' is not supported; use yyyy yy M MM"),
        ("yyyy-MM-dd EEE", "'EEE' is not supported"),
        ("yyy", "'yyy' is not supported"),
        ("yyyy-MM-dd HH:mm VV", "'VV' is not supported"),
        ("SSSSSSSSSS", "is not supported"),
        ("HH:mm", "a year is missing"),
        ("yyyy-dd", "a day and no month"),
        ("yyyy-MM-dd mm", "and no hour"),
        ("yyyy-MM-ddXXX", "and no hour"),
        ("yyyy-MM-dd HH ss", "seconds and no minutes"),
        ("yyyy-MM-dd HH:mm.SSS", "fractions and no seconds"),
        ("yyyy-MM-dd hh:mm", "a 12-hour clock needs AM or PM"),
        ("yyyy-MM-dd HH:mm a", "a 12-hour clock needs AM or PM"),
        ("yyyy-MM-dd yy", "'yy' occurs twice"),
        ("yyyy-MM-dd HH hh a", "'hh' occurs twice"),
        ("yyyy[-MM", r"a \[ is not closed"),
        ("yyyy-MM]", r"a \] has no \["),
        ("yyyy'T", "' is not supported, or a quote is not closed"),
        ("yyyy#MM", "# is not supported"),
        ("yyyy{MM}", "{ is not supported"),
        ("y" * 500, "longer than 200 characters"),
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        time_pattern(pattern)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31, 23, 59)))
def test_written_times_are_read_back(time: datetime) -> None:
    """Any time that Python supports, written by `strftime`, must be read back."""
    written = f"{time.day:02}.{time.month:02}.{time.year:04} {time:%H:%M:%S.%f}"
    assert at("dd.MM.yyyy HH:mm:ss.SSSSSS", written) == time.replace(tzinfo=UTC)
    twelve = f"{time.year:04}/{time.month}/{time.day} {time:%I:%M %p}"
    assert at("yyyy/M/d hh:mm a", twelve) == time.replace(second=0, microsecond=0, tzinfo=UTC)


@given(st.text(alphabet="0123456789.:- /TZ+", max_size=20))
def test_no_text_is_guessed(text: str) -> None:
    """If a text that does not match the pattern were read, a mistyped date would be loaded as another day, and no
    reject would show the mistake.
    """
    found = at("dd.MM.yyyy HH:mm", text)
    if found is not None:
        written = f"{found.day:02}.{found.month:02}.{found.year:04} {found:%H:%M}"
        assert text.strip(" \t") == written


def test_time_of_day_is_omitted_for_a_date_column() -> None:
    texts = pa.array(["31.01.2026 23:59", None])
    found = pc.cast(time_pattern("dd.MM.yyyy HH:mm").iso(texts, days=True), pa.date32())
    assert found.to_pylist() == [date(2026, 1, 31), None]
