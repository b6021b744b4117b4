"""Inlet over HTTP for the S3 event posts of Ceph RGW, MinIO, and other senders of S3 event messages.

Guarantees. 200 means that every change in the post is durable in each persistent topic that takes it, and signalled. If
the answer is neither 200 nor 400, or is missing, the sender must send the post again; duplicates do no damage.

| answer | when |
|---|---|
| 200 | the changes are durable, or no event of the post concerns this inlet |
| 400 | not an S3 event message: do not send it again. The post is kept as poison with its reason |
| 401 | the secret is missing or wrong; the body is not read |
| 404, 405 | not a POST to `/` |
| 408 | the post is too slow |
| 413, 431 | the post's body or head is too large |
| 503 with Retry-After | a topic is full, the store is unavailable, or all connections are in use |

Connections that have not sent the secret yet are limited: each address may have a quarter of `max_connections`, for 10
s each; see `http_server`. Behind a proxy all senders have the proxy's address. If `trusted_proxies` names the proxy,
each client of the proxy gets a share of its own (`proxies`). If `plain_http` is set without `trusted_proxies`,
connections are limited only by `max_connections`. So anybody who reaches the proxy may take all connections, for 10 s
each. The inlet warns of this risk when it starts.

Authentication is mandatory. The secret comes from a named environment variable. A request has the secret in one of
these headers:
    - `authorization: Bearer SECRET` or `authorization: SECRET`: MinIO's `auth_token`, with or without `Bearer`.
    - `authorization: Basic …`: the password is the secret, the user name is ignored. Ceph sends this header for an
      endpoint `https://user:SECRET@host:port/`.
    - `x-s3notify-secret: SECRET`: all other senders.

The settings may name several variables, so that a secret can be changed without interruption. By default the inlet
listens on loopback. It listens on other addresses only with TLS, or with `plain_http` if a proxy in front does TLS.

Posts that arrive while a batch is processed form the next batch. Ceph sends one record in each post. A batch saves
requests: the entries of a batch are counted together, and each slot is signalled once. `GET /health` answers 200,
without a secret, while the inlet serves.

Setup of the sender. Ceph needs a topic with `push-endpoint` and `persistent=true`, and a notification of the bucket to
this topic. Ceph accepts an endpoint with a password only in a request over TLS. Ceph repeats posts until they are
answered 2xx, even malformed posts: see `s3notify inlet poison`. RGW 16 may send the first post of a new topic up to 30
s late. After an endpoint failed for some seconds, the gateway may send nothing to this endpoint until the gateway is
restarted. The sweep finds the changes that were not sent. MinIO: set `notify_webhook` with `endpoint`, `auth_token` and
a `queue_dir`; then type `mc event add … --event put,delete,ilm`.
"""

import asyncio
import hmac
import logging
import os
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from math import ceil
from threading import Condition, Thread
from threading import Event as Stop
from typing import Annotated, Final

from s3notify_platform.channels.delivery.egress_settings import EgressSettings
from s3notify_platform.channels.inlets.http_server import Answer, Head, Limits, SparseLog
from s3notify_platform.channels.inlets.intake import Intake, intake_of
from s3notify_platform.channels.inlets.listening import Listener, ListeningSettings
from s3notify_platform.channels.service import Progress, Service, ServiceContext
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.limits import SECRET_MIN
from s3notify_platform.kernel.setting import About
from s3notify_platform.protocols.notification_queue import Event, decode_events

log = logging.getLogger(__name__)

WORKERS: Final = 2
"""Number of batches that are processed in parallel. If the queue is on a bucket, more workers would only wait for each
other.
"""

BATCH_EVENTS: Final = 500
"""Approximate number of events in one batch."""

POST_SECONDS: Final = 60.0
"""A post whose changes are not durable after this time is answered 503. If no worker has begun the post, the post is
dropped. Otherwise, the post's changes may become durable later.
"""

JOIN_SECONDS: Final = 1.0
"""A worker gets this time to end after its posts were answered. Then the worker is abandoned."""


