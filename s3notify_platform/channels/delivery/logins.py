"""Logins that a worker sends to endpoints: bearer tokens, user and password, headers with a key, certificates.

Logins are in environment variables of the worker. Each variable begins with the only host that may get the login:

    S3NOTIFY_SEND_HOOKS='hooks.example.com bearer TOKEN'
    S3NOTIFY_SEND_HOOKS='hooks.example.com basic USER:PASSWORD'
    S3NOTIFY_SEND_HOOKS='hooks.example.com header X-Api-Key: KEY'
    S3NOTIFY_SEND_HOOKS='hooks.example.com certificate /etc/ours/client.pem /etc/ours/client.key'

A topic names the variable in `login_env`. The operator, not the topic, names the host. A login is sent only to the host
that its variable names. So the creator of a topic cannot make the worker send a login to any other host. With a
certificate the worker proves its identity by TLS (mTLS); the operator, not the topic, names the PEM files. New
connections use renewed files.
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
    """The login that is sent to one host. Its repr shows no secret."""

    headers: tuple[tuple[str, str], ...] = ()
    user: str = ""
    password: str = ""
    certificate: tuple[str, str] | None = None
    """The paths of a certificate and its key."""

    def __repr__(self) -> str:
        return "Login(…)"


def login(variable: str, host: str) -> Login | None:
    """Reads the login for this host from this variable; None if no variable is named.

    `UsageError` if the variable is not set, has an invalid form, or is for another host. The value of the variable is
    never shown.
    """
    if not variable:
        return None
    value = os.environ.get(variable, "")
    if not value:
        raise UsageError(
            f"in the environment of the process that sends the events, set {variable} to {_HELP}"
        )
    found = _VALUE.fullmatch(value.strip())
    if found is None:
        raise UsageError(f"{variable} has another form: give it as {_HELP}")
    if found["host"].lower() != host.lower():
        raise UsageError(
            f"{variable} is not for {host!r}: the value must begin with the one host that may get the login"
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
            raise UsageError(f"{variable} has another form: give it as {_HELP}")
        return Login(certificate=(files[0], files[1]))
    header = _HEADER.fullmatch(rest)
    if header is None:
        raise UsageError(f"{variable} has another form: give it as {_HELP}")
    return Login(headers=((header["name"].lower(), header["value"]),))
