"""The front's service: signed requests of S3 and SNS over HTTP, for the topics of one queue and one bucket.

| request | answer |
|---|---|
| `POST /`, an action of SNS: `sns_topics` | 200, or SNS's XML error |
| `PUT /BUCKET?notification` | 200 when the new configuration applies to all later changes; or S3's XML error |
| `GET /BUCKET?notification`, Ceph's `?notification=ID` | 200: all configurations, or the one with ID; 404 NoSuchKey |
| `DELETE /BUCKET?notification`, `?notification=ID` | 204, also if there is no configuration |
| another bucket | 404 NoSuchBucket |
| any other request | 501 NotImplemented: the front is not a store |
| a signature that `sigv4` does not accept | 4xx, with the name that S3 or SNS has for the reason |
| the store does not answer; too many requests | 503 ServiceUnavailable with Retry-After: clients try again |
| `GET /health` | 200, without a signature |

Each request may be sent again, for example if its answer was lost: a repeated request has the same effect.

Threat model. A client with one of the front's keys is a creator of topics (see `channels`). The client decides which
changes of the bucket go to the topics that this API made. The client cannot see or change other topics, nor read an
object. A worker connects to the topics' endpoints only if the worker's own `Egress` permits it, as for topics of
`s3notify topics create`. Clients without a key get the share of connections that `http_server` describes. The bodies of
these clients' requests are read, within the server's bounds, because a signature covers the body, too.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event as Stop
from threading import Lock
from typing import Annotated, Final, Literal

from s3notify_platform.channels.front.front_answers import FrontError, Reply
from s3notify_platform.channels.front.front_keys import keys_of
from s3notify_platform.channels.front.front_notifications import BucketNotifications
from s3notify_platform.channels.front.s3_configurations import configurations_in, document_of
from s3notify_platform.channels.front.sigv4 import (
    DeniedError,
    Signed,
    check_signature,
    pairs_of,
    signed_of,
)
from s3notify_platform.channels.front.sns_topics import SnsTopics, action_parameters
from s3notify_platform.channels.inlets.http_server import UNPROVEN, Answer, Head, Limits, SparseLog
from s3notify_platform.channels.inlets.listening import Listener, ListeningSettings
from s3notify_platform.channels.service import Progress, Service, ServiceContext
from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.setting import About
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import default_region

log = logging.getLogger(__name__)

OPERATIONS: Final = 16
"""Maximum number of requests that are processed in parallel. A request that changes a topic takes some seconds."""

WAITING_MAX: Final = 64
"""Maximum number of requests that wait to be processed. Requests beyond this number are refused."""

ANSWER_SECONDS: Final = 50.0
"""A request that is not done after this time is answered 503. The request may still be done later. Clients wait 60 s.
"""

_FORM: Final = "application/x-www-form-urlencoded"
_PARAMETERS_MAX: Final = 200


@dataclass(frozen=True, kw_only=True)
class FrontSettings(ListeningSettings):
    """Let clients of S3, SNS and Ceph make topics and notifications, for any store behind the queue.

    The front answers CreateTopic, ListTopics, GetTopic, GetTopicAttributes, SetTopicAttributes and DeleteTopic. For
    --bucket, it also answers Put-, Get- and DeleteBucketNotificationConfiguration. Filters are by prefix and suffix
    and, as in Ceph, by regex, metadata and tags. Requests are signed (version 4) with the key in S3NOTIFY_FRONT_KEY_ID
    and S3NOTIFY_FRONT_SECRET, or with a key in --keys-file.

    \b
      aws --endpoint-url https://HOST:8087 sns create-topic --name hooks \\
        --attributes push-endpoint=https://hooks.example.com/s3
      aws --endpoint-url https://HOST:8087 s3api \\
        put-bucket-notification-configuration --bucket BUCKET \\
        --notification-configuration file://notification.json

    Topics that the front makes are pushed by `s3notify deliver`, and take only changes that a notification names. The
    changes come from publishers and inlets, as for every topic. Topics that the front did not make are neither shown
    nor changed. The front's IAM policy is the policy of an outlet: `s3notify init SOURCE --print iam --role outlet`.
    """  # noqa: D301 - \b is click's mark

    key_id_env: Annotated[str, About("Environment variable with the id of a key")] = "S3NOTIFY_FRONT_KEY_ID"
    secret_env: Annotated[str, About("Environment variable with the key's secret")] = "S3NOTIFY_FRONT_SECRET"  # noqa: S105 - a variable's name
    keys_file: Annotated[
        str | None,
        About(
            "File of further keys, like /etc/s3notify/keys, with lines KEY_ID SECRET; only its owner may read the file"
        ),
    ] = None
    arn_region: Annotated[
        str, About("Region in the ARNs of topics; in Ceph, the zone group. Default: the bucket's region")
    ] = ""
    on_put: Annotated[
        Literal["replace", "merge"],
        About(
            "Configurations that a put does not name: replace removes them, as on S3; merge keeps them, as in Ceph"
        ),
    ] = "replace"
    port: Annotated[int, About("Port to listen on; 0: any free port", minimum=0, maximum=65_535)] = 8087
    max_body_bytes: Annotated[int, About("Largest body", unit="bytes", minimum=1024, maximum=2**20)] = 2**18

    def build(self, context: ServiceContext) -> Service:
        """See `ServiceSettings.build`. `UsageError` without a key, or for an address beyond loopback without TLS."""
        region = self.arn_region or context.platform.region or default_region()
        return NotificationFront(self, context.queue, bucket=context.bucket, region=region)


class NotificationFront:
    """The service for the topics of one queue, and the notifications of one bucket. `address`: its listening
    address.
    """

    name = "serve-notifications"

    def __init__(
        self,
        settings: FrontSettings,
        queue: NotificationQueue,
        *,
        bucket: str,
        region: str,
        limits: Limits | None = None,
    ) -> None:
        """`region`: the region in ARNs. `limits`: the server's bounds; the default is the settings' bounds."""
        self._keys = keys_of(settings.key_id_env, settings.secret_env, settings.keys_file)
        self._listener = Listener(self, settings, limits)
        self._clock = queue.clock
        self._bucket = bucket
        self._topics = SnsTopics(queue, region)
        self._notifications = BucketNotifications(queue, bucket, settings.on_put)
        self._log = SparseLog(log)
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._working = 0
        self._pool: ThreadPoolExecutor | None = None
        self.ready = Stop()
        self.address = ("", 0)

    def run(self, stop: Stop, progress: Progress) -> None:
        """See `Service.run`. A change in progress is abandoned 5 s after the stop; it may be partly done."""
        self._pool = ThreadPoolExecutor(OPERATIONS, thread_name_prefix="front")
        try:
            asyncio.run(
                self._listener.serve(
                    ended=stop.is_set, progress=progress, counts=self.counts, ready=self._listening
                )
            )
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self.ready.clear()

    def counts(self) -> Mapping[str, int]:
        """The number of requests by outcome."""
        with self._lock:
            return {kind: self._counts[kind] for kind in ("ok", "invalid", "denied", "unavailable")}

    def _listening(self, address: tuple[str, int]) -> None:
        self.address = address
        self.ready.set()

    # The server's side, on its event loop.

    def admit(self, head: Head) -> Answer | None:
        """See `Application.admit`. The head alone may be enough to refuse a request, but never to admit it."""
        if head.path == "/health" and head.method in ("GET", "HEAD"):
            return Answer(status=HTTPStatus.OK, text="" if head.method == "HEAD" else "ok")
        reply = self._reply(head)
        try:
            self._signed(head)
        except DeniedError as error:
            self._count("denied")
            return reply.denied(error)
        return UNPROVEN

    async def handle(self, head: Head, body: bytes) -> Answer:
        """See `Application.handle`."""
        reply = self._reply(head)
        try:
            signed, secret = self._signed(head)
            check_signature(signed, head, body, secret)
        except DeniedError as error:
            self._count("denied")
            return reply.denied(error)
        answer = await self._worked_on(reply, head, body)
        bad = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self._count("unavailable" if bad else "invalid" if answer.status >= HTTPStatus.BAD_REQUEST else "ok")
        return Answer(status=answer.status, text=answer.text, headers=answer.headers, admits=True)

    async def _worked_on(self, reply: Reply, head: Head, body: bytes) -> Answer:
        assert self._pool is not None, "the service runs"
        if self._working >= WAITING_MAX:
            return reply.error(_unavailable("too many requests"))
        self._working += 1
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._answer, reply, head, body)
        work.add_done_callback(self._worked)
        try:
            return await asyncio.wait_for(asyncio.shield(work), ANSWER_SECONDS)
        except TimeoutError:
            return reply.error(_unavailable("the store is slow; the request may be done later"))

    def _worked(self, _: object) -> None:
        self._working -= 1

    def _reply(self, head: Head) -> Reply:
        form: Literal["s3", "sns"] = "sns" if head.method == "POST" and head.path == "/" else "s3"
        return Reply(form=form, request_id=unique_name(self._clock)[:16].upper())

    def _signed(self, head: Head) -> tuple[Signed, str]:
        signed = signed_of(head)
        signed.check_time(self._clock.wall_ms())
        if (secret := self._keys.get(signed.key_id)) is None:
            raise DeniedError("key", "The AWS access key ID you provided does not exist in our records.")
        return signed, secret

    def _count(self, kind: str) -> None:
        with self._lock:
            self._counts[kind] += 1

    # The workers' side, in their threads.

    def _answer(self, reply: Reply, head: Head, body: bytes) -> Answer:
        try:
            if reply.form == "sns":
                return self._topics.answer(_parameters(head, body), reply)
            return self._of_bucket(reply, head, body)
        except FrontError as error:
            return reply.error(error)
        except (UnavailableError, UnknownOutcomeError) as error:
            self._log.warning("a request was not done: %s", error)
            return reply.error(_unavailable("the store did not answer"))
        except S3NotifyError as error:  # an operator must fix the cause
            self._log.warning("a request was not done: %s", error)
        except Exception:  # noqa: BLE001 - a defect in one request must not end the others
            self._log.warning("a request failed", exc_info=True)
        return reply.error(FrontError(500, "InternalError", "We encountered an internal error: see the log."))

    def _of_bucket(self, reply: Reply, head: Head, body: bytes) -> Answer:
        query = dict(pairs_of(head.query))
        bucket, identity = self._bucket_of(head), query.get("notification")
        if identity is None or bucket is None or head.method not in ("PUT", "GET", "DELETE"):
            raise FrontError(
                501,
                "NotImplemented",
                "This service has only the notifications of a bucket: send other requests to the store",
            )
        if bucket != self._bucket:
            raise FrontError(404, "NoSuchBucket", "The specified bucket does not exist")
        if "x-amz-expected-bucket-owner" in head.headers:
            raise FrontError(501, "NotImplemented", "This service does not know the owners of buckets")
        if head.method == "GET":
            found = self._notifications.get(identity)
            return reply.document("NotificationConfiguration", document_of(found, self._topics.arn))
        if head.method == "DELETE":
            self._notifications.delete(identity)
            return reply.done(HTTPStatus.NO_CONTENT)
        if identity:
            raise FrontError(
                400,
                "InvalidArgument",
                "A put replaces all configurations: send ?notification without a value",
            )
        self._notifications.put(
            configurations_in(
                body, self._bucket, named=self._topics.named, fresh_id=lambda: unique_name(self._clock)[:32]
            )
        )
        return reply.done()

    def _bucket_of(self, head: Head) -> str | None:
        """The bucket in the path. A path without a bucket means our bucket, if the host name begins with our bucket's
        name.
        """
        name, _, key = head.path.removeprefix("/").partition("/")
        if not name and head.headers.get("host", "").startswith(f"{self._bucket}."):
            return self._bucket
        return name if name and not key else None


def _unavailable(why: str) -> FrontError:
    return FrontError(503, "ServiceUnavailable", f"Please try again: {why}.")


def _parameters(head: Head, body: bytes) -> dict[str, str]:
    """The parameters of an action: the parameters of the query, and the fields of the form in the body."""
    kind = head.headers.get("content-type", _FORM).partition(";")[0].strip().lower()
    if body and kind != _FORM:
        raise FrontError(400, "InvalidParameter", f"Invalid parameter: the body is not {_FORM}")
    try:
        text = body.decode("ascii")
    except ValueError:
        raise FrontError(400, "InvalidParameter", "Invalid parameter: the body is not URL-encoded") from None
    pairs = [*pairs_of(head.query), *pairs_of(text.replace("+", " "))]
    if len(pairs) > _PARAMETERS_MAX:
        raise FrontError(
            400, "InvalidParameter", f"Invalid parameter: more than {_PARAMETERS_MAX} parameters"
        )
    return action_parameters(pairs)
