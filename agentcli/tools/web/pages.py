"""Turns the body of a response into text a model can read, whatever its type and its character set."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentcli.errors import ToolError
from agentcli.settings.short_program import run_short_program
from agentcli.tools.observation import beginning_of
from agentcli.tools.web.charsets import decoded
from agentcli.tools.web.hidden import visible_text
from agentcli.tools.web.web import WebPage

if TYPE_CHECKING:
    from agentcli.tools.web.fetching import Page

MOST_HTML = 3_000_000  # characters of a page that are turned into Markdown; the rest is left out, and that is said
CONVERSION_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024  # more than any page of MOST_HTML characters becomes
_SLACK = 1_000  # characters that show nothing among the first ones
_SNIFFED = 2_048  # characters at the start of a body that tell what it is


def require_readable(content_type: str) -> None:
    """Raises `ToolError` for a type that is no text, before its body is read."""
    kind = media_type(content_type)
    if kind and not (_is_text(kind) or kind in _UNSAID):
        what = _KINDS.get(kind.partition("/")[0], "")
        named = f"{what} ({kind})" if what else kind
        raise ToolError(
            f"The address holds {named}, and web_fetch reads text only. Look for a page about it, or ask the user to "
            "put the file into the workspace.",
            kind="validation_error",
        )


async def read_page(fetched: Page, *, max_chars: int) -> WebPage:
    """The page as text: HTML as Markdown, one long line of JSON laid out, other text as it is. Raises `ToolError`."""
    kind = media_type(fetched.content_type)
    text = decoded(fetched.body, fetched.content_type)
    start = text[:_SNIFFED].lstrip().lower()
    if _is_binary(fetched.body, text):
        raise ToolError(
            f"The address holds binary data ({kind or 'no type given'}), and web_fetch reads text only.",
            kind="validation_error",
        )
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
    if _is_json(kind):
        text = _laid_out(text)
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
        (sys.executable, "-P", "-m", "agentcli.tools.web.html_pages", base_url),
        timeout_s=CONVERSION_S,
        max_bytes=_MAX_ANSWER_BYTES,
        environment={"PYTHONPATH": search, "PYTHONUTF8": "1"},
        stdin=page.encode("utf-8", errors="replace"),
    )
    if end.exit_code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        raise ToolError("The page is built so that reading it takes too long.", kind="validation_error")
    try:
        return msgspec.json.decode(end.stdout, type=_ConvertedPage)
    except msgspec.DecodeError as error:
        raise ToolError(
            f"The page could not be read: its parser ended with code {end.exit_code}.", kind="validation_error"
        ) from error


def _laid_out(text: str) -> str:
    """JSON that stands on one line, indented; anything else as it is."""
    if "\n" in text.strip():
        return text
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


def _is_binary(body: bytes, text: str) -> bool:
    if body.startswith(_BINARY_STARTS):
        return True
    sample = text[:100_000]
    odd = sum(sample.count(sign) for sign in ("\0", "\ufffd", "\x01", "\x02", "\x03", "\x04", "\x05", "\x06"))
    return "\0" in sample[:_SNIFFED] or odd * 20 > len(sample) > 0


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in _TEXT_KINDS or kind.endswith(("+json", "+xml", "+yaml", "+text"))


def _is_json(kind: str) -> bool:
    return kind.endswith(("/json", "+json"))


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
