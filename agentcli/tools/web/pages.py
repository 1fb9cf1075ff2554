"""Gets a page without being led anywhere its address does not say, and turns it into text a model can read.

Every address of the way is judged, its host is resolved once, every answer is checked, and the connection goes to a
checked address. Cookies and credentials are not kept. Proxies, which would resolve the name again, are not used.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.llm.connection import Connections, Response
from agentcli.llm.errors import ConnectionFailed, ProviderError, Timeout, retry_after_seconds
from agentcli.safety.urls import BadUrl, WebUrl, join_url, parse_url, why_blocked, why_unreachable
from agentcli.settings.short_program import run_short_program
from agentcli.tools.observation import beginning_of
from agentcli.tools.text.charset import decoded
from agentcli.tools.web.hidden import visible_text
from agentcli.tools.web.web import Web, WebPage
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
MOST_HTML = 3_000_000  # characters of a page that are turned into Markdown; the rest is left out, and that is said
CONVERSION_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024  # more than any page of MOST_HTML characters becomes
_SLACK = 1_000  # characters that show nothing among the first ones
_SNIFFED = 2_048  # characters at the start of a body that tell what it is


class _Page(msgspec.Struct, frozen=True):
    """A page as it arrived. `url` is the last of its redirects."""

    url: WebUrl
    content_type: str
    body: bytes


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """The addresses that this machine's hosts file and DNS servers know."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def fetch_page(web: Web, address: str, *, max_chars: int) -> WebPage:
    """The page at an address as text, redirects followed. Raises `ToolError`."""
    try:
        url = parse_url(address)
    except BadUrl as error:
        raise ToolError(f"Not fetched: {error}.", kind="invalid_parameters") from error
    try:
        async with asyncio.timeout(web.total_s):
            for _ in range(MAX_REDIRECTS + 1):
                found = await _get(web, url)
                if isinstance(found, _Page):
                    page = found
                    break
                url = found
            else:
                raise ToolError(f"The address redirects more than {MAX_REDIRECTS} times: it may redirect to itself.")
    except TimeoutError as error:
        message = f"{url.host} did not send the page within {web.total_s:g} s."
        raise ToolError(message, kind="timeout") from error
    return await _as_text(page, max_chars)


async def _get(web: Web, url: WebUrl) -> _Page | WebUrl:
    """The page at an address, or the address that it redirects to."""
    addresses = await _addresses(web, url)
    connections = Connections(url.authority, None, read_timeout=web.total_s)
    headers = {**_HEADERS, "host": url.authority}
    try:
        async with connections.send("GET", urlsplit(str(url)), headers, b"", addresses=addresses) as response:
            if response.status in (301, 302, 303, 307, 308):
                return _target(web, url, response)
            return await _page(url, response, web.max_bytes)
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


async def _page(url: WebUrl, response: Response, max_bytes: int) -> _Page:
    headers = response.headers
    if not 200 <= response.status < 300 or response.status in (204, 205):
        raise _refusal(response.status, headers, url)
    _require_readable(headers.get("content-type", ""))
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
    return _Page(url, headers.get("content-type", ""), bytes(body))


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


def _require_readable(content_type: str) -> None:
    """Raises `ToolError` for a type that is no text, before its body is read."""
    kind = media_type(content_type)
    is_text = kind.startswith("text/") or kind in _TEXT_KINDS or kind.endswith(("+json", "+xml", "+yaml", "+text"))
    if kind and not (is_text or kind in _UNSAID):
        what = _KINDS.get(kind.partition("/")[0], "")
        held = f"The address holds {f'{what} ({kind})' if what else kind}, and web_fetch reads text only."
        way = "Look for a page about it, or ask the user to put the file into the workspace."
        raise ToolError(f"{held} {way}", kind="validation_error")


