"""Services that listen for HTTP: their common settings, and the loop that serves until the stop."""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from s3notify_platform.channels.inlets.http_server import Application, HttpServer, Limits
from s3notify_platform.channels.inlets.proxies import TrustedProxies
from s3notify_platform.channels.renewed_files import RenewedTls
from s3notify_platform.channels.service import Progress, ServiceSettings
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import PROGRESS_SECONDS
from s3notify_platform.kernel.setting import About

GRACE_SECONDS: Final = 5.0
"""At a clean stop, requests in progress get this time to end."""

_STOP_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class ListeningSettings(ServiceSettings):
    """The address that a service listens on, and the server's bounds."""

    host: Annotated[str, About("Address to listen on")] = "127.0.0.1"
    port: Annotated[int, About("Port to listen on; 0: any free port", minimum=0, maximum=65_535)] = 8086
    cert_file: Annotated[
        str | None,
        About(
            "File of the TLS certificate, PEM, like /etc/inlet.pem; a renewed file is used without a restart"
        ),
    ] = None
    key_file: Annotated[str | None, About("File of the certificate's key, PEM, like /etc/inlet.key")] = None
    plain_http: Annotated[
        bool, About("Accept plain HTTP on any address, since a proxy in front does TLS")
    ] = False
    trusted_proxies: Annotated[
        tuple[str, ...],
        About(
            "Address or network of a proxy in front, like 10.1.0.0/16, whose X-Forwarded-For or Forwarded names the "
            "sender. Repeatable. The proxy must set that header itself",
            option="--trusted-proxy",
        ),
    ] = ()
    max_body_bytes: Annotated[int, About("Largest body", unit="bytes", minimum=1024, maximum=64 * 2**20)] = (
        2**20
    )
    max_connections: Annotated[
        int, About("Maximum number of connections", unit="connections", minimum=1, maximum=10_000)
    ] = 128

    @property
    def address_limit(self) -> bool:
        """True if connections are limited by address. False if all connections may come from one proxy that
        `trusted_proxies` does not name.
        """
        return bool(self.trusted_proxies) or not self.plain_http

    def limits(self) -> Limits:
        """The server's bounds."""
        share = max(1, self.max_connections // 4)
        return Limits(
            connections=self.max_connections,
            strangers=share if self.address_limit else self.max_connections,
            body_bytes=self.max_body_bytes,
        )

    def tls(self) -> RenewedTls | None:
        """The server's TLS; None for plain HTTP, which is refused on addresses other than loopback."""
        cert_file, key_file = self.cert_file, self.key_file
        if cert_file is None or key_file is None:
            if cert_file or key_file:
                raise UsageError("TLS needs both a certificate and a key")
            if not (self.plain_http or _is_loopback(self.host)):
                raise UsageError(
                    f"{self.host} is not a loopback address: give a certificate and a key, or allow plain HTTP if a "
                    "proxy in front does TLS"
                )
            return None

        def made() -> ssl.SSLContext:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                context.load_cert_chain(cert_file, key_file)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"certificate {cert_file!r}: {error}") from error
            return context

        return RenewedTls(made, (cert_file, key_file))


class Listener:
    """Serves an application at the address in its settings. `UsageError` for unsafe or impossible settings."""

    def __init__(
        self, application: Application, settings: ListeningSettings, limits: Limits | None = None
    ) -> None:
        """`limits`: the server's bounds; the default is the settings' bounds."""
        self._application = application
        self._settings = settings
        self._tls = settings.tls()
        self._proxies = TrustedProxies.of(settings.trusted_proxies)
        self._limits = limits or settings.limits()

    async def serve(
        self,
        *,
        ended: Callable[[], bool],
        progress: Progress,
        counts: Callable[[], Mapping[str, int]],
        ready: Callable[[tuple[str, int]], None],
    ) -> None:
        """Listens, calls `ready` with the address, reports counts every 10 s, and returns when `ended` is true."""
        settings = self._settings
        server = HttpServer(self._application, self._limits, self._proxies)
        try:
            host, port = await server.start(settings.host, settings.port, self._tls)
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise UsageError(f"cannot listen on {where}: {error.strerror or error}") from error
        progress(f"listening on {host}:{port}{' (TLS)' if self._tls else ''}")
        if not settings.address_limit:
            progress(
                "warning: plain_http without trusted_proxies: connections are not limited by address, so strangers "
                "who reach the proxy may take all of them; name the proxy: --trusted-proxy ADDRESS"
            )
        ready((host, port))
        loop = asyncio.get_running_loop()
        reported, next_at = "", loop.time() + PROGRESS_SECONDS
        while not ended():
            await asyncio.sleep(_STOP_POLL_SECONDS)
            if loop.time() >= next_at:
                next_at = loop.time() + PROGRESS_SECONDS
                line = " ".join(f"{kind}={number}" for kind, number in counts().items() if number)
                if line != reported:
                    progress(line)
                reported = line
        await server.close(GRACE_SECONDS)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
