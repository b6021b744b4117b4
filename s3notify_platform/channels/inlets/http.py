"""Inlet over HTTP: the S3 event posts of Ceph RGW, MinIO, and whatever else sends S3's event messages.

Guarantees. 200 means that every change in the post is durable in its topics, and signalled. Any other answer, or
none, means that the sender has to send it again; duplicates are harmless.

| answer | when |
|---|---|
| 200 | durable; also for records that are no news here |
| 400 | no S3 event message: sending it again will not help. It is kept as poison with its reason |
| 401 | the secret is missing or wrong; the body is not read |
| 404, 405 | no POST to `/` |
| 408, 413, 431 | too slow, too large |
| 503 with Retry-After | a topic is full, the store is unavailable, or all connections are taken |

Authentication is mandatory: a secret from a named environment variable, in one of
    authorization: Bearer SECRET, authorization: SECRET     MinIO's `auth_token`, with or without `Bearer`
    authorization: Basic …                                  the password is the secret, the user any: Ceph's endpoint
                                                            `https://user:SECRET@host:port/`
    x-s3notify-secret: SECRET                               everything else
Several variables may be named, so that a secret can be changed without a gap. It listens on loopback; elsewhere only
by TLS, or if it is said that something in front does that.

Posts that arrive while others are worked on are taken together: Ceph sends one record a post, and a batch counts
its entries, and signals its slots, once. `GET /health` answers 200, without a secret, while the receiver serves.

The bucket's side. Ceph: a topic with `push-endpoint`, `persistent=true`, and the bucket's notification to it. Ceph
takes an endpoint with a password only in a request that came by TLS; its first post comes up to 30 s later (RGW 16);
and it sends again whatever is not answered 2xx, so look at the poison. MinIO: `notify_webhook` with `endpoint`,
`auth_token` and a `queue_dir`, then `mc event add … --event put,delete,ilm`.
"""

import asyncio
import hmac
import ipaddress
import logging
import os
import ssl
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from math import ceil
from pathlib import Path
from threading import Condition, Thread
from threading import Event as Stop
from typing import Final

from s3notify_platform.channels.inlets.http_server import Answer, Head, HttpServer, Limits
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.service import Progress
from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.protocols.notification_queue import Event, decode_events

log = logging.getLogger(__name__)

SECRET_MIN: Final = 16
"""Characters of a secret."""

WORKERS: Final = 2
"""Batches worked on at once: on a bucket alone more of them only take turns."""

BATCH_EVENTS: Final = 500
"""Events of one batch, about."""

ANSWER_SECONDS: Final = 60.0
"""A post that is not durable by then is answered 503; it may become so all the same."""

GRACE_SECONDS: Final = 8.0
"""For posts in hand at a clean stop."""

JOIN_SECONDS: Final = 1.0
"""For a worker that nobody waits for any more; it may be left behind."""

_STOP_POLL_SECONDS: Final = 0.2
_PROGRESS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """Where to listen, whom to believe. `UsageError` for what would not be safe, when the receiver is made."""

    secret_envs: Sequence[str]
    """Names of environment variables that hold a secret; each that is set is accepted."""
    host: str = "127.0.0.1"
    port: int = 8086
    cert_file: Path | None = None
    key_file: Path | None = None
    plain_http: bool = False
    """Something in front does TLS: listen elsewhere than on loopback without it."""
    limits: Limits = field(default_factory=Limits)

    def secrets(self) -> tuple[bytes, ...]:
        """Digests of the secrets."""
        found = [os.environ[name] for name in self.secret_envs if os.environ.get(name)]
        if not found:
            raise UsageError(f"no secret: set the environment variable {' or '.join(self.secret_envs)}")
        if any(len(secret) < SECRET_MIN or not secret.isascii() for secret in found):
            raise UsageError(f"a secret has at least {SECRET_MIN} characters, all of them ASCII")
        return tuple(_digest(secret) for secret in found)

    def tls(self) -> ssl.SSLContext | None:
        """The server's TLS; None for plain HTTP, which is refused where others could listen."""
        if self.cert_file is None or self.key_file is None:
            if self.cert_file or self.key_file:
                raise UsageError("TLS needs both a certificate and a key")
            if not (self.plain_http or _is_loopback(self.host)):
                raise UsageError(
                    f"{self.host} is no loopback address: give a certificate and a key, or say that something in "
                    "front does TLS"
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"certificate {str(self.cert_file)!r}: {error}") from error
        return context


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


