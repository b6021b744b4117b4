"""Counts the requests at a proxy by their kinds in `explain.prices`."""

import json
from collections import Counter
from collections.abc import Iterable

from tests.contracts.fault_proxy import Answered

WRITE_UNIT, READ_UNIT = 1024, 4096
"""The bytes of one write unit and of one read unit of DynamoDB. The size of the request's content is used as the size
of an item, although the content is larger than the item.
"""


def billed(answered: Iterable[Answered]) -> Counter[str]:
    """The number of requests, by kind. Requests to DynamoDB are counted in units."""
    found: Counter[str] = Counter()
    for request in answered:
        target = request.headers.get("x-amz-target", "")
        if target.startswith("AmazonSQS"):
            found["SQS"] += 1
        elif target.startswith("DynamoDB"):
            found += _units(target.rpartition(".")[2], request)
        else:
            found[kind_of(request.method, request.path)] += 1
    return found


def kind_of(method: str, path: str) -> str:
    """The kind of a request to S3."""
    if method == "GET" and "list-type=" in path:
        return "LIST"
    return "DELETE" if method == "POST" and path.endswith("?delete") else method


def _units(operation: str, request: Answered) -> Counter[str]:
    if operation in ("GetItem", "Query", "TransactGetItems"):
        twice = 1 + operation.startswith("Transact")
        return Counter({"DynamoDB read": twice * max(1, -(-request.sent // READ_UNIT))})
    # Each item of a transaction counts separately, with twice its units.
    items = json.loads(request.body).get("TransactItems") if operation.startswith("Transact") else None
    units = sum(2 * max(1, -(-len(json.dumps(item)) // WRITE_UNIT)) for item in items or ())
    return Counter({"DynamoDB write": units or max(1, -(-len(request.body) // WRITE_UNIT))})
