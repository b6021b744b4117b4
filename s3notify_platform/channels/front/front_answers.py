"""Answers of the front: S3's and SNS's XML, and errors with the names that AWS and Ceph use. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal
from xml.sax.saxutils import escape

from s3notify_platform.channels.front.sigv4 import DeniedError
from s3notify_platform.channels.inlets.http_server import Answer

S3_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
SNS_NAMESPACE: Final = "https://sns.amazonaws.com/doc/2010-03-31/"

Form = Literal["s3", "sns"]

_DENIALS: Final[dict[Form, dict[str, tuple[int, str]]]] = {
    "s3": {
        "missing": (403, "AccessDenied"),
        "malformed": (400, "AuthorizationHeaderMalformed"),
        "version": (400, "InvalidRequest"),
        "token": (400, "InvalidToken"),
        "key": (403, "InvalidAccessKeyId"),
        "signature": (403, "SignatureDoesNotMatch"),
        "skew": (403, "RequestTimeTooSkewed"),
        "expired": (403, "AccessDenied"),
        "body": (400, "XAmzContentSHA256Mismatch"),
    },
    "sns": {
        "missing": (403, "MissingAuthenticationToken"),
        "malformed": (400, "IncompleteSignature"),
        "version": (400, "IncompleteSignature"),
        "token": (403, "InvalidClientTokenId"),
        "key": (403, "InvalidClientTokenId"),
        "signature": (403, "SignatureDoesNotMatch"),
        "skew": (403, "SignatureDoesNotMatch"),
        "expired": (403, "RequestExpired"),
        "body": (400, "IncompleteSignature"),
    },
}

Tree = str | Iterable["Node"]
Node = tuple[str, Tree]
"""The name of an element, and its text or its child elements."""


class FrontError(Exception):
    """The answer to a request that fails, for S3 and for SNS."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one request; it contains the request's id."""

    form: Form
    request_id: str

    def error(self, error: FrontError) -> Answer:
        """The error in the XML of S3 or SNS."""
        said: list[Node] = [("Code", error.code), ("Message", str(error))]
        identity: Node = ("RequestId", self.request_id)
        if self.form == "s3":
            return self._answer(error.status, xml("Error", [*said, identity]))
        kind = "Sender" if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "Receiver"
        body = xml("ErrorResponse", [("Error", [("Type", kind), *said]), identity], SNS_NAMESPACE)
        return self._answer(error.status, body)

    def denied(self, error: DeniedError) -> Answer:
        """The answer to a refused request, with S3's or SNS's name for the reason."""
        status, code = _DENIALS[self.form][error.reason]
        return self.error(FrontError(status, code, str(error)))

    def action(self, name: str, result: Iterable[Node] | None) -> Answer:
        """The answer to an action of SNS; `result` is None if the action has no result."""
        parts: list[Node] = [] if result is None else [(f"{name}Result", result)]
        parts.append(("ResponseMetadata", [("RequestId", self.request_id)]))
        return self._answer(HTTPStatus.OK, xml(f"{name}Response", parts, SNS_NAMESPACE))

    def document(self, name: str, content: Iterable[Node]) -> Answer:
        """A 200 answer with an XML document in S3's namespace."""
        return self._answer(HTTPStatus.OK, xml(name, content, S3_NAMESPACE))

    def done(self, status: HTTPStatus = HTTPStatus.OK) -> Answer:
        """An answer that has only a status."""
        return self._answer(status, "")

    def _answer(self, status: HTTPStatus, text: str) -> Answer:
        headers = {"content-type": "application/xml", "x-amz-request-id": self.request_id}
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = "1"
        return Answer(status=status, text=text, headers=headers)


def xml(name: str, content: Tree, namespace: str = "") -> str:
    """An XML document. Characters that XML cannot contain are replaced."""
    attribute = f' xmlns="{namespace}"' if namespace else ""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_element(name, content, attribute)}'


def _element(name: str, content: Tree, attribute: str = "") -> str:
    if isinstance(content, str):
        inner = escape("".join(c if c.isprintable() or c in "\t\n" else "\ufffd" for c in content))
    else:
        inner = "".join(_element(*node) for node in content)
    return f"<{name}{attribute}>{inner}</{name}>"
