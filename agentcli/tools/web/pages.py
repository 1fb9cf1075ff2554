"""Fetches pages as text that a model can read, and searches the web through Tavily.

A page cannot make a fetch reach other machines than its address allows. Every address on the way is judged, its host is
resolved once, every resolved address is checked, and the connection goes to a checked one. Cookies and credentials are
not stored. Proxies are not used because they would resolve the name again.
"""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agentcli.errors import ConfigError, ToolError, ToolErrorKind
from agentcli.llm.connection import ConnectionPool, Response
from agentcli.llm.errors import AuthError, ConnectionFailed, ProviderError, Timeout, retry_after_seconds
from agentcli.llm.http import HttpClient
from agentcli.safety.urls import BadUrl, WebUrl, join_url, parse_url, why_blocked, why_unreachable
from agentcli.settings.short_program import run_short_program
from agentcli.tools.observation import beginning_of
from agentcli.tools.text.encoding import decode_page
from agentcli.tools.web.hidden import visible_text
from agentcli.tools.workspace import SearchProvider, SearchResult, Web, WebPage
from agentcli.version import __version__

_StatusAdvice = Mapping[int, tuple[ToolErrorKind, str]]  # by HTTP status: the kind of error, and advice


def _judge_status(status: int, wait_s: float | None, known: _StatusAdvice, otherwise: str) -> tuple[ToolErrorKind, str]:
    """Return the kind of error for an HTTP status, and advice: `otherwise` if the status is not `known`."""
    if status in (408, 425, 429) or status >= 500:
        kind: ToolErrorKind = "rate_limit" if status == 429 else "transient_error"
        return kind, f"Try again in {wait_s:g} s." if wait_s is not None else "Try again later."
    return known.get(status, ("execution_error", otherwise))


MAX_REDIRECTS = 5
_HEADERS = {
    "user-agent": f"agentcli/{__version__}",
    "accept": "text/markdown, text/html;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.1",
    "accept-encoding": "gzip",
    "connection": "close",
}
_HOW_TO_GRANT = "The user can allow a host of their own with the setting web.hosts."
_PAGE_ADVICE: _StatusAdvice = {
    **dict.fromkeys((404, 410), ("not_found", "Check the address, or search for the page.")),
    **dict.fromkeys(
        (401, 403, 407, 451), ("permission_denied", "The site does not show this page to programs without a login.")
    ),
    **dict.fromkeys((204, 205), ("execution_error", "There is no page at this address.")),
}


class _Page(msgspec.Struct, frozen=True):
    """A page as it arrived. `url` is its address after all redirects."""

    url: WebUrl
    content_type: str
    body: bytes


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the addresses that this machine's hosts file and DNS servers know."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def fetch_page(web: Web, address: str, *, max_chars: int) -> WebPage:
    """Return the page at an address as text. Redirects are followed. Raises `ToolError`."""
    try:
        url = parse_url(address)
    except BadUrl as error:
        raise ToolError(f"Not fetched: {error}.", kind="invalid_parameters") from error
    try:
        async with asyncio.timeout(web.total_s):
            for _ in range(MAX_REDIRECTS + 1):
                found = await _request(web, url)
                if isinstance(found, _Page):
                    break
                url = found
            else:
                raise ToolError(f"The address redirects more than {MAX_REDIRECTS} times: it may redirect to itself.")
    except TimeoutError as error:
        raise ToolError(f"{url.host} did not send the page within {web.total_s:g} s.", kind="timeout") from error
    return await _as_text(found, max_chars)


async def _request(web: Web, url: WebUrl) -> _Page | WebUrl:
    addresses = await _find_addresses(web, url)
    connections = ConnectionPool(url.authority, None, read_timeout=web.total_s)
    headers = {**_HEADERS, "host": url.authority}
    try:
        async with connections.send("GET", urlsplit(str(url)), headers, b"", addresses=addresses) as response:
            if response.status in (301, 302, 303, 307, 308):
                return _redirect_target(web, url, response)
            return await _read_page(url, response, web.max_bytes)
    except Timeout as error:
        raise ToolError(str(error), kind="timeout") from error
    except ProviderError as error:
        hint = " web_fetch does not use proxies." if isinstance(error, ConnectionFailed) else ""
        kind: ToolErrorKind = "transient_error" if error.is_retryable else "execution_error"
        raise ToolError(f"{error}{hint}", kind=kind) from error
    finally:
        await connections.aclose()


