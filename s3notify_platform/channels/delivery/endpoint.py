"""The endpoint of a topic, the networks that a worker may connect to, and the signature of requests. No requests.

Two parties decide where data goes. The creator of a topic sets its endpoint (`Endpoint`, stored with the topic). The
operator of the worker sets the networks that it may reach (`Egress`, an option of the worker, never of a topic). So a
topic cannot make the worker send requests to hosts that only the worker can reach: a name is resolved once, all its
addresses must be permitted, and the connection goes to a checked address, with TLS verified for the name.

Of the worker's environment a topic may name one HMAC key only, in a variable that begins with `S3NOTIFY_PUSH_`: a topic
cannot make the worker use any other secret, and no secret is ever sent. Of its files it may name one of `ca_folder`.

The request
    POST, `content-type: application/json`, body: the S3 event message, `{"Records": […]}`
    s3notify-topic        name of the topic
    s3notify-event-ids    one id for each record, in order, with commas between: the same id is the same entry,
                          delivered again
    s3notify-signature    t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<event ids>.<body>"> with the shared secret

A receiver answers 2xx once the events are durable, and checks the signature by `verify_signature`.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from s3notify_platform.errors import UsageError

BATCH_MAX: Final = 200
"""Events of one request; their ids are in one header, which receivers limit to about 8 KB."""

CONCURRENCY_MAX: Final = 64
TIMEOUT_MAX_SECONDS: Final = 120.0

SECRET_PREFIX: Final = "S3NOTIFY_PUSH_"  # noqa: S105 - the beginning of a variable's name
SECRET_BYTES_MIN: Final = 16

TOLERANCE_SECONDS: Final = 300
"""How far the clocks of sender and receiver may differ; a recorded request can be replayed for that long."""

_URL: Final = re.compile(r"[!#-\[\]-~]{1,2000}")
"""Printable ASCII without quotes and backslashes, which parsers treat differently."""

_IPV6_GLOBAL: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")
_NEVER: Final = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's own services, at an address that looks public
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments: Teredo and others that contain an address of another network
        "2002::/16",  # 6to4: contains an IPv4 address
        "3fff::/20",  # documentation
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how to push; the JSON in `TopicSettings.endpoint`. `UsageError` for what cannot work."""

    url: str
    """https://…; http:// only for workers that allow it. No user or password in it."""
    secret_env: str = ""
    """Name of the worker's variable with the HMAC key, `S3NOTIFY_PUSH_…`; empty: requests are not signed."""
    batch_size: int = 50
    """Events of one request, at most."""
    concurrency: int = 8
    """Requests in flight from one worker."""
    timeout_seconds: float = 10.0
    """For one request as a whole, from connecting to the answer's status."""
    ca_file: str = ""
    """Certificates to trust instead of the system's: a file in the worker's folder for them, see `Egress`."""
    verify: bool = True
    """Check the certificate; False only for workers that allow plain HTTP too."""

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise UsageError(f"endpoint {self.url[:100]!r}: printable ASCII, 2000 characters at most")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"endpoint {self.url!r}: {error}") from None
        if parts.scheme not in ("https", "http") or not host or port == 0:
            raise UsageError(f"endpoint {self.url!r}: give https://host/path")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise UsageError("an endpoint's url holds no user, password or fragment: use secret_env")
        if self.secret_env and not re.fullmatch(f"{SECRET_PREFIX}[A-Z0-9_]+", self.secret_env):
            raise UsageError(
                f"secret_env {self.secret_env!r}: a variable named {SECRET_PREFIX}…, A-Z, 0-9, _"
            )
        if not 1 <= self.batch_size <= BATCH_MAX or not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise UsageError(
                f"batch_size={self.batch_size} must be 1 to {BATCH_MAX}, and concurrency={self.concurrency} "
                f"1 to {CONCURRENCY_MAX}"
            )
        if not 0 < self.timeout_seconds <= TIMEOUT_MAX_SECONDS:
            raise UsageError(
                f"timeout_seconds={self.timeout_seconds}: above 0, up to {TIMEOUT_MAX_SECONDS:g}"
            )

    @property
    def encrypted(self) -> bool:
        """Whether it is https."""
        return self.url.lower().startswith("https:")

    def dumps(self) -> str:
        """JSON, for `TopicSettings.endpoint`; defaults are left out."""
        default = asdict(Endpoint(url=self.url))
        fields = {name: value for name, value in asdict(self).items() if value != default[name]}
        return json.dumps({"url": self.url, **fields}, separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> "Endpoint":
        """Inverse of `dumps`. `UsageError` for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UsageError(f"no valid endpoint: {text[:200]!r} ({error})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """What a worker may connect to, and read for it. Default: https, to addresses of the public internet."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Also permitted, even if private or loopback."""
    allow_http: bool = False
    """Also plain HTTP, and TLS that is not verified."""
    ca_folder: Path | None = None
    """The folder of the files that topics may name as `ca_file`; None: they may name none."""

    @classmethod
    def of(
        cls, networks: Iterable[str], *, allow_http: bool = False, ca_folder: str | None = None
    ) -> "Egress":
        """From CIDR notation. `UsageError` for anything else."""
        try:
            parsed = tuple(ip_network(network) for network in networks)
        except ValueError as error:
            raise UsageError(f"no valid network: {error}; give it like 10.1.0.0/16") from None
        return cls(networks=parsed, allow_http=allow_http, ca_folder=Path(ca_folder) if ca_folder else None)

    def check(self, endpoint: Endpoint) -> None:
        """`UsageError` if this worker must not connect to the endpoint, whatever its address."""
        if self.allow_http:
            return
        if not endpoint.encrypted:
            raise UsageError(f"{endpoint.url!r} is not https, and this worker does not allow http")
        if not endpoint.verify:
            raise UsageError(f"{endpoint.url!r} has verify=false, and this worker does not allow http")

    def certificates(self, endpoint: Endpoint) -> Path | None:
        """The file of certificates to trust for the endpoint; None: the system's.

        `UsageError` if it is not in this worker's folder, links followed; that says nothing of what is elsewhere.
        """
        if not endpoint.ca_file:
            return None
        if self.ca_folder is None:
            raise UsageError(
                f"{endpoint.url!r} names the ca_file {endpoint.ca_file!r}, and this worker has no --ca-folder"
            )
        folder = self.ca_folder.resolve()
        found = (folder / endpoint.ca_file).resolve()
        if not found.is_relative_to(folder):
            raise UsageError(f"ca_file {endpoint.ca_file!r} of {endpoint.url!r} is not in {str(folder)!r}")
        return found

    def permits(self, address: str) -> bool:
        """Whether a connection to this IP address may be made. Pure.

        Never, unless its network is in `networks`: private, loopback, link-local (cloud metadata is there), multicast,
        reserved, shared, documentation. An IPv4 address inside an IPv6 one is checked as an IPv4 address.
        """
        found = ip_address(address.partition("%")[0])
        if self._named(found):
            return True
        if isinstance(found, IPv6Address):
            inner = found.ipv4_mapped
            if inner is None and found in _NAT64:
                inner = IPv4Address(int(found) & 0xFFFF_FFFF)
            if inner is not None:
                return self._named(inner) or _is_public(inner)
        return _is_public(found)

    def _named(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _IPV6_GLOBAL:
        return False
    special = address.is_multicast or address.is_reserved or any(address in network for network in _NEVER)
    return address.is_global and not special


def check_secret(secret: bytes) -> bytes:
    """The secret; `UsageError` if it is too short."""
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
    """Whether a request was recently signed with one of the secrets. Pure, for receivers.

    `header`, `event_ids` and `body` are as received, `body` byte for byte. Several secrets are for the time in which
    one is replaced. `now_seconds` is the receiver's Unix time. A recorded request can be replayed within the tolerance:
    drop known event ids.
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
    # Every pair is compared, so that the time it takes reveals nothing.
    equal = [hmac.compare_digest(known.encode(), one.encode()) for known in digests for one in given]
    return any(equal)


def _digest(secret: bytes, body: bytes, event_ids: str, seconds: int) -> str:
    return hmac.new(secret, f"{seconds}.{event_ids}.".encode() + body, hashlib.sha256).hexdigest()
