"""Logins that a worker shows to endpoints: bearer tokens, user and password, headers with a key, certificates.

They are in variables of the worker's environment, each with the one host that it is for:

    S3NOTIFY_SEND_HOOKS='hooks.example.com bearer TOKEN'
    S3NOTIFY_SEND_HOOKS='hooks.example.com basic USER:PASSWORD'
    S3NOTIFY_SEND_HOOKS='hooks.example.com header X-Api-Key: KEY'
    S3NOTIFY_SEND_HOOKS='hooks.example.com certificate /etc/ours/client.pem /etc/ours/client.key'

A topic names the variable, by `login_env`. The host is the operator's word, not the topic's: so whoever creates a topic
cannot have another one's login sent to a host of his own. A login is sent to no host but this. With a certificate the
worker proves by TLS who it is (mTLS): PEM files, which the operator names, not the topic.
"""

import os
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.errors import UsageError

LOGIN_PREFIX: Final = "S3NOTIFY_SEND_"
LOGIN_NAME: Final = re.compile(f"{LOGIN_PREFIX}[A-Z0-9_]+")

_VALUE: Final = re.compile(
    r"(?P<host>[^\s]+) +(?P<kind>bearer|basic|header|certificate) +(?P<rest>[ -~]{1,4096})"
)
_HEADER: Final = re.compile(r"(?P<name>[A-Za-z0-9-]{1,64}): *(?P<value>.+)")
_HELP: Final = (
    "HOST bearer TOKEN, HOST basic USER:PASSWORD, HOST header NAME: VALUE, or HOST certificate CERT KEY"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What is sent to one host. Not shown when printed."""

    headers: tuple[tuple[str, str], ...] = ()
    user: str = ""
    password: str = ""
    certificate: tuple[str, str] | None = None
    """The files of a certificate and its key."""

    def __repr__(self) -> str:
        return "Login(…)"


def login(variable: str, host: str) -> Login | None:
    """The login for this host from this variable; None if no variable is named.

    `UsageError` if the variable is not set, has another form, or is for another host. Its value is never shown.
    """
    if not variable:
        return None
    value = os.environ.get(variable, "")
    if not value:
        raise UsageError(f"set {variable} where the worker runs: {_HELP}")
    found = _VALUE.fullmatch(value.strip())
    if found is None:
        raise UsageError(f"{variable}: give it as {_HELP}")
    if found["host"].lower() != host.lower():
        raise UsageError(
            f"{variable} is not for {host!r}: its value names the one host that it may be sent to"
        )
    rest = found["rest"]
    if found["kind"] == "bearer":
        return Login(headers=(("authorization", f"Bearer {rest}"),))
    if found["kind"] == "basic":
        user, _, password = rest.partition(":")
        basic = b64encode(rest.encode()).decode()
        return Login(headers=(("authorization", f"Basic {basic}"),), user=user, password=password)
    if found["kind"] == "certificate":
        files = rest.split()
        if len(files) != 2:
            raise UsageError(f"{variable}: give it as {_HELP}")
        return Login(certificate=(files[0], files[1]))
    header = _HEADER.fullmatch(rest)
    if header is None:
        raise UsageError(f"{variable}: give it as {_HELP}")
    return Login(headers=((header["name"].lower(), header["value"]),))
