"""The endpoint of a topic: where and how the topic's entries are pushed, and the signature of requests. This module
sends no requests.

The creator of a topic sets its endpoint (`Endpoint`, stored with the topic). The operator of the worker sets the
networks that the worker may reach (`egress.Egress`), and the logins that it may send (`logins`).

A topic may name two environment variables of the worker. `S3NOTIFY_PUSH_…` is an HMAC key, which is never sent.
`S3NOTIFY_SEND_…` is a login, which is sent only to the host that the operator has written into the variable. A topic
may name one file in the worker's `ca_folder`.

If the topic has `opaque_data`, every event has this text as `opaqueData` beside `s3`, as in Ceph's messages.

Over HTTP a batch is one POST. Its body has all events of the batch, in the topic's format (`messages`). Its headers:
    - s3notify-topic: name of the topic.
    - s3notify-event-ids: one id for each event, in order, separated by commas. Two messages with the same id are two
      deliveries of one entry.
    - s3notify-signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<event ids>.<body>"> with the shared secret.

A receiver checks the signature by `verify_signature`, and answers 2xx after the events are durable. Messages to brokers
are described in `amqp` and `kafka`.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from s3notify_platform.channels.delivery.logins import LOGIN_NAME, LOGIN_PREFIX
from s3notify_platform.channels.delivery.messages import FORMATS, S3
from s3notify_platform.channels.delivery.schemes import SCHEMES, Scheme
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About, check_settings

BATCH_MAX: Final = 200
"""Maximum number of events in one request. One header has the ids of all these events, and receivers limit a header to
about 8 KB.
"""

OPAQUE_MAX: Final = 2048
"""Maximum number of characters of opaque data, which is sent with each event. Ceph's tests use texts of this length."""

CONCURRENCY_MAX: Final = 64
TIMEOUT_MAX_SECONDS: Final = 120.0

SECRET_PREFIX: Final = "S3NOTIFY_PUSH_"  # noqa: S105 - start of a variable's name
SECRET_BYTES_MIN: Final = 16

TOLERANCE_SECONDS: Final = 300
"""Maximum difference between the clocks of sender and receiver. A recorded request can be replayed within this time."""

_URL: Final = re.compile(r"[!#-\[\]-~]{1,2000}")
"""Printable ASCII without double quotes and backslashes: URL parsers disagree about these two characters."""

