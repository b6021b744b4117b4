"""The process that sends a request looks up its own credentials, and repeats the look-up regularly.

So no secret is sent to another machine. Changed keys in a profile's file reach clients, Spark's Python workers and
daemons within `CREDENTIALS_SECONDS`. A role's keys are renewed automatically. Environment variables are fixed when a
process starts: to change them, restart Spark, Dagster's code location and `s3notify warm`.
"""

import os
from dataclasses import replace
from functools import cache, partial
from threading import Lock
from typing import Any

import boto3
import botocore.session
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    Credentials,
    DeferredRefreshableCredentials,
    ReadOnlyCredentials,
    RefreshableCredentials,
)
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import CREDENTIALS_SECONDS
from s3notify_platform.stores.config import Access


def session_of(access: Access, clock: Clock = SYSTEM_CLOCK) -> boto3.session.Session:
    """A boto3 session that signs with these credentials. Cost: 1 request for a role, when the role's keys are first
    used; otherwise none.
    """
    core = botocore.session.get_session()
    core.register_component("credential_provider", CredentialResolver([_Named(access, clock)]))
    session = boto3.session.Session(botocore_session=core, region_name=access.region)
    core.register_component("data_loader", _service_models())
    return session


@cache
def _service_models() -> Loader:
    # Service models are read once per process. Without this cache, each session would read the models again, and a
    # client would cost ten times as much.
    return create_loader()


class _Named(CredentialProvider):
    METHOD = "s3notify"

    def __init__(self, access: Access, clock: Clock) -> None:
        super().__init__()
        self._access = access
        self._clock = clock

    def load(self) -> Credentials | None:
        found = _found(self._access, self._clock)
        if found is None or isinstance(found, RefreshableCredentials):
            return found
        return _LookedUpAgain(self._access, self._clock, found)


class _LookedUpAgain(Credentials):
    def __init__(self, access: Access, clock: Clock, found: Credentials) -> None:
        super().__init__(found.access_key, found.secret_key, found.token, found.method)
        self._access = access
        self._clock = clock
        self._latest = found
        self._until = clock.monotonic() + CREDENTIALS_SECONDS
        self._looking = Lock()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        if self._clock.monotonic() >= self._until and self._looking.acquire(blocking=False):
            try:
                self._latest = _found(self._access, self._clock) or self._latest
            except (BotoCoreError, UsageError):
                pass  # the file may be half written, so the old keys stay in use; the service refuses invalid keys
            finally:
                self._until = self._clock.monotonic() + CREDENTIALS_SECONDS
                self._looking.release()
        return self._latest.get_frozen_credentials()


def _found(access: Access, clock: Clock) -> Any:
    own = _own(access)
    if access.role_arn is None or own is None:
        return own
    if not isinstance(own, RefreshableCredentials):
        # The keys of the user that assumes the role may change before the role's keys are renewed.
        own = _LookedUpAgain(replace(access, role_arn=None, external_id=None), clock, own)
    create = partial(botocore.session.get_session().create_client, region_name=access.region)
    about = {"RoleSessionName": "s3notify"} | (
        {"ExternalId": access.external_id} if access.external_id else {}
    )
    fetcher = AssumeRoleCredentialFetcher(create, own, access.role_arn, extra_args=about)
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _own(access: Access) -> Any:
    found = _given(access)
    if found is not None and not isinstance(found, RefreshableCredentials):
        keys = {
            "access key id": found.access_key,
            "secret access key": found.secret_key,
            "token": found.token,
        }
        for name, key in keys.items():
            # obstore would panic over such a key, and boto3 would report an outage.
            if not (key or "").isprintable():
                raise UsageError(
                    f"{access.place}: the {name} has a line break or another control character: remove it where the "
                    "key is set"
                )
    return found


def _given(access: Access) -> Any:
    if access.access_key_id is not None and access.secret_access_key is not None:
        return Credentials(access.access_key_id, access.secret_access_key, access.session_token)
    if access.access_key_id_env is not None and access.secret_access_key_env is not None:
        token = access.session_token_env and _variable(access, access.session_token_env)
        key_id, secret = (
            _variable(access, n) for n in (access.access_key_id_env, access.secret_access_key_env)
        )
        return Credentials(key_id, secret, token)
    return boto3.session.Session(profile_name=access.profile).get_credentials()


def _variable(access: Access, name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise UsageError(
        f"{access.place}: this process has no environment variable {name}, or it is empty: set it where Dagster runs, "
        "and for Spark on every machine of the cluster, before these processes start"
    )