async def _find_addresses(web: Web, url: WebUrl) -> Sequence[str]:
    """Return the addresses that a connection may use: the host's, if all of them are allowed."""
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
        if why := why_unreachable(address, url, web.granted_hosts):
            raise ToolError(f"Not fetched: {why}. {_HOW_TO_GRANT}", kind="permission_denied")
    return found[:4]  # trying more would only delay the error


def _redirect_target(web: Web, url: WebUrl, response: Response) -> WebUrl:
    """Return a redirect's target, if it is on the same site or needs no question. Raises `ToolError` otherwise."""
    location = response.headers.get("location", "")
    if not location:
        raise ToolError(f"{url.host} redirects without saying where (HTTP {response.status}).")
    try:
        target = join_url(url, location)
    except BadUrl as error:
        raise ToolError(f"{url.host} redirects to a bad address: {error}.", kind="permission_denied") from error
    if blocked := why_blocked(target, web.granted_hosts):
        raise ToolError(f"Not fetched: {url.host} redirects to {target.host}: {blocked}.", kind="permission_denied")
    is_same_site = _site_of(target) == _site_of(url)
    loses_encryption = url.scheme == "https" and target.scheme == "http"
    if (not is_same_site or loses_encryption) and web.judge(str(target)).verdict != "allow":
        # The site chose the address: a very long one may contain anything, so the model does not see it.
        shown = str(target) if len(str(target)) <= 1_000 else f"a long address on {target.host}"
        message = f"{url.host} redirects to another site. If you need it, fetch {shown}."
        raise ToolError(message, kind="permission_denied")
    return target


def _site_of(url: WebUrl) -> str:
    """Return the site of an address: its host without `www.`, and its port unless that is the scheme's usual one."""
    return url.authority.removeprefix("www.")


async def _read_page(url: WebUrl, response: Response, max_bytes: int) -> _Page:
    """Return the page of a response. Raises `ToolError` if there is none, or if it is not text or too large."""
    headers, status = response.headers, response.status
    if not 200 <= status < 300 or status in (204, 205):
        wait_s = retry_after_seconds(headers)
        kind, advice = _judge_status(status, wait_s, _PAGE_ADVICE, "Try another address.")
        raise ToolError(f"{url.host} answered HTTP {status}. {advice}", kind=kind, code=str(status), retry_after=wait_s)
    _require_readable(headers.get("content-type", ""))
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise ToolError(f"{url.host} sent the page with a compression that was not asked for: {encoding[:40]}.")
    body = bytearray()
    async for piece in response.pieces():
        body += piece
        if len(body) > max_bytes:
            message = f"The page is larger than {max_bytes / 1e6:g} MB. Look for a smaller one on {url.host}."
            raise ToolError(message, kind="validation_error")
    return _Page(url, headers.get("content-type", ""), bytes(body))


MAX_HTML_CHARS = 3_000_000  # of a page become Markdown; a note says that the rest was left out
_MAX_ANSWER_BYTES = 64 * 1024 * 1024  # more than any page of MAX_HTML_CHARS characters can become
_SLACK = 1_000  # characters read beyond the limit, because invisible ones are removed
_SNIFFED = 2_048  # characters at the start of a body that show its kind
_UNKNOWN_TYPES = ("", "application/octet-stream", "application/unknown", "unknown/unknown", "*/*")
_MEDIA = {"image": "an image", "audio": "sound", "video": "a film", "font": "a font"}


