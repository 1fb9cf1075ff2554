"""Gets one page over HTTP without being led anywhere its address does not say.

Every address of the way is read strictly and judged, its host is resolved once, every answer is checked, and the
connection goes to a checked address: a name that changes its mind in between changes nothing. TLS and the Host header
keep the name. Nothing of one request reaches the next: no cookies, no credentials, no connection. Proxies of the
environment are not used, since a proxy would resolve the name again, out of sight of the check.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.llm.connection import Connections, Response
from agentcli.llm.errors import ConnectionFailed, ProviderError, Timeout, retry_after_seconds
from agentcli.safety.addresses.judge import why_blocked, why_unreachable
from agentcli.safety.addresses.urls import BadUrl, WebUrl, join_url, parse_url
from agentcli.tools.web.pages import require_readable
from agentcli.tools.web.web import Web
from agentcli.version import __version__

MAX_REDIRECTS = 5
MAX_EXPANSION = 100  # decompressed bytes for one received, once there is a megabyte; pages reach about 50
_MAX_ADDRESSES = 4  # of one host are tried, one after another
_MAX_SHOWN_CHARS = 1_000  # of an address somebody else wrote
_HEADERS = {
    "user-agent": f"agentcli/{__version__}",
    "accept": "text/markdown, text/html;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.1",
    "accept-encoding": "gzip",
    "connection": "close",
}
_HOW_TO_GRANT = "The user can grant a host of their own with the setting web.hosts."


class Page(Struct, frozen=True):
    """A page as it arrived. `url` is the last of its redirects."""

    url: WebUrl
    content_type: str
    body: bytes


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """The addresses that this machine's hosts file and DNS servers know."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def fetch_page(web: Web, address: str) -> Page:
    """The body at an address, redirects followed. Raises `ToolError`."""
    try:
        url = parse_url(address)
    except BadUrl as error:
        raise ToolError(f"Not fetched: {error}.", kind="invalid_parameters") from error
    try:
        async with asyncio.timeout(web.limits.total_s):
            for _ in range(MAX_REDIRECTS + 1):
                found = await _get(web, url)
                if isinstance(found, Page):
                    return found
                url = found
    except TimeoutError as error:
        limit = f"{web.limits.total_s:g} s"
        raise ToolError(f"{url.host} did not send the page within {limit}.", kind="timeout") from error
    raise ToolError(f"The address redirects more than {MAX_REDIRECTS} times: it may redirect to itself.")


async def _get(web: Web, url: WebUrl) -> Page | WebUrl:
    """The page at an address, or the address that it redirects to."""
    addresses = await _addresses(web, url)
    connections = Connections(url.authority, None, read_timeout=web.limits.total_s)
    headers = {**_HEADERS, "host": url.authority}
    try:
        async with connections.answered("GET", urlsplit(str(url)), headers, b"", addresses=addresses) as response:
            if response.status in (301, 302, 303, 307, 308):
                return _target(web, url, response)
            return await _page(url, response, web.limits.max_bytes)
    except Timeout as error:
        raise ToolError(str(error), kind="timeout") from error
    except ProviderError as error:
        hint = " web_fetch connects directly, without a proxy." if isinstance(error, ConnectionFailed) else ""
        kind: ToolErrorKind = "transient_error" if error.is_retryable else "execution_error"
        raise ToolError(f"{error}{hint}", kind=kind) from error
    finally:
        await connections.aclose()


async def _addresses(web: Web, url: WebUrl) -> Sequence[str]:
    """The addresses a connection may go to: every one of the host, if all of them may be reached."""
    if blocked := why_blocked(url, web.granted_hosts):
        raise ToolError(f"Not fetched: {blocked}. {_HOW_TO_GRANT}", kind="permission_denied")
    if url.address is not None:
        return [url.host]
    try:
        found, reason = await (web.resolve or resolve_name)(url.host, url.port), ""
    except (OSError, UnicodeError) as error:
        found, reason = (), f" ({error})"
    if not found:
        raise ToolError(f"{url.host} has no address: check the name.{reason}", kind="not_found")
    for address in found:
        if refused := why_unreachable(address, url, web.granted_hosts):
            raise ToolError(f"Not fetched: {refused}. {_HOW_TO_GRANT}", kind="permission_denied")
    return found[:_MAX_ADDRESSES]


