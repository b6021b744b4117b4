"""The schemes of endpoints. A new scheme needs a file with its `Push`, and an item in this module."""

from dataclasses import dataclass
from typing import Final

_HERE: Final = "s3notify_platform.channels.delivery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The client of a scheme, and its defaults."""

    push: str
    """Import path of the client's class, as `module:class`. The class implements `Push`, and may need the library of an
    extra.
    """
    port: int
    encrypted: bool


_HTTP, _AMQP, _KAFKA = f"{_HERE}.http:HttpPush", f"{_HERE}.amqp:AmqpPush", f"{_HERE}.kafka:KafkaPush"

SCHEMES: Final = {
    "https": Scheme(push=_HTTP, port=443, encrypted=True),
    "http": Scheme(push=_HTTP, port=80, encrypted=False),
    "amqps": Scheme(push=_AMQP, port=5671, encrypted=True),
    "amqp": Scheme(push=_AMQP, port=5672, encrypted=False),
    "kafkas": Scheme(push=_KAFKA, port=9093, encrypted=True),
    "kafka": Scheme(push=_KAFKA, port=9092, encrypted=False),
}
