"""Requests to one bucket: the client, the rules of retries, and the outcomes of failed requests."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from s3notify_platform.kernel.attempts import attempts as the_attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError
from s3notify_platform.kernel.limits import REQUEST_ATTEMPTS, RETRY_CEILING_SECONDS
from s3notify_platform.kernel.ports import Conflict, ETag, Unknown, WriteOutcome
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.faults import Fault, Verdict, judge, no_bucket
from s3notify_platform.stores.s3.list_pages import read_listing
from s3notify_platform.stores.sdk import SDK_ERRORS, SdkUser, count_repeated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

RETRY_BASE_SECONDS = 0.1


class S3Requests(SdkUser["S3Client"]):
    """One bucket. Thread-safe."""

    def __init__(
        self,
        config: S3Config,
        *,
        clock: Clock = SYSTEM_CLOCK,
        client: "S3Client | None" = None,
        attempts: int = REQUEST_ATTEMPTS,
        **settings: float,
    ) -> None:
        """`settings`: `pool_size`, `connect_seconds` and `read_seconds` of the client."""
        super().__init__(
            "s3",
            config,
            client,
            **settings,
            # Stores other than AWS support neither the newer checksums nor bucket names as a part of the host name.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if config.endpoint_url else "auto"},
        )
        self.config = config
        self._clock = clock
        self._attempts = attempts
        self._bucket_seen = False

    def _prepare(self, client: "S3Client") -> None:
        client.meta.events.register("before-parse.s3.ListObjectsV2", read_listing)
        if self.config.requester_pays:
            client.meta.events.register("before-call.s3", _with({"x-amz-request-payer": "requester"}))
        if self.config.kms_key_id is not None:
            for operation in ("CopyObject", "CreateMultipartUpload"):
                client.meta.events.register(f"before-call.s3.{operation}", _with(self._encrypted))

    @property
    def _encrypted(self) -> dict[str, str]:
        if self.config.kms_key_id is None:
            return {}
        return {
            "x-amz-server-side-encryption": "aws:kms",
            "x-amz-server-side-encryption-aws-kms-key-id": self.config.kms_key_id,
        }

    def _send(
        self, request: Callable[[], T], *, conditional: bool = False, attempts: int | None = None
    ) -> T | Fault:
        """Sends a request, and retries if a retry is safe. Returns the answer, or the fault of the last attempt.

        If a refusal follows an attempt with an unknown outcome, the earlier attempt may still have been applied. In
        this case, the fault of the earlier attempt is returned.
        """
        maybe_applied, fault = None, Fault(verdict=Verdict.NOT_APPLIED, cause="never sent")
        most = attempts or self._attempts
        for attempt in the_attempts(
            self._clock, most, base=RETRY_BASE_SECONDS, ceiling=RETRY_CEILING_SECONDS
        ):
            if attempt:
                count_repeated("s3")
            try:
                answer = request()
                self._bucket_seen = True
                return answer
            except SDK_ERRORS as error:
                try:
                    fault = judge(error, self.config)
                except S3NotifyError:
                    if maybe_applied is None:
                        raise
                    return maybe_applied
            if fault.verdict is Verdict.AMBIGUOUS:
                maybe_applied = fault
                if conditional:
                    return fault
            elif fault.verdict is not Verdict.NOT_APPLIED:
                return fault
        return maybe_applied or fault

    def _outcome(self, fault: Fault) -> WriteOutcome:
        match fault.verdict:
            case Verdict.PRECONDITION | Verdict.MISSING:
                # AWS answers 404 to a request under If-Match if the object no longer exists.
                return Conflict()
            case Verdict.AMBIGUOUS:
                return Unknown(cause=f"{fault.cause} from {self.config.place}")
            case _:
                raise self._unavailable(fault)

    def _unavailable(self, fault: Fault) -> UnavailableError:
        return UnavailableError(f"{self.config.place} is unavailable: {fault.cause}")

    def _check_bucket(self) -> None:
        if self._bucket_seen:
            return
        answer: Any = self._send(lambda: self.client.head_bucket(Bucket=self.config.bucket))
        if isinstance(answer, Fault) and answer.verdict is Verdict.MISSING:
            raise no_bucket(self.config)


def _with(headers: Mapping[str, str]) -> Callable[..., None]:
    """A handler of botocore's event `before-call` that adds these headers before the request is signed."""

    def add(params: dict[str, Any], **_: object) -> None:
        params["headers"].update(headers)

    return add


def etag_of(answer: Any) -> ETag:
    """The ETag in an answer, or in an element of an answer."""
    return ETag(answer["ETag"].strip('"'))
