"""DynamoDB's data operations, with the names, arguments, answers and errors of boto3's client, at a third of its CPU.

Arguments go out as they are, as JSON; bytes in base64. Nothing is checked before it is sent: the server does that.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from s3notify_platform.stores.signed import SignedHttp

_NAMES: Final = {
    "get_item": "GetItem",
    "put_item": "PutItem",
    "update_item": "UpdateItem",
    "delete_item": "DeleteItem",
    "query": "Query",
    "scan": "Scan",
    "transact_get_items": "TransactGetItems",
    "transact_write_items": "TransactWriteItems",
}


class LeanDynamo:
    """The operations, as methods. Thread-safe."""

    def __init__(self, http: SignedHttp) -> None:
        self._http = http

    def __getattr__(self, call: str) -> Callable[..., Any]:
        try:
            operation = _NAMES[call]
        except KeyError:
            raise AttributeError(call) from None
        return lambda **arguments: self._send(operation, arguments)

    def _send(self, operation: str, arguments: dict[str, Any]) -> Any:
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
        }
        body = json.dumps(arguments, separators=(",", ":"), default=_base64).encode()
        try:
            answer = self._http.send(operation, "POST", f"{self._http.endpoint}/", headers, body)
        except ClientError as error:
            error.response.update(_decoded(error.response))
            raise
        try:
            return _decoded(json.loads(answer.content))
        except ValueError as error:
            raise ResponseParserError(f"no JSON: {answer.content[:80]!r}") from error


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _decoded(value: Any) -> Any:
    """Attribute values of the type B as bytes."""
    match value:
        case {"B": str(text)} if len(value) == 1:
            return {"B": b64decode(text)}
        case dict():
            return {name: _decoded(each) for name, each in value.items()}
        case list():
            return [_decoded(each) for each in value]
    return value
