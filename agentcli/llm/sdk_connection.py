"""Opens the clients of Anthropic's SDK, with our own proxies and certificates; it takes over a second to import."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anthropic
import httpx2

from agentcli.llm.connection import CONNECT_TIMEOUT_S, broken
from agentcli.llm.errors import AuthError, BadRequest, ConnectionFailed, ProviderError, Timeout
from agentcli.llm.http import Answer, mask_of, note_request, place_of, raise_for_refusal, redirect_of, shown
from agentcli.llm.json_text import decode_json, encode_json
from agentcli.llm.proxies import proxy_for
from agentcli.llm.tls import tls_context, untrusted_certificate_error

if TYPE_CHECKING:
    from agentcli.llm.sdk_client import Service

SdkClients = (
    anthropic.AsyncAnthropic
    | anthropic.AsyncAnthropicBedrock
    | anthropic.AsyncAnthropicVertex
    | anthropic.AsyncAnthropicFoundry
)
AWS_EVENTS = "application/vnd.amazon.eventstream"  # aws_events is loaded for these alone
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
AZURE_SCOPE = "https://ai.azure.com/.default"

# At lower levels these log bodies, keys and signatures.
for _library in ("anthropic", "azure", "boto3", "botocore", "google", "httpcore2", "httpx2", "msal", "urllib3"):
    logging.getLogger(_library).setLevel(logging.WARNING)

# What is needed, where the vendor's own libraries find nothing.
_NEEDED = {
    "anthropic": "Set ANTHROPIC_API_KEY.",
    "bedrock": "Set AWS_REGION, and AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or "
    "AWS_BEARER_TOKEN_BEDROCK.",
    "vertex": "Set ANTHROPIC_VERTEX_PROJECT_ID, and run gcloud auth application-default login or set "
    "GOOGLE_APPLICATION_CREDENTIALS.",
    "foundry": "Set ANTHROPIC_FOUNDRY_API_KEY or ANTHROPIC_FOUNDRY_AUTH_TOKEN, or run az login.",
}


class SdkConnection:
    """A client of the SDK, open for requests. Making one may ask the vendor's libraries, so it belongs in a thread."""

    def __init__(self, service: Service, read_timeout: float) -> None:
        self._service, self._read_timeout = service, read_timeout
        tls = tls_context()
        common: dict[str, Any] = {
            "verify": tls,
            "timeout": httpx2.Timeout(read_timeout, connect=CONNECT_TIMEOUT_S),
            "trust_env": False,
            "follow_redirects": False,  # the key would go along
        }
        try:
            self._client = _client(service, httpx2.AsyncClient(**common))
        except (ValueError, anthropic.AnthropicError, _credential_error(service)) as error:
            raise self._no_way_in(error) from error
        address = str(self._client.base_url)
        self.where = shown(address.rstrip("/"))
        if proxy := proxy_for(address):
            leads = httpx2.Proxy(proxy.url, auth=proxy.login, ssl_context=tls if proxy.origin[0] == "https" else None)
            self._client = self._client.copy(http_client=httpx2.AsyncClient(**common, proxy=leads))
            self.where += f" (through the proxy {proxy.url})"

    @asynccontextmanager
    async def answered(self, method: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[Answer]:
        """The response to a request, once its status is known to be good. Raises `ProviderError`."""
        response = await self._send(method, path, body)
        try:
            yield _Response(response, self.failure)
        finally:
            await response.aclose()

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        client, kind = self._client, httpx2.Response
        try:
            if body is None:
                return await client.get(path, cast_to=kind, stream=True)
            sent = decode_json(encode_json(body))  # without lone surrogates, which the SDK cannot write
            return await client.post(path, cast_to=kind, body=sent, stream=True)
        except anthropic.APIStatusError as error:
            raise self._refusal(error.response, body) from error
        except anthropic.APIConnectionError as error:
            raise self.failure(error.__cause__ or error) from error
        except httpx2.HTTPError as error:  # while a refusal was read
            raise self.failure(error) from error
        except (RuntimeError, _credential_error(self._service)) as error:
            raise self._no_way_in(error) from error

    def _refusal(self, response: httpx2.Response, body: dict[str, Any] | None) -> ProviderError:
        answer = _Response(response, self.failure)
        try:
            if (target := redirect_of(answer)) is not None:
                raise BadRequest(
                    f"{place_of(answer.url)} redirects to {place_of(target)}, where Anthropic's SDK is not led. "
                    "If that is the right place, set the base_url to it."
                )
            raise_for_refusal(answer, response.content)
        except ProviderError as error:
            note_request(error, answer.masked, body, is_answered=False)
            return error

    def failure(self, error: BaseException) -> ProviderError:
        """What a failure of the SDK's transport is to us."""
        match error:
            case httpx2.ConnectTimeout():
                return Timeout(f"{self.where} did not accept a connection within {CONNECT_TIMEOUT_S:g} s.")
            case httpx2.TimeoutException():
                silent = Timeout(f"{self.where} sent nothing for {self._read_timeout:g} s.")
                silent.is_answered = True  # it took the request
                return silent
            case httpx2.ConnectError():
                reason = str(error).rstrip(".")
                if "CERTIFICATE_VERIFY_FAILED" in reason:
                    return untrusted_certificate_error(self.where, reason)
                return ConnectionFailed(f"Could not connect to {self.where} ({reason}). Is the server running?")
            case _:
                return broken(self.where, error if isinstance(error, Exception) else str(error))

    def _no_way_in(self, error: Exception) -> AuthError:
        platform = self._service.platform
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return AuthError(f"No way into {platform}: {said}. {_NEEDED[platform]}")

    async def aclose(self) -> None:
        await self._client.close()


def _client(service: Service, http: httpx2.AsyncClient) -> SdkClients:
    """The SDK's client for a service. Raises what the vendor's libraries raise where something is missing."""
    common: dict[str, Any] = {
        "base_url": service.base_url or None,
        "default_headers": service.headers,
        "http_client": http,
        "max_retries": 0,  # retries are ours
        "open_telemetry": False,
    }
    key = service.api_key or None
    match service.platform:
        case "bedrock":
            return anthropic.AsyncAnthropicBedrock(api_key=key, aws_region=service.region or None, **common)
        case "vertex":
            google: Any = None if service.auth_token else _GoogleToken()
            return anthropic.AsyncAnthropicVertex(
                region=service.region,
                project_id=service.project or (google.project if google else "") or anthropic.not_given,
                access_token=service.auth_token or None,
                credentials=google,
                **common,
            )
        case "foundry":
            token = None if key else _azure_token(service.auth_token)
            place = common if service.base_url else common | {"resource": service.resource}
            return anthropic.AsyncAnthropicFoundry(api_key=key, azure_ad_token_provider=token, **place)
        case _:
            return anthropic.AsyncAnthropic(api_key=key, auth_token=None if key else service.auth_token, **common)


class _GoogleToken:
    """Google's default credentials as the SDK wants them, renewed with the certificates that our requests trust."""

    def __init__(self) -> None:
        import google.auth
        import requests

        self._credentials, self.project = google.auth.default(scopes=[GOOGLE_SCOPE])
        self._session = requests.Session()
        if trusted := os.environ.get("SSL_CERT_FILE"):
            self._session.verify = trusted

    @property
    def token(self) -> Any:
        return self._credentials.token

    @property
    def expired(self) -> Any:
        return self._credentials.expired

    def refresh(self, request: object) -> None:
        """Get a new token. The SDK hands its own way to make requests over, which trusts other certificates."""
        del request
        from google.auth.transport.requests import Request

        self._credentials.refresh(Request(self._session))  # type: ignore[no-untyped-call]


def _azure_token(token: str) -> Callable[[], Any]:
    """What gives the bearer token of each request: the one that is there, or one of Azure's own sign-in."""
    if token:
        return lambda: token
    from azure import identity

    ask = identity.get_bearer_token_provider(identity.DefaultAzureCredential(), AZURE_SCOPE)

    async def asked() -> str:
        told: str = await asyncio.to_thread(ask)
        return told

    return asked


def _credential_error(service: Service) -> type[Exception]:
    """What the vendor's libraries raise where they find no credentials, or where those are refused."""
    match service.platform:
        case "bedrock":
            from botocore.exceptions import BotoCoreError

            return BotoCoreError  # type: ignore[no-any-return]
        case "vertex":
            from google.auth.exceptions import GoogleAuthError

            return GoogleAuthError
        case "foundry" if not (service.api_key or service.auth_token):
            from azure.core.exceptions import AzureError

            return AzureError
        case _:
            return anthropic.AnthropicError


class _Response:
    """The SDK's response as an `Answer`; AWS's frames come as server-sent events."""

    def __init__(self, response: httpx2.Response, failure: Callable[[BaseException], ProviderError]) -> None:
        request = response.request
        self.masked = mask_of(dict(request.headers), str(request.url))
        self.method, self.url = request.method, urlsplit(str(response.url))
        self.status, self.reason = response.status_code, response.reason_phrase
        self.headers = dict(response.headers)
        self._response, self._failure = response, failure
        self._aws = None
        if self.headers.get("content-type", "").startswith(AWS_EVENTS):
            self.headers["content-type"] = "text/event-stream"
            from agentcli.llm.aws_events import AwsEvents

            self._aws = AwsEvents()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._response.aiter_bytes():
                if told := piece if self._aws is None else self._aws.feed(piece):
                    yield told
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._failure(error) from error
        if self._aws is not None:
            self._aws.close()
