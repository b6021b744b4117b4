"""Prices of requests: AWS's list prices of November 2025, us-east-1, on demand, in dollars.

The sources are aws.amazon.com/s3/pricing (S3 Standard, "Requests & data retrievals"), /sqs/pricing and
/dynamodb/pricing. Storage and traffic are not included. Other stores, regions and contracts have other prices.
"""

from collections.abc import Mapping
from typing import Final

PRICES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("PUT", "COPY", "POST", "LIST"), 0.005 / 1000),
    **dict.fromkeys(("GET", "HEAD"), 0.0004 / 1000),
    "UPLOAD": 3 * 0.005 / 1000,  # in parts: start, one part, end
    "DELETE": 0.0,
    "SQS": 0.40 / 1e6,
    "DynamoDB write": 0.625 / 1e6,
    "DynamoDB read": 0.125 / 1e6,
}
"""Dollars for one request, or for one unit of DynamoDB."""


def dollars(counts: Mapping[str, float]) -> float:
    """The price of requests, counted by kind. Pure."""
    return sum(PRICES[kind] * count for kind, count in counts.items())
