"""The parser of LIST answers, compared with botocore on the same bytes."""

from typing import Any
from urllib.parse import quote_plus

import pytest
from botocore.parsers import create_parser
from botocore.session import Session
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import ETag, ObjectMeta, Page
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.list_pages import page_of

MODEL = Session().get_service_model("s3").operation_model("ListObjectsV2")

AWS = (
    "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>{etag}</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>{size}</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)
RGW = (
    "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>{etag}</ETag><Size>{size}</Size>"
    "<StorageClass>STANDARD</StorageClass><Owner><ID>a</ID><DisplayName>Key</DisplayName></Owner>"
    "<Type>Normal</Type></Contents>"
)
OTHER = (
    "<Contents>\n  <ETag>{etag}</ETag>\n  <Key>{key}</Key>\n  <LastModified>{time}</LastModified>"
    "<Owner></Owner><Size>{size}</Size></Contents>"
)


def answer(*contents: str, encoding: str = "url", token: str = "", truncated: str = "") -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        "<Name>bucket</Name><Prefix>in%2F</Prefix><MaxKeys>1000</MaxKeys>"
        + (f"<EncodingType>{encoding}</EncodingType>" if encoding else "")
        + f"<IsTruncated>{truncated or str(bool(token)).lower()}</IsTruncated>"
        + "".join(contents)
        + (f"<NextContinuationToken>{token}</NextContinuationToken>" if token else "")
        + "</ListBucketResult>"
    ).encode()


def by_botocore(body: bytes) -> dict[str, Any]:
    found = create_parser("rest-xml").parse(
        {"status_code": 200, "headers": {}, "body": body}, MODEL.output_shape
    )
    assert isinstance(found, dict)
    return found


@given(
    st.sampled_from([AWS, RGW, OTHER]),
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
            st.sampled_from(["&quot;{}&quot;", '"{}"', "&#34;{}&#34;", "{}"]),
            st.from_regex(r"[0-9a-f]{32}(-[0-9]{1,4})?", fullmatch=True),
            st.integers(0, 5 << 40),
            st.sampled_from(["2026-01-01T00:00:00.000Z", "2009-10-12T17:50:30Z", "2026-11-22T12:34:56.789Z"]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", "a+b/c==", "a&amp;b"]),
    st.sampled_from(["/", "/'", "/'()*!"]),
)
@example(AWS, [("it's", "{}", "0" * 32, 1, "2026-01-01T00:00:00.000Z")], "", "/'")
def test_the_parser_reads_the_same_as_botocore(
    shape: str, listed: list[tuple[str, str, str, int, str]], token: str, safe: str
) -> None:
    """Otherwise keys, ETags, sizes or times would be wrong if a server orders or spells the elements differently."""
    body = answer(
        *(
            shape.format(
                key=quote_plus(key, safe=safe).replace("'", "&apos;"),
                etag=quotes.format(etag),
                size=size,
                time=time,
            )
            for key, quotes, etag, size, time in listed
        ),
        token=token,
    )
    theirs, page = by_botocore(body), page_of(body)
    assert page is not None
    assert page.next_token == theirs.get("NextContinuationToken")
    for meta, entry, (key, _, etag, size, _) in zip(page.objects, theirs["Contents"], listed, strict=True):
        ms = int(entry["LastModified"].timestamp() * 1000)
        assert meta == ObjectMeta(key=key, etag=ETag(etag), size=size, modified_ms=ms)
        assert (entry["ETag"].strip('"'), entry["Size"]) == (etag, size)


GOOD = AWS.format(key="a", etag="&quot;e&quot;", size=1, time="2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    "body",
    [
        answer(),
        answer(GOOD, encoding=""),
        answer(GOOD, GOOD.replace("<Size>1</Size>", "")),
        answer(GOOD, GOOD.replace("<Key>a</Key>", "<Key>a\nb</Key>")),
        answer(GOOD, GOOD.replace("e&quot;", "e&#10;")),
        answer(GOOD, GOOD.replace("2026-01", "2026-13")),
        answer(GOOD, GOOD.replace("000Z", "000+01:00")),
        answer(GOOD, truncated="true"),
        answer(GOOD)[:-9],
        answer(GOOD).replace(b"<Key>a", b"<Key>\xff"),
        b"<Error><Code>SlowDown</Code></Error>",
        b"",
    ],
)
def test_unexpected_answers_are_left_to_botocore(body: bytes) -> None:
    """Otherwise an answer without objects, without encoding, or with missing or malformed elements would be misread."""
    assert page_of(body) is None


def test_a_truncated_listing_without_a_token_is_an_error() -> None:
    """Otherwise the listing would end early, and all later keys would count as deleted."""

    class Answer:
        def list_objects_v2(self, **_: object) -> dict[str, Any]:
            return {"IsTruncated": True, "Contents": []}

    store = S3ObjectStore(S3Config(bucket="b"), client=Answer())  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="has no continuation token"):
        store.list("in/")


def test_a_page_of_1000_keys_is_read_in_order() -> None:
    contents = [GOOD.replace("<Key>a", f"<Key>in/{n:04d}") for n in range(1000)]
    page = page_of(answer(*contents, token="t"))
    assert isinstance(page, Page)
    assert [meta.key for meta in page.objects] == [f"in/{n:04d}" for n in range(1000)]
    assert page.next_token == "t"