def _require_readable(content_type: str) -> None:
    """Raise `ToolError` for a type that is surely not text, before the body is read."""
    kind = media_type(content_type)
    name = _MEDIA.get(kind.partition("/")[0])
    if name and not kind.endswith("+xml"):
        raise ToolError(
            f"This address is {name} ({kind}), but web_fetch reads only text. "
            "Look for a page about it, or ask the user to put the file into the workspace.",
            kind="validation_error",
        )


async def _as_text(page: _Page, max_chars: int) -> WebPage:
    """Return a page as text: HTML as Markdown, other text as it is. Raises `ToolError` for binary data."""
    kind, text = media_type(page.content_type), decode_page(page.body, page.content_type)
    if page.body.startswith(b"%PDF-") or _is_binary(text[:100_000]):
        message = f"This address is binary data ({kind or 'no type given'}), but web_fetch reads only text."
        raise ToolError(message, kind="validation_error")
    is_unnamed_html = kind in _UNKNOWN_TYPES and re.match(r"\s*<(!doctype html|html)", text[:_SNIFFED], re.IGNORECASE)
    notes: list[str] = []
    if is_unnamed_html or kind in ("text/html", "application/xhtml+xml"):
        if len(text) > MAX_HTML_CHARS:
            notes.append(f"The page is longer than {MAX_HTML_CHARS:,} characters of HTML: its end was left out.")
        converted = await _as_markdown(text[:MAX_HTML_CHARS], str(page.url))
        if converted.cut:
            notes.append("Parts nested too deep were left out.")
        title, text, total = converted.title, converted.markdown, len(converted.markdown)
    else:
        cleaned = visible_text(text[: max_chars + _SLACK])  # cleaning all of 10 MB would take a second
        total = len(cleaned) if len(text) <= max_chars + _SLACK else len(text)
        title, text = "", cleaned
    text = beginning_of(text, max_chars)
    return WebPage(url=str(page.url), title=title, content_type=kind, text=text, total_chars=total, notes=tuple(notes))


def media_type(content_type: str) -> str:
    """Return `text/html` for `Text/HTML; charset=utf-8`; empty if there is no valid type."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind if re.fullmatch(r"[a-z0-9.+*-]{1,80}/[a-z0-9.+*-]{1,80}", kind) else ""


def _is_binary(sample: str) -> bool:
    """Return True for a text with a NUL near its start, or with over 5 % of control or broken characters."""
    odd = sum(map(sample.count, "\0\ufffd\x01\x02\x03\x04\x05\x06"))
    return "\0" in sample[:_SNIFFED] or odd * 20 > len(sample)


class _ConvertedPage(msgspec.Struct, frozen=True):
    """The output of html_pages.py. `cut` is True if parts that were nested too deep are missing."""

    title: str
    markdown: str
    cut: bool


async def _as_markdown(page: str, base_url: str) -> _ConvertedPage:
    """Convert HTML in a process of its own (html_pages.py). Raises `ToolError`."""
    # -P and this process's search path: the working directory may be a stranger's project. No other variable of
    # the environment reaches a parser of foreign pages.
    search = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[3]), *filter(None, sys.path)]))
    end = await run_short_program(
        (sys.executable, "-P", "-m", "agentcli.tools.web.html_pages", base_url),
        timeout_s=20.0,
        max_bytes=_MAX_ANSWER_BYTES,
        environment={"PYTHONPATH": search, "PYTHONUTF8": "1"},
        stdin=page.encode("utf-8", errors="replace"),
    )
    if end.exit_code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        raise ToolError("The page could not be read: converting it takes too long.", kind="validation_error")
    try:
        return msgspec.json.decode(end.stdout, type=_ConvertedPage)
    except msgspec.DecodeError as error:
        message = f"The page could not be read: its parser ended with code {end.exit_code}."
        raise ToolError(message, kind="validation_error") from error


TAVILY_URL = "https://api.tavily.com"
MAX_QUERY_CHARS = 400  # Tavily rejects longer ones
MAX_EXCERPT_CHARS = 1_000  # of one result
# https://help.tavily.com/articles/8645538886-understanding-http-errors (read 2026-11)
_SEARCH_ADVICE: _StatusAdvice = {
    **dict.fromkeys((401, 403), ("permission_denied", "Ask the user to check TAVILY_API_KEY.")),
    **dict.fromkeys((402, 432, 433), ("permission_denied", "The plan's searches are used up: tell the user.")),
    **dict.fromkeys((400, 422), ("invalid_parameters", "Change the query.")),
}


class _TavilyAnswer(msgspec.Struct, frozen=True):
    results: list[dict[str, Any]]


class Tavily(msgspec.Struct, frozen=True):
    """Tavily's REST API (docs.tavily.com, /documentation/api-reference/endpoint/search) at `base_url`."""

    api_key: str
    base_url: str = TAVILY_URL
    time_limit_s: float = 30.0

    async def search(self, query: str, max_results: int) -> Sequence[SearchResult]:
        try:
            client = HttpClient(self.base_url, {}, key=self.api_key, read_timeout=self.time_limit_s)
        except ConfigError as error:
            raise ToolError(str(error), kind="dependency_error") from error
        request = {"query": query, "max_results": max_results, "search_depth": "basic"}
        try:
            async with asyncio.timeout(self.time_limit_s):
                answer = msgspec.convert(await client.fetch_json("/search", request), _TavilyAnswer)
        except (TimeoutError, Timeout) as error:
            raise ToolError("The search did not answer in time. Try again.", kind="timeout") from error
        except msgspec.ValidationError as error:
            raise ToolError(f"The answer of the search could not be read: {error}.") from error
        except ProviderError as error:
            raise _search_failure(error) from error
        finally:
            await client.aclose()
        keys = ("title", "url", "content")  # in the order of the fields of `SearchResult`
        return [SearchResult(*(str(row.get(key) or "") for key in keys)) for row in answer.results]


