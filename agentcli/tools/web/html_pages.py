"""Turns HTML into Markdown, and leaves out what a reader of the page would not see.

    python -m agentcli.tools.web.html_pages BASE_URL <page.html >page.json

It runs as a process of its own: the parser holds Python's lock while it works (1.3 s for 8 MB), and what a hostile page
does to it, to its memory or to its time ends with that process.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import resource
import sys
from typing import Any, cast

from html_to_markdown import ConversionOptions, convert

from agentcli.tools.web.hidden import hides, hiding_names, visible_text
from agentcli.tools.web.hidden_text import without_unreadable

DEEPEST = 256  # elements inside each other; pages have up to about 50
_LIMITS = (
    (resource.RLIMIT_AS, 1_000_000_000),  # bytes
    (resource.RLIMIT_CPU, 15),  # seconds
    (resource.RLIMIT_CORE, 0),
)
LITTLE = 500  # characters of a page that are not worth a call without its menus
LONGEST_LINK = 500  # characters of an address; longer ones carry data for a script
LONGEST_ALT = 300  # characters of an image's description
_ANCHORS = ("", "¶", "#", "§", "🔗")  # links of headings to themselves
_BLANK = re.compile(r"[\x00-\x20\x7f]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_OPENED = re.compile(r"(?:https?|mailto):", re.IGNORECASE)
_TITLE = re.compile(r"<title(?:\s[^<>]{0,2000})?>(.*?)(?:</title|\Z)", re.IGNORECASE | re.DOTALL)
_BODY = re.compile(r"<(?:body|svg)\b", re.IGNORECASE)
_STYLE = re.compile(r"<style(?:\s[^<>]{0,2000})?>(.*?)(?:</style|\Z)", re.IGNORECASE | re.DOTALL)
# Shown by no browser of today, or only once a script has run, or (svg) with text of its own that cannot be told from
# what it hides; `noscript` and `template` are dropped by the library.
_NEVER_SHOWN = frozenset("canvas object embed applet noframes noembed audio video datalist frameset svg".split())


def markdown_of(page: str, base_url: str) -> dict[str, Any]:
    """`title`, `markdown` and whether parts nested too deep were left out (`cut`).

    Menus are left out, since they come first and are long, unless a page has little else.
    """
    title = _TITLE.search(_BODY.split(page[:200_000], maxsplit=1)[0])
    style_sheet = "\n".join(_STYLE.findall(page))
    hidden_names = hiding_names(style_sheet)
    page = without_unreadable(page, style_sheet)
    reader = _Reader(hidden_names, with_menus=False)
    markdown = _converted(page, base_url, reader)
    if len(markdown) < LITTLE and reader.left_out_menus:
        reader = _Reader(hidden_names, with_menus=True)
        markdown = _converted(page, base_url, reader)
    return {
        "title": " ".join(visible_text(html.unescape(title[1])).split())[:300] if title else "",
        "markdown": markdown,
        "cut": reader.is_cut,
    }


def _converted(page: str, base_url: str, reader: _Reader) -> str:
    options = ConversionOptions(
        base_url=base_url,
        bullets="-",
        extract_metadata=False,
        expand_abbreviations=False,
        include_blockquote_citations=False,
        inline_data_media="alt_text_only",
        hidden_content="drop",
        highlight_style="none",
        compact_tables=True,
        max_depth=DEEPEST * 2,
    )
    result = convert(page, options, cast("Any", reader))
    reader.is_cut |= bool(result.warnings)
    return visible_text(result.content or "").strip()


class _Reader:
    """Answers the library's questions about every element, link and image."""

    def __init__(self, hidden_names: frozenset[str], *, with_menus: bool) -> None:
        self._hidden = hidden_names
        self._with_menus = with_menus
        self._code_depth = 1_000_000  # of the code block the parser is in: everything deeper is inside it
        self.left_out_menus = False
        self.is_cut = False

    def visit_element_start(self, element: Any) -> str:
        if element.depth > DEEPEST:
            self.is_cut = True
            return "skip"
        tag, attributes = element.tag_name, element.attributes()
        if element.depth <= self._code_depth:
            self._code_depth = element.depth if tag == "pre" else 1_000_000
        if not self._with_menus and (tag == "nav" or attributes.get("role") == "navigation"):
            self.left_out_menus = True
            return "skip"
        return "skip" if self._is_unseen(tag, attributes) else "continue"

    def _is_unseen(self, tag: str, attributes: dict[str, str]) -> bool:
        if tag in _NEVER_SHOWN or (tag == "dialog" and "open" not in attributes):
            return True
        if attributes.get("aria-hidden", "").strip().lower() == "true":
            return True
        if (style := attributes.get("style")) and hides(style):
            return True
        if not self._hidden:
            return False
        names = {f".{name}" for name in attributes.get("class", "").lower().split()}
        return not self._hidden.isdisjoint({*names, f"#{attributes.get('id', '').lower()}"})

    def visit_link(self, element: Any, href: str | None, text: str | None, title: str | None) -> Any:
        if element.depth > self._code_depth:
            return {"type": "custom", "output": text or ""}
        shown = " ".join((text or "").split())
        target = _address(href, element.attributes().get("href"))
        if shown in _ANCHORS:
            return "skip"
        if not target:
            return {"type": "custom", "output": shown}
        return {"type": "custom", "output": f"<{target}>" if shown == target else f"[{shown}]({target})"}

    def visit_image(self, element: Any, source: str | None, alt: str | None, title: str | None) -> Any:
        described = re.sub(r"[\[\]\s]+", " ", alt or "")[:LONGEST_ALT].strip()
        target = _address(source, element.attributes().get("src"))
        if not described:
            return "skip"
        return {"type": "custom", "output": f"![{described}]({target})" if target else described}


def _address(target: str | None, written: str | None) -> str:
    """A link's whole address when it leads to another page: `#part`, `javascript:`, `data:` and their like give none.

    As a browser does, control characters and spaces are passed over before the scheme is read.
    """
    target, written = (_BLANK.sub("", html.unescape(text or "")) for text in (target, written))
    scheme = _SCHEME.match(written)
    if not _OPENED.match(target) or (scheme and not _OPENED.match(written)):
        return ""
    if written.startswith("#") or len(target) > LONGEST_LINK:
        return ""
    return target.replace("(", "%28").replace(")", "%29")


def main() -> None:
    for limit, most in _LIMITS:
        _, hard = resource.getrlimit(limit)
        lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS knows the memory limit and sets none
            resource.setrlimit(limit, (lowest, lowest))
    page = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    json.dump(markdown_of(page, sys.argv[1]), sys.stdout)


if __name__ == "__main__":
    main()