def _target(web: Web, url: WebUrl, response: Response) -> WebUrl:
    """Return the address of a redirect within the site, or to an address that needs no question."""
    location = response.headers.get("location", "")
    if not location:
        raise ToolError(f"{url.host} redirects without saying where (HTTP {response.status}).")
    try:
        target = join_url(url, location)
    except BadUrl as error:
        raise ToolError(f"{url.host} redirects to a bad address: {error}.", kind="permission_denied") from error
    if blocked := why_blocked(target, web.granted_hosts):
        raise ToolError(f"Not fetched: {url.host} redirects to {target.host}: {blocked}.", kind="permission_denied")
    stays = _site(target) == _site(url) and (target.scheme, url.scheme) != ("http", "https")
    if not stays and web.judge(str(target)).verdict != "allow":
        shown = str(target) if len(str(target)) <= _MAX_SHOWN_CHARS else f"a long address on {target.host}"
        raise ToolError(
            f"{url.host} redirects to another site: fetch {shown} itself if it is needed.", kind="permission_denied"
        )
    return target


async def _page(url: WebUrl, response: Response, max_bytes: int) -> Page:
    headers = response.headers
    if not 200 <= response.status < 300 or response.status in (204, 205):
        raise _refusal(response.status, headers, url)
    require_readable(headers.get("content-type", ""))
    encoding, declared = headers.get("content-encoding", "").strip().lower(), headers.get("content-length", "")
    if encoding not in ("", "identity", "gzip"):
        raise ToolError(f"{url.host} sent the page in an encoding nobody asked for: {encoding[:40]}.")
    body, is_too_large = bytearray(), declared.isdecimal() and len(declared) < 20 and int(declared) > max_bytes
    async for piece in response.pieces():
        body += piece
        is_too_large |= len(body) > max_bytes
        if is_too_large:
            break
        if len(body) > 1_000_000 and len(body) > MAX_EXPANSION * response.received:
            raise ToolError(f"{url.host} sent a small body that unpacks to a huge one.", kind="validation_error")
    if is_too_large:
        advice = f"Look for a smaller one on {url.host}."
        raise ToolError(f"The page is larger than {max_bytes / 1e6:g} MB. {advice}", kind="validation_error")
    return Page(url, headers.get("content-type", ""), bytes(body))


def _site(url: WebUrl) -> str:
    """Return the site of an address: `www.` belongs to it, another port does not, but for those of http and https."""
    port = "" if url.authority == (f"[{url.host}]" if ":" in url.host else url.host) else f":{url.port}"
    return url.host.removeprefix("www.") + port


def _refusal(status: int, headers: Mapping[str, str], url: WebUrl) -> ToolError:
    wait = retry_after_seconds(headers)
    kind, advice = _REFUSALS.get(status, ("transient_error", "") if status >= 500 else ("execution_error", _OTHER))
    advice = advice or (f"Try again in {wait:g} s." if wait is not None else "Try again later.")
    try:  # the standard's word for the status: the server's own may say anything
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    return ToolError(f"{url.host} answered HTTP {phrase}. {advice}", kind=kind, code=str(status), retry_after=wait)


_OTHER = "Try another address."
# Kinds of errors and what to do, by status; where nothing is said, to try again.
_REFUSALS: dict[int, tuple[ToolErrorKind, str]] = {
    **dict.fromkeys((404, 410), ("not_found", "Check the address, or search for the page.")),
    **dict.fromkeys(
        (401, 403, 407, 451), ("permission_denied", "The site does not show this page to programs without a login.")
    ),
    **dict.fromkeys((204, 205), ("execution_error", "There is no page at this address.")),
    **dict.fromkeys((408, 425), ("transient_error", "")),
    429: ("rate_limit", ""),
}
