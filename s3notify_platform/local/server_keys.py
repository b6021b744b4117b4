"""Keys of the embedded server's inner ports: master, volume, filer, and the gRPC port of each.

Guarantee. A client without a key learns nothing from the inner ports, not even that the server is alive. The server
must have the files of `inner_keys` in its working directory. All inner ports require a client certificate, also on
gRPC's Unix sockets. Volume and filer also require a signature in each request. A client without credentials learns from
the S3 port only that the server is alive (`/healthz`, `/status`).

The server is the only user of the keys, so each start makes new ones.
"""

import datetime as dt
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.local.process import HOST

SECURITY: Final = "security.toml"
"""The server reads this file in its working directory, before the files in `$HOME/.seaweedfs` and `/etc/seaweedfs`."""

KEY: Final = "inner.key"
CERTIFICATE: Final = "inner.crt"

_SIGNED: Final = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_CERTIFIED: Final = (
    "grpc.master", "grpc.volume", "grpc.filer", "grpc.s3", "grpc.client", "https.master", "https.volume", "https.filer"
)  # fmt: skip
_KEY_BYTES: Final = 32
_FROM, _UNTIL = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2120, 1, 1, tzinfo=dt.UTC)


def inner_keys(clock: Clock) -> Mapping[str, str]:
    """The contents of new files, by file name. Every file is secret."""
    key, certificate = _certificate()
    pair = f'ca = "{CERTIFICATE}"\ncert = "{CERTIFICATE}"\nkey = "{KEY}"\n'
    signed = (f'[{name}]\nkey = "{clock.random_bytes(_KEY_BYTES).hex()}"\n' for name in _SIGNED)
    certified = (f"[{name}]\n{pair}" for name in ("grpc", *_CERTIFIED))
    client = f"[https.client]\nenabled = true\n{pair}"
    return {KEY: key, CERTIFICATE: certificate, SECURITY: "".join((*signed, *certified, client))}


def _certificate() -> tuple[str, str]:
    """A key and a certificate. All parts of the server use the same pair: as certificate authority, as server and as
    client.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "s3notify")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FROM, _UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private.decode(), made.public_bytes(pem).decode()
