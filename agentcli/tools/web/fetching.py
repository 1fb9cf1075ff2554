"""Gets one page over HTTP without being led anywhere its address does not say.

Every address of the way is read strictly and judged, its host is resolved once, every answer is checked, and the
connection goes to a checked address: a name that changes its mind in between changes nothing. TLS and the Host header
keep the name. Nothing of one request reaches the next: no cookies, no credentials, no connection. Proxies of the
environment are not used, since a proxy would resolve the name again, out of sight of the check.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Protocol

import httpx2
import msgspec

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.llm.refusals import retry_after_seconds
from agentcli.safety.addresses.judge import UrlVerdict, why_blocked, why_unreachable
from agentcli.safety.addresses.urls import BadUrl, WebUrl, join_url
from agentcli.version import __version__

_STATUSES = frozenset(HTTPStatus)
_REDIRECTS = (301, 302, 303, 307, 308)
_ENCODINGS = ("", "identity", "gzip", "deflate")
_MOST_ADDRESSES = 4  # of one host are tried, one after another
_LONGEST_SHOWN = 1_000  # characters of an address somebody else wrote
_HEADERS = {
    "user-agent": f"agentcli/{__version__}",
    "accept": "text/markdown, text/html;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.1",
    "accept-encoding": "gzip, deflate",
    "connection": "close",
}


class FetchLimits(msgspec.Struct, frozen=True):
    """`total_s` covers every redirect and the whole body. Bytes are counted after decompression."""

    total_s: float = 30.0
    connect_s: float = 8.0
    most_bytes: int = 10_000_000
    most_redirects: int = 5
    most_expansion: float = 100.0  # decompressed bytes for one received, once there is a megabyte; pages reach about 50


class Fetched(msgspec.Struct, frozen=True):
    url: WebUrl
    content_type: str
    body: bytes


class Resolver(Protocol):
    """Turns names into addresses."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Every address of a name, the best first. Raises OSError when there is none."""


