"""The networks that a worker may connect to for its topics. The worker connects only to addresses that were checked.

The creator of a topic sets the topic's endpoint. The operator of the worker sets the networks, by options of the
worker. So a topic cannot make the worker send requests to hosts that only the worker can reach. A name is resolved
once, and all its addresses must be permitted. The connection is made to a checked address, with TLS verified for the
name.
"""

import socket
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import UsageError

_IPV6_GLOBAL: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")
_NEVER: Final = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's own services, at a seemingly public address
        "192.0.0.0/24",  # protocol assignments, and Oracle's metadata service
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments: Teredo and others that embed an address of another network
        "2002::/16",  # 6to4: embeds an IPv4 address
        "3fff::/20",  # documentation
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """The endpoints that a worker may connect to, and its certificate files for these endpoints. Default: https to
    public addresses.
    """

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that are permitted in addition, even if private or loopback."""
    allow_http: bool = False
    """True permits endpoints without encryption, and TLS without verification."""
    kafka_hosts: tuple[str, ...] = ()
    """The hosts of Kafka brokers that topics may name. Kafka's client connects to any address that a broker returns, so
    no network can be checked."""
    ca_folder: Path | None = None
    """The folder of the files that topics may name as `ca_file`; if None, topics may name no file."""

    @classmethod
    def of(
        cls,
        networks: Iterable[str],
        *,
        allow_http: bool = False,
        ca_folder: str | None = None,
        kafka_hosts: Iterable[str] = (),
    ) -> "Egress":
        """Parses networks in CIDR notation. `UsageError` for any other text."""
        try:
            parsed = tuple(ip_network(network) for network in networks)
        except ValueError as error:
            raise UsageError(f"not a valid network: {error}; give it like 10.1.0.0/16") from None
        return cls(
            networks=parsed,
            allow_http=allow_http,
            kafka_hosts=tuple(host.lower() for host in kafka_hosts),
            ca_folder=Path(ca_folder) if ca_folder else None,
        )

    def check(self, endpoint: Endpoint) -> None:
        """Raises `UsageError` if this worker must not connect to the endpoint, regardless of the endpoint's address."""
        if endpoint.url.startswith("kafka"):
            hosts = (broker.rpartition(":")[0].strip("[]").lower() for broker in endpoint.brokers)
            if strange := [host for host in hosts if host not in self.kafka_hosts]:
                raise UsageError(
                    f"{endpoint.url!r}: start the worker with --allow-kafka {strange[0]} to permit this"
                )
        if self.allow_http:
            return
        if not endpoint.scheme.encrypted:
            raise UsageError(f"{endpoint.url!r} is not encrypted, and this worker does not allow http")
        if not endpoint.verify:
            raise UsageError(f"{endpoint.url!r} has verify=false, and this worker does not allow http")

    def certificates(self, endpoint: Endpoint) -> Path | None:
        """The file of certificates to trust for the endpoint; None means the system's certificates.

        `UsageError` if the file is not in this worker's folder after links are resolved. The error does not show
        whether a file outside of the folder exists.
        """
        if not endpoint.ca_file:
            return None
        if self.ca_folder is None:
            raise UsageError(
                f"{endpoint.url!r} names the ca_file {endpoint.ca_file!r}, but this worker has no --ca-folder"
            )
        folder = self.ca_folder.resolve()
        found = (folder / endpoint.ca_file).resolve()
        if not found.is_relative_to(folder):
            raise UsageError(f"ca_file {endpoint.ca_file!r} of {endpoint.url!r} is not in {str(folder)!r}")
        return found

    def permits(self, address: str) -> bool:
        """True if a connection to this IP address is permitted. Pure.

        Addresses in `networks` are permitted. All other addresses of these kinds are refused: private, loopback,
        link-local (including cloud metadata), multicast, reserved, shared, documentation. An IPv4 address embedded in
        an IPv6 address is checked as an IPv4 address.
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


class Addresses:
    """The addresses of one host, looked up again for each connection. Thread-safe."""

    def __init__(self, host: str, port: int, egress: Egress, clock: Clock) -> None:
        self._host = host
        self._port = port
        self._egress = egress
        self._clock = clock
        self._lock = Lock()
        self._lookup: Future[list[str]] | None = None

    def permitted(self, deadline: float) -> list[str]:
        """All addresses of the host; the list is never empty. `OSError` if any address is not permitted, or if the name
        is not resolved in time.

        A lookup cannot be cancelled: all requests that need it wait for the same lookup, each until its deadline.
        """
        with self._lock:
            if self._lookup is None or self._lookup.done():
                self._lookup = _lookup(self._host, self._port)
            lookup = self._lookup
        try:
            addresses = lookup.result(max(0.0, deadline - self._clock.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"the name {self._host!r} was not resolved in time") from None
        for address in addresses:
            if not self._egress.permits(address):
                raise OSError(
                    f"{self._host!r} is at {address}, which is not public: the operator of the worker must allow its "
                    "network"
                )
        if not addresses:
            raise OSError(f"{self._host!r} has no address")
        return addresses


def _lookup(host: str, port: int) -> "Future[list[str]]":
    """The addresses of a name, looked up in a daemon thread: the process can end before the lookup ends."""
    future: Future[list[str]] = Future()

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            future.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, ValueError) as error:
            future.set_exception(error)

    Thread(target=look, name=f"lookup {host}", daemon=True).start()
    return future
