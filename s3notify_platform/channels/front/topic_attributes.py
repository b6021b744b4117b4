"""Converts between a topic's attributes, with Ceph's names, and the topic's settings. Pure.

| attribute | value |
|---|---|
| push-endpoint | http[s]://…, amqp[s]://host/vhost, kafka[s]://host/topic; without a user or password |
| persistent | true, which is the default: the topic is a queue; false: `direct_delivery`, at most once |
| OpaqueData | text that each record has as `opaqueData` |
| verify-ssl | HTTP only: true if the certificate is verified |
| ca-location | a file of certificates in the worker's --ca-folder |
| cloudevents | HTTP only: true if messages are CloudEvents, with their attributes in headers |
| amqp-exchange | the exchange; the routing key is the topic's name |
| amqp-ack-level | none, broker, routable (default) |
| kafka-ack-level | none, broker (default) |
| kafka-brokers | further brokers, HOST[:PORT],… |
| use-ssl | Kafka only: true means kafkas:// |
| time_to_live, max_retries, retry_sleep_duration | seconds, deliveries, seconds; `None` means this package's default |
| login-env, secret-env | our own: names of the worker's variables (`Endpoint`), in place of secrets |

Other attributes are refused. With persistent=false, the process that announces a change also sends it to the endpoint.
Our publisher sends the change after the write, before the publisher's call returns. An inlet sends the change before it
answers the store. Ceph sends the change before it answers the write. Here, as in Ceph, a failed request loses the
notification, but does not fail the write.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.messages import S3
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import TopicSettings

_PLAIN: Final = TopicSettings(without_rules="none")
_BOOLEANS: Final = ("persistent", "verify-ssl", "cloudevents", "use-ssl")
_ACKS: Final = {"amqp-ack-level": ("none", "broker", "routable"), "kafka-ack-level": ("none", "broker")}
_NUMBERS: Final = {
    "time_to_live": "ttl_seconds",
    "max_retries": "max_attempts",
    "retry_sleep_duration": "retry_seconds",
}
"""The settings with a number as value, by the name of the attribute."""

_TEXTS: Final = (
    "push-endpoint",
    "OpaqueData",
    "ca-location",
    "amqp-exchange",
    "kafka-brokers",
    "login-env",
    "secret-env",
)
_IN_QUERY: Final = {
    "amqp": {"amqp-exchange": "exchange", "amqp-ack-level": "ack"},
    "kafka": {"kafka-brokers": "brokers", "kafka-ack-level": "ack"},
}
"""Attributes that become query parameters of the endpoint's url, by the url's scheme."""

NAMES: Final = (*_TEXTS, *_BOOLEANS, *_ACKS, *_NUMBERS)

_CLOUD_EVENTS: Final = "cloudevents-binary"
_KAFKA_PORT: Final = 9092
"""Ceph's default port, also with `use-ssl`."""


def settings_of(given: Mapping[str, str], before: TopicSettings = _PLAIN) -> TopicSettings:
    """The settings of a topic with exactly these attributes. Rules, and settings that no attribute describes, stay as
    in `before`. A number also stays as in `before` if its attribute has not changed, because an attribute cannot
    express every number.

    `UsageError` for attributes that do not exist, or that cannot work.
    """
    for name in given:
        if name not in NAMES:
            raise UsageError(f"there is no attribute {name[:60]!r}: use one of {', '.join(NAMES)}")
    for name, levels in _ACKS.items():
        if given.get(name) and given[name] not in levels:
            raise UsageError(f"{name}: use one of {', '.join(levels)}")
    flags = {name: _flag(name, given[name]) for name in _BOOLEANS if name in given}
    shown = attributes_of(before)
    numbers: dict[str, Any] = {
        setting: _number(name, given.get(name, ""))
        for name, setting in _NUMBERS.items()
        if given.get(name) != shown.get(name)
    }
    return replace(
        before,
        endpoint=_endpoint(given, flags, before) if given.get("push-endpoint") else _no_endpoint(given),
        persistent=flags.get("persistent", True),
        **numbers,
    )


