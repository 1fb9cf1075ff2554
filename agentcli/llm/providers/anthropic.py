"""Claude through the Messages API, from Anthropic or from a cloud (Bedrock, Vertex AI, Microsoft Foundry).

Anthropic's SDK signs the clouds' requests; bodies are our own. Importing it takes over a second, so a thread does it.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from agentcli.errors import UserError
from agentcli.llm import connection
from agentcli.llm.addresses import proxy_for
from agentcli.llm.connection import CONNECT_TIMEOUT_S, Response
from agentcli.llm.errors import AuthError, BadRequest, ProviderError, ServerError, Timeout
from agentcli.llm.http import Carrier, HttpClient, check_sendable, check_status, mask_of, redacted_address
from agentcli.llm.media import MediaRules
from agentcli.llm.messages import decode_json, encode_json
from agentcli.llm.models import ModelInfo, with_listed_limits
from agentcli.llm.provider import Health, Request, StreamEvent, TokenCount
from agentcli.llm.providers import BaseProvider
from agentcli.llm.streaming import stream_reply
from agentcli.llm.wire.anthropic import AnthropicReader, media_rules, to_body
from agentcli.llm.wire.reply_parts import CallIds
from agentcli.settings.keys import Key

if TYPE_CHECKING:
    import httpx2

API_VERSION = "2026-10-21"
BASE_URL = "https://api.anthropic.com"
MESSAGES = "/v1/messages"


class MessagesProvider(BaseProvider):
    """One Claude model behind the Messages API."""

    _carrier: Carrier

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        reader = AnthropicReader(self.model, ids=CallIds(request.call_ids))
        return stream_reply(self._carrier, MESSAGES, build=lambda: to_body(request, self.info), reader=reader)

    async def count_tokens(self, request: Request) -> TokenCount:
        body = to_body(request, self.info)
        del body["max_tokens"], body["stream"]
        counted = await self._carrier.fetch_json(f"{MESSAGES}/count_tokens", body)
        tokens = counted.get("input_tokens") if isinstance(counted, dict) else None
        if not isinstance(tokens, int):
            raise ServerError(f"{self._carrier.shown_url} gave no token count: is the base_url right?")
        return TokenCount(tokens, exact=True)


class AnthropicProvider(MessagesProvider):
    """One model of Anthropic. Gateways may need an older `api_version`. `uses_sdk`: the SDK carries the requests."""

    def __init__(
        self,
        info: ModelInfo,
        *,
        base_url: str = BASE_URL,
        api_key: Key = "",
        auth_token: Key = "",
        api_version: str = API_VERSION,
        headers: Mapping[str, str] | None = None,
        read_timeout: float = 600.0,
        uses_sdk: bool = False,
    ) -> None:
        # From this version on, the API rejects a temperature for every model.
        takes_temperature = info.takes_temperature and api_version < "2026-10-21"
        # The API rejects unsigned thinking, so `sends_back` is "none".
        super().__init__(structs.replace(info, takes_temperature=takes_temperature, sends_back="none"))
        address = base_url.rstrip("/").removesuffix("/v1")
        sent = {"anthropic-version": api_version, **(headers or {})}
        if uses_sdk:
            self._carrier = SdkClient(
                Service(platform="anthropic", base_url=address, api_key=api_key, auth_token=auth_token, headers=sent),
                read_timeout=read_timeout,
            )
        else:
            key, header = (api_key, "x-api-key") if api_key else (auth_token, "authorization")
            self._carrier = HttpClient(address, sent, key=key, key_header=header, read_timeout=read_timeout)
        if not (api_key or auth_token):
            self._carrier.missing_key_problem = (
                "No Anthropic key: set ANTHROPIC_API_KEY, or keep one with agentcli login anthropic."
            )

    async def _check(self) -> Health | None:
        """Read the model's limits, which needs a valid key."""
        listed = await self._carrier.fetch_json(f"/v1/models/{self.model}")
        if not isinstance(listed, dict):
            where = self._carrier.shown_url
            return Health(False, f"{where} does not answer as the Messages API does: is the base_url right?")
        self.info = with_listed_limits(self.info, listed)
        return None


class CloudProvider(MessagesProvider):
    """One Claude model in a cloud. Anthropic's SDK signs its requests with the credentials of the cloud's tools."""

    def __init__(self, info: ModelInfo, *, service: "Service", read_timeout: float = 600.0) -> None:
        super().__init__(structs.replace(info, takes_temperature=False, sends_back="none"))
        self._can_count = service.platform != "bedrock"  # few models there count tokens, and only under other names
        self._carrier = SdkClient(service, read_timeout=read_timeout)

    async def count_tokens(self, request: Request) -> TokenCount:
        return await (super().count_tokens(request) if self._can_count else BaseProvider.count_tokens(self, request))

    async def _check(self) -> None:
        """Send an empty conversation, which costs nothing: a model that may be used rejects it for being empty."""
        try:
            await self._carrier.fetch_json(MESSAGES, {"model": self.model, "max_tokens": 1, "messages": []})
        except BadRequest as error:
            # Expected: "messages: at least one message is required". Subclasses have other reasons: no such model, …
            if type(error) is not BadRequest or error.status != 400 or "messages" not in str(error):
                raise


