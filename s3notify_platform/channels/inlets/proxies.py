"""The address for which a request is counted in the limits of connections: the peer's address or, behind trusted
proxies, the address of the proxy's client.

A proxy appends the address of its client to `X-Forwarded-For`, or to `Forwarded` (RFC 7239). Everything to the left of
this address was sent by the client. So only text from trusted proxies is used: a request is counted for the right-most
address that does not belong to a trusted proxy. A request is counted for the proxy itself in three cases:
    - The request has neither header.
    - The address is not an IP address (`unknown`, `_hidden`, `unix:`, malformed).
    - The request has both headers, and their addresses differ: the client itself may have sent one of the headers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from s3notify_platform.kernel.errors import UsageError

FORWARDED: Final = ("x-forwarded-for", "forwarded")
"""The headers of proxies. The values of repeated headers of one name form one list."""

IPV6_BITS: Final = 64
"""Number of leading bits of an IPv6 address that are compared: one customer has all addresses of a /64 network."""

_PAIR: Final = re.compile(r"""[ \t]*([\w!#$%&'*+.^`|~-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*))[ \t]*([;,]?)""")
_WITH_PORT: Final = re.compile(r"\[([^\]]*)\](?::\w+)?|([^:]*):\w+")

_Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedProxies:
    """The networks of trusted proxies. If there are no networks, no header is read."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, given: Iterable[str]) -> "TrustedProxies":
        """Parses addresses and networks in CIDR notation. `UsageError` for other texts, and for a /0 network."""
        try:
            networks = tuple(ip_network(one) for one in given)
        except ValueError as error:
            raise UsageError(
                f"not a trusted proxy: {error}; give its address, or a network like 10.1.0.0/16"
            ) from None
        if not all(network.prefixlen for network in networks):
            raise UsageError(
                "a /0 network as trusted proxy would let everybody choose an address: name only the proxies"
            )
        return cls(networks=networks)

    def has(self, peer: str) -> bool:
        """True if this is the address of a trusted proxy."""
        address = _address(peer)
        return address is not None and any(address in network for network in self.networks)

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """The address for which a trusted peer's request is counted. `headers`: the headers by lower-case name."""
        found = {
            self._last_untrusted(list(hops))
            for name, hops in (
                ("x-forwarded-for", headers.get("x-forwarded-for", "").split(",")),
                ("forwarded", _hops(headers.get("forwarded", ""))),
            )
            if name in headers
        }
        address = found.pop() if len(found) == 1 else None
        return counted(peer) if address is None else counted(str(address))

    def _last_untrusted(self, hops: list[str]) -> _Address | None:
        address = None
        for hop in reversed(hops):
            address = _address(hop.strip())
            if address is None or not any(address in network for network in self.networks):
                return address
        return address


NO_PROXIES: Final = TrustedProxies()


def counted(address: str) -> str:
    """The address or network for which a request from this address is counted. For an IPv6 address, this is its /64
    network. For an IPv4 address, even one that is mapped into IPv6, this is the address itself.
    """
    found = _address(address)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found), IPV6_BITS), strict=False))
    return address if found is None else str(found)


def _address(text: str) -> _Address | None:
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] if match[1] is not None else match[2]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _hops(forwarded: str) -> Iterator[str]:
    """Yields the `for` of each element. If the header is malformed, the last text is empty."""
    at, hop = 0, ""
    while at < len(forwarded):
        if (pair := _PAIR.match(forwarded, at)) is None:
            yield ""
            return
        if pair[1].lower() == "for":
            hop = re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else pair[3]
        at = pair.end()
        if pair[4] == ",":
            yield hop
            hop = ""
        elif not pair[4] and at < len(forwarded):
            yield ""
            return
    yield hop
