"""Logs the person in to MCP servers by OAuth 2.1, and stores the tokens where API keys are stored."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared import auth
from pydantic import AnyUrl

from agentcli.extensions.mcp.tools import HttpSpec
from agentcli.settings.keys import StoredKeys

_LOGIN_TIMEOUT_S = 300.0
_MAX_REQUEST_BYTES = 16_384  # of the browser's request with the answer
_PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n\r\n<p>%s</p>"


class ServerLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored login: the SDK's records as JSON texts, and the time when the token expires (seconds since 1970)."""

    token: str = ""
    expires_at: float | None = None
    client: str = ""
    server: str = ""


class StoredLogins(msgspec.Struct, frozen=True):
    """Logins by server address. Its methods raise `ConfigError`, and block while a keyring asks for a password."""

    keys: StoredKeys

    def load(self, url: str) -> ServerLogin | None:
        login = self.keys.get(f"mcp:{url}", reread=True)  # another session may have renewed it
        return msgspec.json.decode(login, type=ServerLogin) if login else None

    def save(self, url: str, login: ServerLogin) -> None:
        self.keys.store(f"mcp:{url}", msgspec.json.encode(login).decode())

    def remove(self, url: str) -> bool:
        """Forget a login; return False if there was none."""
        return bool(self.keys.remove(f"mcp:{url}"))


class LoginTokens(msgspec.Struct):
    """The login of one server, stored at each change. Implements the SDK's `TokenStorage`."""

    logins: StoredLogins
    url: str
    login: ServerLogin

    async def get_tokens(self) -> auth.OAuthToken | None:
        return auth.OAuthToken.model_validate_json(self.login.token) if self.login.token else None

    async def set_tokens(self, tokens: auth.OAuthToken) -> None:
        expires_at = time.time() + tokens.expires_in if tokens.expires_in is not None else None
        await self.change(token=tokens.model_dump_json(), expires_at=expires_at)

    async def get_client_info(self) -> auth.OAuthClientInformationFull | None:
        return auth.OAuthClientInformationFull.model_validate_json(self.login.client) if self.login.client else None

    async def set_client_info(self, client_info: auth.OAuthClientInformationFull) -> None:
        await self.change(client=client_info.model_dump_json(exclude_none=True))

    async def change(self, **changes: object) -> None:
        self.login = msgspec.structs.replace(self.login, **changes)
        await asyncio.to_thread(self.logins.save, self.url, self.login)


class _Provider(OAuthClientProvider):
    """The SDK's provider. It also takes from the stored login when the token expires and where to refresh it."""

    tokens: LoginTokens

    async def _initialize(self) -> None:
        await super()._initialize()
        login = self.tokens.login
        self.context.token_expiry_time = login.expires_at
        if login.server:
            self.context.oauth_metadata = auth.OAuthMetadata.model_validate_json(login.server)


class AnonymousAuth(httpx2.Auth):
    """Sends requests without a login, and raises `OAuthFlowError` if the server rejects one with 401."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        response = yield request
        if response.status_code == 401:
            raise OAuthFlowError("The server requires a login.")


def stored_auth(logins: StoredLogins, url: str, login: ServerLogin | None) -> httpx2.Auth:
    """Return the authentication of requests to a server; instead of opening a browser, it raises `OAuthFlowError`."""
    if login is None:
        return AnonymousAuth()

    async def raise_expired(*_: str) -> NoReturn:
        raise OAuthFlowError("The login has expired.")

    tokens, callback = LoginTokens(logins, url, login), "http://127.0.0.1/callback"  # to which no browser is sent
    return _provider(tokens, url, callback, show_address=raise_expired, receive_answer=raise_expired)


def _provider(
    tokens: LoginTokens,
    url: str,
    callback: str,
    *,
    show_address: Callable[[str], object],
    receive_answer: Callable[[], object],
    client_metadata_url: str | None = None,
) -> _Provider:
    """Return authentication with a server's tokens; for a login it calls `show_address`, then `receive_answer`.

    The server redirects the browser to `callback` with the answer. If `client_metadata_url` is the address of a
    document that describes agentcli, the server can read it in place of a registration.
    """
    metadata = auth.OAuthClientMetadata(
        client_name="agentcli",
        redirect_uris=[AnyUrl(callback)],
        token_endpoint_auth_method="none",  # noqa: S106 - a program on a person's machine can keep no secret
    )
    provider = _Provider(url, metadata, tokens, show_address, receive_answer, client_metadata_url)  # type: ignore[arg-type]
    provider.tokens = tokens  # has the time when the token expires, and the address for refreshing it
    return provider


@asynccontextmanager
async def login_auth(
    logins: StoredLogins, server_address: HttpSpec, show: Callable[[str], None]
) -> AsyncIterator[httpx2.Auth]:
    """Yield the authentication of requests during a login, and `show` the address for the browser."""
    url, oauth = server_address.url, server_address.oauth
    answers: asyncio.Queue[Mapping[str, str]] = asyncio.Queue()  # a server may want a second login, for more rights
    states: set[str] = set()  # random texts in our requests; an answer that repeats none may be forged

    async def on_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", errors="replace")  # `GET /callback?code=… HTTP/1.1`
        target = urlsplit(line.split(" ")[1] if line.count(" ") == 2 else "")
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        is_answer = target.path == "/callback" and bool(query) and query.get("state") in states
        writer.write(_PAGE % (b"You are logged in. Return to the terminal." if is_answer else b"Nothing here."))
        writer.close()
        if is_answer:
            answers.put_nowait(query)

    async def show_address(address: str) -> None:
        states.update(parse_qs(urlsplit(address).query).get("state", ()))
        show(address)

    async def receive_answer() -> auth.AuthorizationCodeResult:
        async with asyncio.timeout(_LOGIN_TIMEOUT_S):
            values = await answers.get()
        if "code" not in values:
            raise OAuthFlowError(values.get("error_description") or values.get("error") or "No code received.")
        return auth.AuthorizationCodeResult(code=values["code"], state=values.get("state"), iss=values.get("iss"))

    server = await asyncio.start_server(on_request, "127.0.0.1", oauth.get("callbackPort", 0), limit=_MAX_REQUEST_BYTES)
    async with server:
        callback = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback"
        tokens = LoginTokens(logins, url, ServerLogin(client=_configured_client(oauth, callback)))
        provider = _provider(
            tokens,
            url,
            callback,
            show_address=show_address,
            receive_answer=receive_answer,
            client_metadata_url=oauth.get("clientMetadataUrl"),
        )
        yield provider
        # The address for refreshing tokens is stored, so that a later process need not find it out.
        if (metadata := provider.context.oauth_metadata) is not None and tokens.login.token:
            await tokens.change(server=metadata.model_dump_json(exclude_none=True))


def _configured_client(oauth: Mapping[str, Any], callback: str) -> str:
    """Return the client that the settings name, as JSON; empty if they name none, for which one is registered."""
    if not (id := oauth.get("clientId", "")):
        return ""
    secret = oauth.get("clientSecret") or None
    return auth.OAuthClientInformationFull(
        client_id=id,
        client_secret=secret,
        redirect_uris=[AnyUrl(callback)],
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
    ).model_dump_json(exclude_none=True)