# The SDK, which signs requests for the clouds

# These log bodies, keys and signatures at lower levels.
_LOGGERS = ("anthropic", "azure", "boto3", "botocore", "google", "httpcore2", "httpx2", "msal", "urllib3")
# The advice if the vendor's own libraries find no credentials.
_REMEDIES = {
    "anthropic": "Set ANTHROPIC_API_KEY.",
    "bedrock": "Set AWS_REGION, and AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or "
    "AWS_BEARER_TOKEN_BEDROCK.",
    "vertex": "Set ANTHROPIC_VERTEX_PROJECT_ID, and run gcloud auth application-default login or set "
    "GOOGLE_APPLICATION_CREDENTIALS.",
    "foundry": "Set ANTHROPIC_FOUNDRY_API_KEY or ANTHROPIC_FOUNDRY_AUTH_TOKEN, or run az login.",
}


class Service(Struct, frozen=True, kw_only=True):
    """A service that serves Claude, and its credentials. The SDK looks up empty ones as the vendor's tools do."""

    platform: Literal["anthropic", "bedrock", "vertex", "foundry"]
    base_url: str = ""
    api_key: Key = ""
    auth_token: Key = ""
    region: str = ""
    project: str = ""
    resource: str = ""
    headers: Mapping[str, str] = {}


class SdkClient(Carrier):
    """Sends requests to one service through the SDK. `read_timeout` is its longest silence in seconds."""

    def __init__(self, service: Service, *, read_timeout: float) -> None:
        self.shown_url = redacted_address(service.base_url) or service.platform
        self._service, self._read_timeout = service, read_timeout
        self.key = service.api_key or service.auth_token
        self._opening = asyncio.Lock()
        self._clients: dict[str, Any] = {}  # by key, because requests with an earlier key may still run

    @asynccontextmanager
    async def _send(self, path: str, body: dict[str, Any] | None, key: str) -> AsyncIterator[Response]:
        """Send a request once with this key; yield the response if its status is a success. See `Carrier.send`."""
        # The key in the settings may be a command; `key` is what the command printed.
        key_field = "api_key" if self._service.api_key else "auth_token"
        service = structs.replace(self._service, **{key_field: key})
        headers = {**service.headers, **({"key": key} if key else {})}  # the key as a header, to be checked and masked
        mask = mask_of(headers, service.base_url)
        try:
            async with self._opening:
                if key not in self._clients:
                    # Without an address in the settings, the SDK chooses a valid one, so only the headers are checked.
                    check_sendable(service.base_url or "https://chosen.by.sdk", headers)
                    try:
                        self._clients[key] = await asyncio.to_thread(self._open_client, service)
                    except UserError as error:
                        raise BadRequest(str(error)) from error
            async with aclosing(await self._request(self._clients[key], path, body)) as response:
                mask = response.mask  # it also knows the headers that the SDK added
                await check_status(response)
                yield response
        except ProviderError as error:
            error.args = (mask(str(error)),)
            raise

    def _open_client(self, service: Service) -> Any:
        """Return the SDK's client with our own proxies and certificates. Raises `ProviderError`, `ConfigError`."""
        import httpx2

        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        tls, timeout = connection.tls_context(), httpx2.Timeout(self._read_timeout, connect=CONNECT_TIMEOUT_S)
        common: dict[str, Any] = {"verify": tls, "timeout": timeout, "trust_env": False, "follow_redirects": False}
        try:
            client = _make_client(service, httpx2.AsyncClient(**common))
        except Exception as error:
            if isinstance(error, ValueError) or _is_vendor_error(error):  # ValueError: the SDK's, for a missing setting
                raise self._no_credentials(error) from error
            raise
        address = str(client.base_url)  # the SDK may have chosen it, and the proxy depends on it
        self.shown_url = redacted_address(address.rstrip("/"))
        if proxy := proxy_for(address):
            proxy_tls = tls if proxy.origin.scheme == "https" else None
            sdk_proxy = httpx2.Proxy(proxy.url, auth=proxy.login, ssl_context=proxy_tls)
            client = client.copy(http_client=httpx2.AsyncClient(**common, proxy=sdk_proxy))
            self.shown_url += f" (through the proxy {proxy.url})"
        return client

    async def _request(self, client: Any, path: str, body: dict[str, Any] | None) -> "_SdkResponse":
        """Return the response with any status. Raises `ProviderError`."""
        import anthropic
        import httpx2

        try:
            if body is None:
                answer = await client.get(path, cast_to=httpx2.Response, stream=True)
            else:
                sent = decode_json(encode_json(body))  # without lone surrogates, which the SDK cannot write
                answer = await client.post(path, cast_to=httpx2.Response, body=sent, stream=True)
            return _SdkResponse(answer, self._translate_error)
        except anthropic.APIStatusError as error:
            return _SdkResponse(error.response, self._translate_error)
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:  # HTTPError: a rejection could not be read
            cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
            raise self._translate_error(cause) from error
        except Exception as error:
            if isinstance(error, RuntimeError) or _is_vendor_error(error):  # RuntimeError: the SDK's, for Vertex AI
                raise self._no_credentials(error) from error
            raise

    def _translate_error(self, error: BaseException) -> ProviderError:
        import httpx2

        match error:
            case httpx2.ConnectTimeout():
                return Timeout(f"{self.shown_url} did not accept a connection within {CONNECT_TIMEOUT_S:g} s.")
            case httpx2.TimeoutException():  # the server had accepted the request
                return Timeout(f"{self.shown_url} sent nothing for {self._read_timeout:g} s.", is_answered=True)
            case httpx2.ConnectError():
                reason = str(error).rstrip(".")
                if "CERTIFICATE_VERIFY_FAILED" in reason:
                    return connection.untrusted_certificate_error(self.shown_url, reason)
                return connection.unreachable_error(self.shown_url, reason)
            case _:
                return connection.broken_connection(self.shown_url, str(error) or type(error).__name__)

    def _no_credentials(self, error: Exception) -> AuthError:
        platform = self._service.platform
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return AuthError(f"Could not sign in to {platform}: {reason}. {_REMEDIES[platform]}")

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def _make_client(service: Service, http: "httpx2.AsyncClient") -> Any:
    """Return the SDK's client for a service. The vendor's libraries raise their own errors if a setting is missing."""
    import anthropic

    common: dict[str, Any] = {
        "base_url": service.base_url or None,
        "default_headers": service.headers,
        "http_client": http,
        "max_retries": 0,  # retries are ours
        "open_telemetry": False,
    }
    key: Any = service.api_key or None
    token: Any = service.auth_token or None
    match service.platform:
        case "bedrock":
            return anthropic.AsyncAnthropicBedrock(api_key=key, aws_region=service.region or None, **common)
        case "vertex":
            google: Any = None if token else _GoogleToken()
            return anthropic.AsyncAnthropicVertex(
                region=service.region,
                project_id=service.project or (google and google.project) or anthropic.not_given,
                access_token=token,
                credentials=google,
                **common,
            )
        case "foundry":
            options = common if service.base_url else common | {"resource": service.resource}
            return anthropic.AsyncAnthropicFoundry(
                api_key=key, azure_ad_token_provider=None if key else _azure_token(token), **options
            )
        case _:
            return anthropic.AsyncAnthropic(api_key=key, auth_token=None if key else token, **common)