async def _as_text(fetched: _Page, max_chars: int) -> WebPage:
    """The page as text: HTML as Markdown, one long line of JSON laid out, other text as it is. Raises `ToolError`."""
    kind = media_type(fetched.content_type)
    text = decoded(fetched.body, fetched.content_type)
    start = text[:_SNIFFED].lstrip().lower()
    if _is_binary(fetched.body, text):
        held = f"The address holds binary data ({kind or 'no type given'})"
        raise ToolError(f"{held}, and web_fetch reads text only.", kind="validation_error")
    url = str(fetched.url)
    if kind in _HTML or (kind in _UNSAID and start.startswith(("<!doctype html", "<html"))):
        notes = []
        if len(text) > MOST_HTML:
            text = text[:MOST_HTML]
            notes.append(f"The page is longer than {MOST_HTML:,} characters of HTML: its end was left out.")
        page = await _as_markdown(text, url)
        if page.cut:
            notes.append("Parts nested too deep were left out.")
        beginning = beginning_of(page.markdown, max_chars)
        return WebPage(url, page.title, kind, beginning, len(page.markdown), notes=tuple(notes))
    if kind.endswith(("/json", "+json")) and "\n" not in text.strip():
        with suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):  # else it stays as it is
            text = msgspec.json.format(text, indent=2)
    beginning = text[: max_chars + _SLACK]  # what is never shown need not be cleaned: a second for 10 MB
    cleaned = visible_text(beginning)
    total = len(cleaned) if len(beginning) == len(text) else len(text)
    return WebPage(url, "", kind, beginning_of(cleaned, max_chars), total)


def media_type(content_type: str) -> str:
    """`text/html` of `Text/HTML; charset=utf-8`; empty when nothing is said, or nothing that is a type."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind if _TYPE.fullmatch(kind) else ""


class _ConvertedPage(msgspec.Struct, frozen=True):
    title: str
    markdown: str
    cut: bool


async def _as_markdown(page: str, base_url: str) -> _ConvertedPage:
    """The page through a process of its own (html_pages.py). Raises `ToolError`."""
    # -P and the search path of this process: the working directory may be a stranger's project. No other variable of
    # the environment reaches a parser of foreign pages.
    search = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[3]), *filter(None, sys.path)]))
    end = await run_short_program(
        (sys.executable, "-P", "-m", "agentcli.tools.web.html_pages", base_url), timeout_s=CONVERSION_S,
        max_bytes=_MAX_ANSWER_BYTES, environment={"PYTHONPATH": search, "PYTHONUTF8": "1"},
        stdin=page.encode("utf-8", errors="replace"),
    )  # fmt: skip
    if end.exit_code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        raise ToolError("The page is built so that reading it takes too long.", kind="validation_error")
    try:
        return msgspec.json.decode(end.stdout, type=_ConvertedPage)
    except msgspec.DecodeError as error:
        message = f"The page could not be read: its parser ended with code {end.exit_code}."
        raise ToolError(message, kind="validation_error") from error


def _is_binary(body: bytes, text: str) -> bool:
    if body.startswith(_BINARY_STARTS):
        return True
    sample = text[:100_000]
    odd = sum(sample.count(sign) for sign in ("\0", "\ufffd", "\x01", "\x02", "\x03", "\x04", "\x05", "\x06"))
    return "\0" in sample[:_SNIFFED] or odd * 20 > len(sample) > 0


_TYPE = re.compile(r"[a-z0-9.+*-]{1,80}/[a-z0-9.+*-]{1,80}")
_HTML = ("text/html", "application/xhtml+xml")
_UNSAID = ("", "application/octet-stream", "application/unknown", "unknown/unknown", "*/*")
_TEXT_KINDS = frozenset(
    "application/json application/ld+json application/xml application/javascript application/ecmascript "
    "application/x-javascript application/typescript application/yaml application/x-yaml application/toml "
    "application/x-ndjson application/jsonl application/json5 application/sql application/graphql application/x-sh "
    "application/x-python application/x-httpd-php application/x-tex application/x-latex application/rtf "
    "application/x-www-form-urlencoded application/pgp-signature application/x-subrip message/rfc822 "
    "message/http".split()
)
_KINDS = {"image": "an image", "audio": "sound", "video": "a film", "font": "a font"}
_BINARY_STARTS = (
    b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"\x7fELF", b"MZ\x90\x00",
    b"7z\xbc\xaf",
)  # fmt: skip