@dataclass(frozen=True, kw_only=True)
class HttpInletSettings(EgressSettings, ListeningSettings):
    """Receive S3 event posts of Ceph RGW, MinIO, and others; answer 200 only when a change is durable.

    Senders give the secret, of 16 characters or more, as `Authorization: Bearer SECRET` or without `Bearer` (MinIO's
    auth_token), as the password of basic authentication (Ceph), or as `X-S3Notify-Secret`.

    `s3notify init NAME --events --receiver https://HOST:PORT/` sets up Ceph, and prints commands for MinIO. By hand:

    \b
    Ceph:   a topic, created by TLS, with persistent=true and
              push-endpoint=https://any:SECRET@HOST:PORT/
            the bucket's notification to it for s3:ObjectCreated:*,
              s3:ObjectRemoved:* and s3:ObjectLifecycle:Expiration:Current
    MinIO:  mc admin config set ALIAS notify_webhook:1 endpoint=https://HOST:PORT/
              auth_token=SECRET queue_dir=/var/lib/minio/events
            mc event add ALIAS/BUCKET arn:minio:sqs::1:webhook
              --event put,delete,ilm --prefix raw/

    `GET /health` answers 200 while the inlet serves. Malformed posts are answered 400, and kept: see
    `s3notify inlet poison`. The inlet itself sends events to topics that are not persistent, before it answers: the
    options `--allow-…` and `--ca-folder` permit their endpoints.
    """  # noqa: D301 - \b is click's mark

    secret_envs: Annotated[
        tuple[str, ...],
        About(
            "Environment variable with the secret. Repeatable, to change the secret without interruption",
            option="--secret-env",
        ),
    ] = ("S3NOTIFY_RECEIVER_SECRET",)

    def build(self, context: ServiceContext) -> Service:
        """See `ServiceSettings.build`. `UsageError` without a secret, or for an address beyond loopback without TLS."""
        return HttpInlet(self, intake_of(context, self.egress()))

    def secrets(self) -> tuple[bytes, ...]:
        """SHA-256 digests of the secrets."""
        found = [os.environ[name] for name in self.secret_envs if os.environ.get(name)]
        if not found:
            raise UsageError(
                f"no secret is set: set the environment variable {' or '.join(self.secret_envs)}"
            )
        if any(len(secret) < SECRET_MIN or not secret.isascii() for secret in found):
            raise UsageError(f"a secret needs at least {SECRET_MIN} characters, all ASCII")
        return tuple(_digest(secret) for secret in found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Post:
    events: tuple[Event, ...]
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[Answer]"

    def resolve(self, answer: Answer) -> None:
        def settle() -> None:
            if not self.answer.done():
                self.answer.set_result(answer)

        self.loop.call_soon_threadsafe(settle)


class HttpInlet:
    """A service that passes posts to one intake. `address` is its listening address, after `ready` is set."""

    name = "http"

    def __init__(self, settings: HttpInletSettings, intake: Intake, limits: Limits | None = None) -> None:
        """`limits`: the server's bounds; the default is the settings' bounds."""
        self._settings = settings
        self._secrets = settings.secrets()
        self._listener = Listener(self, settings, limits)
        self._intake = intake
        self._log = SparseLog(log)
        self._counts: Counter[str] = Counter()
        self._posts: deque[_Post] = deque()
        self._more = Condition()
        self._ended = False
        self._fatal: S3NotifyError | None = None
        self.ready = Stop()
        self.address = ("", 0)

    def run(self, stop: Stop, progress: Progress) -> None:
        """See `Service.run`. Ends within 8 s."""
        self._ended = False
        workers = [Thread(target=self._work, name=f"http-{n}", daemon=True) for n in range(WORKERS)]
        for worker in workers:
            worker.start()
        try:
            asyncio.run(self._serve(stop, progress))
        finally:
            with self._more:
                self._ended = True
                self._more.notify_all()
            for worker in workers:
                worker.join(JOIN_SECONDS)
            self._intake.direct.close()
            self.ready.clear()

    def counts(self) -> Mapping[str, int]:
        """The number of posts by answer, and of events by outcome."""
        with self._more:
            mine = {
                f"posts_{kind}": self._counts[kind] for kind in ("ok", "malformed", "unauthorized", "refused")
            }
        return {**mine, **self._intake.counts()}

    # The server's side, on its event loop.

    def admit(self, head: Head) -> Answer | None:
        """See `Application.admit`."""
        if head.path == "/health" and head.method in ("GET", "HEAD"):
            return Answer(status=HTTPStatus.OK, text="" if head.method == "HEAD" else "ok")
        if not _is_known(_secret_of(head), self._secrets):
            self._count("unauthorized")
            return Answer(
                status=HTTPStatus.UNAUTHORIZED, headers={"www-authenticate": 'Bearer, Basic realm="s3notify"'}
            )
        if head.path != "/":
            return Answer(status=HTTPStatus.NOT_FOUND)
        if head.method != "POST":
            return Answer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "POST"})
        return None

    async def handle(self, head: Head, body: bytes) -> Answer:
        """See `Application.handle`."""
        del head
        try:
            async with asyncio.timeout(POST_SECONDS):
                answer = await self._handle(body)
        except TimeoutError:
            answer = _later("the store is slow", 1.0)
        ok, bad = answer.status == HTTPStatus.OK, answer.status == HTTPStatus.BAD_REQUEST
        self._count("ok" if ok else "malformed" if bad else "refused")
        return answer

    async def _handle(self, body: bytes) -> Answer:
        try:
            events = decode_events(body).events
        except UsageError as error:
            return await asyncio.to_thread(self._set_aside, body, str(error))
        if not events:
            return Answer(status=HTTPStatus.OK)
        loop = asyncio.get_running_loop()
        post = _Post(events=events, loop=loop, answer=loop.create_future())
        with self._more:
            self._posts.append(post)
            self._more.notify()
        try:
            return await post.answer
        except asyncio.CancelledError:  # too late: the sender gets an answer before the outcome is known
            with self._more, suppress(ValueError):
                self._posts.remove(post)
            raise

    async def _serve(self, stop: Stop, progress: Progress) -> None:
        await self._listener.serve(
            ended=lambda: stop.is_set() or self._fatal is not None,
            progress=progress,
            counts=self.counts,
            ready=self._listening,
        )
        if self._fatal is not None:
            raise self._fatal

    def _listening(self, address: tuple[str, int]) -> None:
        self.address = address
        self.ready.set()

    # The workers' side, in their threads.

    def _work(self) -> None:
        while True:
            with self._more:
                while not self._posts and not self._ended:
                    self._more.wait()
                if not self._posts:
                    return
                batch: list[_Post] = []
                events = 0
                while self._posts and (not batch or events < BATCH_EVENTS):
                    batch.append(self._posts.popleft())
                    events += len(batch[-1].events)
            self._accept(batch)

    def _accept(self, batch: Sequence[_Post]) -> None:
        try:
            accepted = self._intake.accept([event for post in batch for event in post.events], origin="http")
        except S3NotifyError as error:
            # Only an operator can fix this: the service ends with this error.
            self._fatal = error
            for post in batch:
                post.resolve(_later("see the inlet's log", 30.0))
            return
        except Exception:  # noqa: BLE001 - it is logged, and the senders keep their posts
            self._log.warning("a batch of %d posts could not be handled", len(batch), exc_info=True)
            for post in batch:
                post.resolve(_later("see the inlet's log", 5.0))
            return
        outcomes = iter(accepted.outcomes)
        for post in batch:
            came_to = {next(outcomes) for _ in post.events}
            if came_to & {"full", "unavailable"}:
                cause = "a topic is full" if "full" in came_to else "the store is unavailable"
                post.resolve(_later(cause, accepted.retry_after_seconds or 1.0))
            else:
                post.resolve(Answer(status=HTTPStatus.OK))

    def _set_aside(self, body: bytes, reason: str) -> Answer:
        try:
            kept = self._intake.poison.keep(body, origin="http", reason=reason)
        except S3NotifyError as error:
            self._log.warning("a malformed post could not be kept: %s", error)
            return _later("the store is unavailable", 1.0)
        text = "not an S3 event message" + (
            "" if kept else "; not kept, since too much poison is kept already"
        )
        return Answer(status=HTTPStatus.BAD_REQUEST, text=text)

    def _count(self, kind: str) -> None:
        with self._more:
            self._counts[kind] += 1


def _later(cause: str, seconds: float) -> Answer:
    retry = {"retry-after": str(max(1, ceil(seconds)))}
    return Answer(status=HTTPStatus.SERVICE_UNAVAILABLE, text=cause, headers=retry)


def _secret_of(head: Head) -> str:
    if (own := head.headers.get("x-s3notify-secret")) is not None:
        return own
    value = head.headers.get("authorization", "")
    scheme, _, rest = value.partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip()
        case "basic":
            try:
                return b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")[2]
            except ValueError:
                return ""
        case _:
            return value


def _is_known(secret: str, digests: Sequence[bytes]) -> bool:
    """True if the secret has one of these digests. The check takes the same time for every secret and every digest."""
    found = _digest(secret)
    return sum(hmac.compare_digest(found, digest) for digest in digests) > 0


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", errors="surrogatepass")).digest()