class _GoogleToken:
    """Google's default credentials. Their own requests trust SSL_CERT_FILE, too, which the SDK's function ignores."""

    def __init__(self) -> None:
        import google.auth
        import requests

        self._credentials, self.project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        self._session = requests.Session()
        self._session.verify = os.environ.get("SSL_CERT_FILE") or True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._credentials, name)  # the token, and whether it has expired

    def refresh(self, _request: object) -> None:
        from google.auth.transport.requests import Request

        self._credentials.refresh(Request(self._session))  # type: ignore[no-untyped-call]


def _azure_token(token: str | None) -> Callable[[], Any]:
    if token:
        return lambda: token
    from azure import identity

    provider = identity.get_bearer_token_provider(identity.DefaultAzureCredential(), "https://ai.azure.com/.default")
    return lambda: asyncio.to_thread(provider)


def _is_vendor_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("anthropic", "azure", "botocore", "google")


class _SdkResponse(Response):
    """The SDK's response in the form of ours. AWS's frames become server-sent events."""

    def __init__(self, response: "httpx2.Response", translate_error: Callable[[BaseException], ProviderError]) -> None:
        self.mask = mask_of(dict(response.request.headers), str(response.request.url))
        self.url, self.headers = urlsplit(str(response.url)), dict(response.headers)
        self.status, self.reason = response.status_code, response.reason_phrase
        self._response, self._translate_error, self.aclose = response, translate_error, response.aclose
        self._is_aws = self.headers.get("content-type", "").startswith("application/vnd.amazon.eventstream")
        if self._is_aws:
            self.headers["content-type"] = "text/event-stream"

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        import httpx2

        body = self._response.aiter_bytes()
        try:
            async for piece in aws_events(body) if self._is_aws else body:
                yield piece
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._translate_error(error) from error


async def aws_events(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events in AWS's frames. Raises `ServerError` for a frame that cannot be read."""
    from anthropic.lib.bedrock._stream_decoder import AWSEventStreamDecoder
    from botocore.eventstream import EventStreamBuffer, ParserError

    decoder, buffer = AWSEventStreamDecoder(), EventStreamBuffer()
    try:
        async for piece in body:
            buffer.add_data(piece)
            # The decoder's public method yields single events, and those of one piece must stay together.
            events = [decoder._parse_message_from_event(message) for message in buffer]  # noqa: SLF001
            # Without line ends, which an event's data may not contain.
            lines = [event.data.encode().translate(None, b"\r\n") for event in events if event]
            yield b"".join(b"data: %b\n\n" % line for line in lines)
    except (ParserError, ValueError, AttributeError) as error:
        raise ServerError(f"The server sent a broken event: {error}") from error