class SystemResolver:
    """The names this machine knows: its hosts file, its DNS servers."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Fetcher:
    """`judge` says which other sites a redirect may lead to; `accepts` raises `ToolError` for a type nobody reads.

    `tls` replaces the certificates this machine trusts.
    """

    def __init__(
        self,
        *,
        judge: Callable[[str], UrlVerdict],
        accepts: Callable[[str], None],
        granted_hosts: Sequence[str] = (),
        resolver: Resolver | None = None,
        limits: FetchLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._judge = judge
        self._accepts = accepts
        self._granted = tuple(granted_hosts)
        self._resolver = resolver or SystemResolver()
        self._limits = limits or FetchLimits()
        self._tls = tls

    async def fetch(self, url: WebUrl) -> Fetched:
        """The body at an address, redirects followed. Raises `ToolError`."""
        try:
            async with asyncio.timeout(self._limits.total_s):
                return await self._follow(url)
        except TimeoutError as error:
            raise ToolError(
                f"{url.host} did not send the page within {self._limits.total_s:g} s.", kind="timeout"
            ) from error

    async def _follow(self, url: WebUrl) -> Fetched:
        for _ in range(self._limits.most_redirects + 1):
            async with self._opened(url) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._received(response, url)
                url = self._next(url, response)
        raise ToolError(
            f"The address redirects more than {self._limits.most_redirects} times: it may redirect to itself."
        )

    def _next(self, url: WebUrl, response: httpx2.Response) -> WebUrl:
        """Where a redirect leads, when it may be followed unasked: within the site, or to an address judged "allow"."""
        location = response.headers.get("location", "")
        if not location:
            raise ToolError(f"{url.host} redirects without saying where (HTTP {response.status_code}).")
        try:
            target = join_url(url, location)
        except BadUrl as error:
            raise ToolError(f"{url.host} redirects to a bad address: {error}.", kind="permission_denied") from error
        if blocked := why_blocked(target, self._granted):
            raise ToolError(f"Not fetched: {url.host} redirects to {target.host}: {blocked}.", kind="permission_denied")
        stays = _site(target) == _site(url) and (target.scheme, url.scheme) != ("http", "https")
        if not stays and self._judge(str(target)).verdict != "allow":
            shown = str(target) if len(str(target)) <= _LONGEST_SHOWN else f"a long address on {target.host}"
            raise ToolError(
                f"{url.host} redirects to another site: fetch {shown} itself if it is needed.",
                kind="permission_denied",
            )
        return target

    @asynccontextmanager
    async def _opened(self, url: WebUrl) -> AsyncIterator[httpx2.Response]:
        """The response to a GET, its body unread."""
        addresses = await self._addresses(url)
        timeout = httpx2.Timeout(self._limits.total_s, connect=self._limits.connect_s)
        async with httpx2.AsyncClient(
            verify=await self._trusted() if url.scheme == "https" else False, trust_env=False, timeout=timeout
        ) as client:
            try:
                response = await _first_response(client, url, addresses)
                try:
                    yield response
                finally:
                    await response.aclose()
            except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
                raise _failure(error, url) from error

    async def _addresses(self, url: WebUrl) -> list[str]:
        """Where a connection may go: every address of the host, if all of them may be reached."""
        if blocked := why_blocked(url, self._granted):
            raise ToolError(f"Not fetched: {blocked}.{_HOW_TO_GRANT}", kind="permission_denied")
        if url.address is not None:
            return [url.host]
        try:
            found = list(await self._resolver.resolve(url.host, url.port))
        except (OSError, UnicodeError) as error:
            raise ToolError(f"{url.host} has no address: check the name. ({error})", kind="not_found") from error
        if not found:
            raise ToolError(f"{url.host} has no address: check the name.", kind="not_found")
        for address in found:
            if refused := why_unreachable(address, url, self._granted):
                raise ToolError(f"Not fetched: {refused}.{_HOW_TO_GRANT}", kind="permission_denied")
        return found[:_MOST_ADDRESSES]

    async def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:  # tens of milliseconds: off the loop's thread
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)
        return self._tls

    async def _received(self, response: httpx2.Response, url: WebUrl) -> Fetched:
        if not response.is_success or response.status_code in (204, 205):
            raise _refusal(response, url)
        content_type = response.headers.get("content-type", "")
        self._accepts(content_type)
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise ToolError(f"{url.host} sent the page in an encoding nobody asked for: {encoding[:40]}.")
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 20 and int(declared) > self._limits.most_bytes:
            raise self._too_large(url)
        return Fetched(url, content_type, await self._body(response, url))

    async def _body(self, response: httpx2.Response, url: WebUrl) -> bytes:
        """The decompressed body; counted while it grows, so that little can become too much only for a moment."""
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > self._limits.most_bytes:
                raise self._too_large(url)
            if len(body) > 1_000_000 and len(body) > self._limits.most_expansion * response.num_bytes_downloaded:
                raise ToolError(f"{url.host} sent a small body that unpacks to a huge one.", kind="validation_error")
        return bytes(body)

    def _too_large(self, url: WebUrl) -> ToolError:
        most = self._limits.most_bytes / 1e6
        return ToolError(
            f"The page is larger than {most:g} MB. Look for a smaller one on {url.host}.", kind="validation_error"
        )


_HOW_TO_GRANT = " The user can grant a host of their own with the setting web.hosts."


async def _first_response(client: httpx2.AsyncClient, url: WebUrl, addresses: Sequence[str]) -> httpx2.Response:
    """The response from the first address that takes the connection."""
    for place, address in enumerate(addresses):
        pinned = msgspec.structs.replace(url, host=address)
        # The name goes where the address must not: into the Host header, the TLS greeting and the certificate's check.
        request = client.build_request(
            "GET",
            str(pinned),
            headers={**_HEADERS, "host": url.authority},
            extensions={"sni_hostname": url.host},
        )
        try:
            return await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if place == len(addresses) - 1:
                raise
    raise AssertionError("no address was given")


def _site(url: WebUrl) -> str:
    """What a redirect may move within: `www.` is the same site, another port is not, but for http and https."""
    port = "" if url.authority == (f"[{url.host}]" if ":" in url.host else url.host) else f":{url.port}"
    return url.host.removeprefix("www.") + port


def _refusal(response: httpx2.Response, url: WebUrl) -> ToolError:
    status = response.status_code
    kind: ToolErrorKind = "execution_error"
    advice = "Try another address."
    wait = retry_after_seconds(response.headers)
    later = f"Try again in {wait:g} s." if wait is not None else "Try again later."
    match status:
        case 404 | 410:
            kind, advice = "not_found", "Check the address, or search for the page."
        case 401 | 403 | 407 | 451:
            kind, advice = "permission_denied", "The site does not show this page to programs without a login."
        case 429:
            kind, advice = "rate_limit", later
        case 204 | 205:
            advice = "There is no page at this address."
        case _ if status in (408, 425) or status >= 500:
            kind, advice = "transient_error", later
    # The standard's word for the status: the server's own may say anything.
    said = f"{status} {HTTPStatus(status).phrase}" if status in _STATUSES else str(status)
    return ToolError(f"{url.host} answered HTTP {said}. {advice}", kind=kind, code=str(status), retry_after=wait)


def _failure(error: Exception, url: WebUrl) -> ToolError:
    said = str(error) or type(error).__name__
    match error:
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return ToolError(f"{url.authority} did not accept a connection in time.", kind="timeout")
        case httpx2.TimeoutException():
            return ToolError(f"{url.host} sent nothing for too long.", kind="timeout")
        case httpx2.ConnectError() if "certificate" in said.lower():
            return ToolError(f"The certificate of {url.host} is not valid: {said}.")
        case httpx2.ConnectError():
            return ToolError(
                f"Could not connect to {url.authority} ({said}). web_fetch connects directly, without a proxy.",
                kind="transient_error",
            )
        case httpx2.DecodingError():
            return ToolError(f"The compressed page of {url.host} is broken: {said}.")
        case httpx2.RemoteProtocolError():
            return ToolError(f"{url.host} broke the rules of HTTP or left early: {said}.", kind="transient_error")
        case _:
            return ToolError(f"The connection to {url.host} broke: {said}.", kind="transient_error")
