"""Single signed requests to a service of AWS, or one like it, at under half of what its SDK's client costs.

It signs, sends and fails as the SDK does, by the SDK's own parts, but builds requests and reads answers itself. What is
sent is sent once. An error is one of `stores.sdk.SDK_ERRORS`: also an answer that says so, as a `ClientError`.
"""

import html
import json
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.httpsession import where
from botocore.utils import get_environ_proxies

from s3notify_platform.stores.connections import Answer, Connections, Proxied


class SignedHttp:
    """Requests as the user of a session, to the endpoint of its `client`. Thread-safe."""

    def __init__(self, session: Any, client: Any, auth: type[SigV4Auth]) -> None:
        about = client.meta.config
        self.endpoint: str = client.meta.endpoint_url
        self._service: str = client.meta.service_model.service_name
        self._signing: str = client.meta.service_model.signing_name
        self._region: str = client.meta.region_name
        self._events = client.meta.events
        self._credentials = session.get_credentials()
        self._auth = auth
        bundle = session._session.get_config_variable("ca_bundle")  # noqa: SLF001 - as documented for botocore
        bundle = bundle or os.environ.get("REQUESTS_CA_BUNDLE")
        how = {
            "connect_seconds": about.connect_timeout,
            "read_seconds": about.read_timeout,
            "most": about.max_pool_connections,
        }
        self._http: Connections | Proxied
        if proxies := get_environ_proxies(self.endpoint):
            self._http = Proxied(verify=bundle, proxies=proxies, **how)
        else:
            tls = self.endpoint.startswith("https:")
            context = ssl.create_default_context(cafile=bundle or where()) if tls else None
            self._http = Connections(self.endpoint, context=context, **how)

    def send(
        self, operation: str, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """The answer, if its status is below 300. 1 request. `url`: encoded already."""
        if self._credentials is None:
            raise NoCredentialsError
        request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
        signer = self._auth(self._credentials.get_frozen_credentials(), self._signing, self._region)
        signer.add_auth(request)
        # Handlers that answer in place of the service, as they do for the SDK's own requests.
        handled = self._events.emit(f"before-send.{self._service}.{operation}", request=request.prepare())
        stood_in = next((found for _, found in handled if found is not None), None)
        if stood_in is not None:
            answer = Answer(status=stood_in.status_code, headers=stood_in.headers, content=stood_in.content)
        else:
            answer = self._http.send(method, url, dict(request.headers.items()), body)
        if answer.status >= 300:
            raise _error(answer.status, answer.content, operation)
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _error(status: int, said: bytes, operation: str) -> ClientError:
    try:
        about = json.loads(said)
        code = str(about["__type"]).rpartition("#")[2]
        message = about.get("message") or about.get("Message") or ""
    except (ValueError, KeyError, TypeError):
        about, code, message = {}, _element(b"Code", said) or str(status), _element(b"Message", said)
    response: Any = {
        **about,
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, operation)


def _element(name: bytes, said: bytes) -> str:
    found = re.search(b"<%b>([^<]*)</%b>" % (name, name), said)
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""