class Receiver:
    """A `Service`: posts into one intake. `address` is where it listens, once `ready` is set."""

    name = "http"

    def __init__(self, settings: ReceiverSettings, intake: Intake) -> None:
        self._settings = settings
        self._secrets = settings.secrets()
        self._tls = settings.tls()
        self._intake = intake
        self._counts: Counter[str] = Counter()
        self._posts: deque[_Post] = deque()
        self._more = Condition()
        self._ended = False
        self._fatal: S3NotifyError | None = None
        self.ready = Stop()
        self.address = ("", 0)

    def run(self, stop: Stop, progress: Progress) -> None:
        """See `Service.run`. Ends within `GRACE_SECONDS` and 3 s."""
        self._ended = False
        workers = [Thread(target=self._work, name=f"receiver-{n}", daemon=True) for n in range(WORKERS)]
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
            self.ready.clear()

    def counts(self) -> Mapping[str, int]:
        """Posts by what they were answered; and what came of their events."""
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
            async with asyncio.timeout(ANSWER_SECONDS):
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
            return await asyncio.to_thread(self._dead_letter, body, str(error))
        if not events:
            return Answer(status=HTTPStatus.OK)
        loop = asyncio.get_running_loop()
        post = _Post(events=events, loop=loop, answer=loop.create_future())
        with self._more:
            self._posts.append(post)
            self._more.notify()
        return await post.answer

    async def _serve(self, stop: Stop, progress: Progress) -> None:
        server = HttpServer(self, self._settings.limits)
        try:
            self.address = await server.start(self._settings.host, self._settings.port, self._tls)
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise UsageError(f"cannot listen on {where}: {error.strerror or error}") from error
        progress(f"listening on {self.address[0]}:{self.address[1]}{' (TLS)' if self._tls else ''}")
        self.ready.set()
        loop = asyncio.get_running_loop()
        told, next_at = "", loop.time() + _PROGRESS_SECONDS
        while not stop.is_set() and self._fatal is None:
            await asyncio.sleep(_STOP_POLL_SECONDS)
            if loop.time() >= next_at:
                next_at = loop.time() + _PROGRESS_SECONDS
                line = " ".join(f"{kind}={number}" for kind, number in self.counts().items() if number)
                if line != told:
                    progress(line)
                told = line
        await server.close(GRACE_SECONDS)
        if self._fatal is not None:
            raise self._fatal

    # The workers' side.

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
            # Only an operator can mend it: the service ends, with what it says.
            self._fatal = error
            for post in batch:
                post.resolve(_later("see the receiver's log", 30.0))
            return
        except Exception:
            log.exception("a batch of %d posts could not be handled", len(batch))
            for post in batch:
                post.resolve(_later("see the receiver's log", 5.0))
            return
        outcomes = iter(accepted.outcomes)
        for post in batch:
            came_to = {next(outcomes) for _ in post.events}
            if came_to & {"full", "unavailable"}:
                cause = "a topic is full" if "full" in came_to else "the store is unavailable"
                post.resolve(_later(cause, accepted.retry_after_seconds or 1.0))
            else:
                post.resolve(Answer(status=HTTPStatus.OK))

    def _dead_letter(self, body: bytes, reason: str) -> Answer:
        try:
            kept = self._intake.quarantine.keep(body, origin="http", reason=reason)
        except S3NotifyError as error:
            log.warning("a malformed post could not be kept: %s", error)
            return _later("the store is unavailable", 1.0)
        text = "no S3 event message" + ("" if kept else "; not kept, there is too much of it already")
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
    """Takes as long whatever the secret is, and whichever it matches."""
    found = _digest(secret)
    return sum(hmac.compare_digest(found, digest) for digest in digests) > 0


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", errors="surrogatepass")).digest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