def attributes_of(settings: TopicSettings) -> dict[str, str]:
    """The attributes for these settings: `settings_of` converts the attributes back to equivalent settings."""
    found: dict[str, str] = {"persistent": "true" if settings.persistent else "false"}
    if settings.endpoint:
        endpoint = Endpoint.loads(settings.endpoint)
        parts = urlsplit(endpoint.url)
        pairs = [part.partition("=") for part in parts.query.split("&") if part]
        named = {ours: theirs for theirs, ours in _in_query(parts.scheme).items()}
        found |= {named[name]: unquote(value) for name, _, value in pairs if name in named}
        parts = parts._replace(query="&".join("".join(pair) for pair in pairs if pair[0] not in named))
        if parts.scheme == "kafkas":
            found["use-ssl"] = "true"
            address = parts.netloc if parts.port else f"{parts.netloc}:{endpoint.port}"
            parts = parts._replace(scheme="kafka", netloc=address)
        found |= {
            "push-endpoint": parts.geturl(),
            "OpaqueData": endpoint.opaque_data,
            "ca-location": endpoint.ca_file,
            "login-env": endpoint.login_env,
            "secret-env": endpoint.secret_env,
            "verify-ssl": "" if endpoint.verify else "false",
            "cloudevents": "true" if endpoint.format == _CLOUD_EVENTS else "",
        }
    for name, setting in _NUMBERS.items():
        number = getattr(settings, setting)
        found[name] = "" if number in (None, getattr(_PLAIN, setting)) else f"{number}".removesuffix(".0")
    return {name: value for name, value in found.items() if value}


def _endpoint(given: Mapping[str, str], flags: Mapping[str, bool], before: TopicSettings) -> str:
    url = given["push-endpoint"]
    parts = urlsplit(url)
    if flags.get("use-ssl") and parts.scheme == "kafka":
        address = parts.netloc if parts.port else f"{parts.netloc}:{_KAFKA_PORT}"
        parts = parts._replace(scheme="kafkas", netloc=address)
    query = [
        f"{ours}={quote(given[theirs], safe=':,')}"
        for theirs, ours in _in_query(parts.scheme).items()
        if given.get(theirs)
    ]
    if query or flags.get("use-ssl"):  # a url that needs no change is not rebuilt, because URL parsers differ
        url = parts._replace(query="&".join(filter(None, (parts.query, *query)))).geturl()
    base = Endpoint.loads(before.endpoint) if before.endpoint else Endpoint(url=url)
    # No attribute describes the format `cloudevents`.
    formats = {True: _CLOUD_EVENTS, False: S3, None: S3 if base.format == _CLOUD_EVENTS else base.format}
    return replace(
        base,
        url=url,
        format=formats[flags.get("cloudevents")],
        ca_file=given.get("ca-location", ""),
        opaque_data=given.get("OpaqueData", ""),
        login_env=given.get("login-env", ""),
        secret_env=given.get("secret-env", ""),
        verify=flags.get("verify-ssl", True),
    ).dumps()


def _no_endpoint(given: Mapping[str, str]) -> str:
    if lonely := [name for name in _TEXTS if given.get(name) and name != "push-endpoint"]:
        raise UsageError(f"{', '.join(lonely)}: give a push-endpoint, too")
    return ""


def _in_query(scheme: str) -> Mapping[str, str]:
    return _IN_QUERY.get(scheme.removesuffix("s"), {})


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"{name}: give true or false")
    return value.lower() == "true"


def _number(name: str, value: str) -> float:
    default: float = getattr(_PLAIN, _NUMBERS[name])
    if value in ("", "None"):
        return default
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise UsageError(f"{name}: give a whole number, or None")
    return type(default)(value)