_PORT: Final = re.compile(r":[0-9]{1,5}$")
_BROKER: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\]):[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint and its settings; stored as the JSON in `TopicSettings.endpoint`. `UsageError` for invalid values."""

    url: Annotated[
        str,
        About(
            "Endpoint to push to: https://host/path, amqps://host/vhost?exchange=E&routing_key=K, "
            "kafkas://host/topic?brokers=HOST:PORT,HOST:PORT; a scheme without its last s needs workers that allow "
            "it. The URL has no user or password"
        ),
    ]
    format: Annotated[str, About("Format of the messages", choices=lambda: [*FORMATS])] = S3
    login_env: Annotated[
        str, About("Name of the worker's variable with the login, S3NOTIFY_SEND_…; see `deliver --help`")
    ] = ""
    secret_env: Annotated[
        str,
        About(
            "Name of the worker's variable with the HMAC key, S3NOTIFY_PUSH_…, not the key itself. HTTP only"
        ),
    ] = ""
    batch_size: Annotated[
        int,
        About(
            "Maximum number of events in one request; a broker gets one message for each event, and confirms this "
            "many messages together",
            unit="events",
            minimum=1,
            maximum=BATCH_MAX,
        ),
    ] = 50
    concurrency: Annotated[
        int,
        About(
            "Maximum requests in flight from one worker", unit="requests", minimum=1, maximum=CONCURRENCY_MAX
        ),
    ] = 8
    timeout_seconds: Annotated[
        float,
        About(
            "Timeout of one whole request, until the status of the answer or the confirmation of all messages arrives",
            unit="seconds",
            minimum=0.001,
            maximum=TIMEOUT_MAX_SECONDS,
        ),
    ] = 10.0
    ca_file: Annotated[
        str,
        About("Certificates to trust instead of the system's: a file in the worker's --ca-folder"),
    ] = ""
    opaque_data: Annotated[
        str,
        About(
            "Text that each event has as `opaqueData`, as with Ceph's topics; only the receiver interprets it"
        ),
    ] = ""
    verify: Annotated[
        bool,
        About("Verify the certificate; False needs an HTTP(S) endpoint, and workers that allow plain HTTP"),
    ] = True

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise UsageError(f"endpoint {self.url[:100]!r}: use printable ASCII, at most 2000 characters")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"endpoint {self.url!r}: {error}") from None
        if parts.scheme not in SCHEMES or not host or port == 0:
            raise UsageError(
                f"endpoint {self.url!r}: give https://host/path, amqps://host or kafkas://host/topic"
            )
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise UsageError(
                "an endpoint's url must not contain a user, password or fragment: use login_env or secret_env"
            )
        check_settings(self, Endpoint)
        if len(self.opaque_data) > OPAQUE_MAX or not self.opaque_data.isprintable():
            raise UsageError(f"opaque_data: use at most {OPAQUE_MAX} printable characters")
        if self.secret_env and not re.fullmatch(f"{SECRET_PREFIX}[A-Z0-9_]+", self.secret_env):
            raise UsageError(
                f"secret_env {self.secret_env!r}: name a variable {SECRET_PREFIX}…, of A-Z, 0-9 and _"
            )
        if self.login_env and not LOGIN_NAME.fullmatch(self.login_env):
            raise UsageError(
                f"login_env {self.login_env!r}: name a variable {LOGIN_PREFIX}…, of A-Z, 0-9 and _"
            )
        if not parts.scheme.startswith("http"):
            self._check_broker(parts.scheme)

    def _check_broker(self, scheme: str) -> None:
        if self.secret_env or not self.verify:
            raise UsageError(
                f"endpoint {self.url!r}: secret_env and verify=false work only for http endpoints"
            )
        if FORMATS[self.format].headers is not None:
            raise UsageError(f"endpoint {self.url!r}: format {self.format} works only for http endpoints")
        if scheme.startswith("kafka") and not all(_BROKER.fullmatch(broker) for broker in self.brokers):
            raise UsageError(f"endpoint {self.url!r}: give brokers as HOST:PORT,HOST:PORT")

    @property
    def events_max(self) -> int:
        """Maximum number of events in one request."""
        return self.batch_size if FORMATS[self.format].headers is None else 1

    @property
    def brokers(self) -> tuple[str, ...]:
        """Kafka's brokers, each with its port; the url's own broker is first."""
        more = parse_qs(urlsplit(self.url).query).get("brokers", [""])[0]
        listed = (one if _PORT.search(one) else f"{one}:{self.port}" for one in more.split(",") if one)
        own = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(dict.fromkeys((f"{own}:{self.port}", *listed)))

    @property
    def scheme(self) -> Scheme:
        """The url's scheme."""
        return SCHEMES[urlsplit(self.url).scheme]

    @property
    def host(self) -> str:
        """The url's host, in lower case."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The url's port, or its scheme's default port."""
        return urlsplit(self.url).port or self.scheme.port

    def dumps(self) -> str:
        """JSON for `TopicSettings.endpoint`, without the settings that have their default value."""
        default = asdict(Endpoint(url=self.url))
        fields = {name: value for name, value in asdict(self).items() if value != default[name]}
        return json.dumps({"url": self.url, **fields}, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> "Endpoint":
        """The inverse of `dumps`. `UsageError` for any other text."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UsageError(f"not a valid endpoint: {text[:200]!r} ({error})") from error


def check_secret(secret: bytes) -> bytes:
    """Returns the secret; `UsageError` if the secret is too short."""
    if len(secret) < SECRET_BYTES_MIN:
        raise UsageError(f"the HMAC key has {len(secret)} bytes: use {SECRET_BYTES_MIN} or more random bytes")
    return secret


def sign(secret: bytes, body: bytes, *, event_ids: str, seconds: int) -> str:
    """The header `s3notify-signature` of a request that is sent at this Unix time. Pure."""
    return f"t={seconds},v1={_digest(secret, body, event_ids, seconds)}"


def verify_signature(
    header: str,
    body: bytes,
    *,
    event_ids: str,
    secrets: Iterable[bytes],
    now_seconds: float,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> bool:
    """True if a request was recently signed with one of the secrets. Pure, for receivers.

    Pass `header`, `event_ids` and `body` as they were received, and `body` byte for byte. Pass the old and the new
    secret while a secret is being replaced. `now_seconds` is the receiver's Unix time. A recorded request can be
    replayed within the tolerance, so drop events whose ids are known already.
    """
    fields = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in fields if name == "t"]
    given = [value for name, _, value in fields if name == "v1"]
    if len(times) != 1 or not re.fullmatch(r"[0-9]{1,12}", times[0]) or len(given) > 10:
        return False
    seconds = int(times[0])
    if abs(now_seconds - seconds) > tolerance_seconds:
        return False
    digests = [_digest(secret, body, event_ids, seconds) for secret in secrets]
    # Every secret is compared with every signature, so the time of the comparison reveals nothing.
    equal = [hmac.compare_digest(known.encode(), one.encode()) for known in digests for one in given]
    return any(equal)


def _digest(secret: bytes, body: bytes, event_ids: str, seconds: int) -> str:
    return hmac.new(secret, f"{seconds}.{event_ids}.".encode() + body, hashlib.sha256).hexdigest()
