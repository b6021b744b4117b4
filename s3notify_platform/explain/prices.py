"""The prices of requests, in dollars: AWS's list prices of November 2025 for us-east-1, on demand.

The sources are aws.amazon.com/s3/pricing (S3 Standard, "Requests & data retrievals"), /sqs/pricing and
/dynamodb/pricing. Storage and traffic are not included. Other stores, regions and contracts have other prices.
"""

from collections.abc import Mapping
from typing import Final

PRICES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("PUT", "COPY", "POST", "LIST"), 0.005 / 1000),
    **dict.fromkeys(("GET", "HEAD"), 0.0004 / 1000),
    "UPLOAD": 3 * 0.005 / 1000,  # an upload in parts has three requests: start, one part, end
    "DELETE": 0.0,
    "SQS": 0.40 / 1e6,
    "DynamoDB write": 0.625 / 1e6,
    "DynamoDB read": 0.125 / 1e6,
}
"""The price in dollars of one request, or of one request unit of DynamoDB."""


def dollars(counts: Mapping[str, float]) -> float:
    """Returns the price of requests. `counts`: the number of requests of each kind. Pure."""
    return sum(PRICES[kind] * count for kind, count in counts.items())