def _search_failure(error: ProviderError) -> ToolError:
    try:  # Tavily's messages are {"detail": {"error": …}}; the client keeps the inner object
        text = msgspec.json.decode(str(error), type=dict[str, str]).get("error") or str(error)
    except msgspec.MsgspecError:
        text = str(error)
    text = visible_text(text).strip()[:300]
    message = text if text.endswith((".", "!", "?")) else f"{text}."
    if isinstance(error, ConnectionFailed):
        return ToolError(f"The search could not be reached. {message}", kind="transient_error")
    if error.status is None and not isinstance(error, AuthError):  # one without a status: no key was sent
        return ToolError("The answer of the search does not come from Tavily. Tell the user.")
    kind, advice = _judge_status(error.status or 401, error.retry_after, _SEARCH_ADVICE, "Tell the user.")
    message = f"Tavily refused the search: {message} {advice}"
    return ToolError(message, kind=kind, code=str(error.status), retry_after=error.retry_after)


async def search_web(provider: SearchProvider | None, query: str, *, max_results: int) -> tuple[SearchResult, ...]:
    """Return results with plain text and addresses that can be fetched, each address once. Raises `ToolError`."""
    query = " ".join(visible_text(query).split())
    if not query:
        raise ToolError("The query is empty.", kind="invalid_parameters")
    if len(query) > MAX_QUERY_CHARS:
        message = f"The query is longer than {MAX_QUERY_CHARS} characters: use fewer words."
        raise ToolError(message, kind="invalid_parameters")
    if provider is None:
        raise ToolError(
            "web_search needs a key of Tavily (free at https://app.tavily.com). Ask the user to set the environment "
            "variable TAVILY_API_KEY and to restart. Until then, use web_fetch for pages whose address you know.",
            kind="dependency_error",
        )
    results: dict[str, SearchResult] = {}
    for found in await provider.search(query, max_results):
        with suppress(BadUrl):  # a result that cannot be fetched is left out
            url = str(parse_url(found.url))
            title = " ".join(visible_text(found.title).split())[:300]
            excerpt = visible_text(found.excerpt).strip()[:MAX_EXCERPT_CHARS]
            results.setdefault(url, SearchResult(title or url, url, excerpt))
    return tuple(results.values())[:max_results]
