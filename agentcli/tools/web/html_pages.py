"""Turns HTML into Markdown, without the parts that a reader of the page would not see.

    python -m agentcli.tools.web.html_pages BASE_URL <page.html >page.json

It runs as a process of its own, because the parser holds Python's lock while it works (1.3 s for 8 MB). If a hostile
page takes too much memory or time, only that process ends.
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

from agentcli.tools.web.hidden import hides_element, hiding_names, visible_text

MAX_DEPTH = 256  # nested elements; ordinary pages have up to about 50
_SHOWN_SCHEMES = re.compile(r"(?:https?|mailto):", re.IGNORECASE)  # schemes of links that are shown
# Today's browsers do not show these, or only after a script has run; text in an svg may be hidden in many ways.
# The library itself drops `noscript` and `template`.
_NEVER_SHOWN = frozenset("canvas object embed applet noframes noembed audio video datalist frameset svg".split())


def markdown_of(page: str, base_url: str) -> dict[str, Any]:
    """Return `title`, `markdown` without menus if there is enough other text, and `cut` if deep parts are missing."""
    head = re.split(r"<(?:body|svg)\b", page[:200_000], maxsplit=1, flags=re.IGNORECASE)[0]  # an svg has titles, too
    title = re.search(r"(?is)<title(?:\s[^<>]{0,2000})?>(.*?)(?:</title|\Z)", head)
    style_sheet = "\n".join(re.findall(r"(?is)<style(?:\s[^<>]{0,2000})?>(.*?)(?:</style|\Z)", page))
    hidden_names = hiding_names(style_sheet)
    reader = _Reader(hidden_names, with_menus=False)
    markdown = _convert(page, base_url, reader)
    if len(markdown) < 500 and reader.left_out_menus:
        reader = _Reader(hidden_names, with_menus=True)
        markdown = _convert(page, base_url, reader)
    return {
        "title": " ".join(visible_text(html.unescape(title[1])).split())[:300] if title else "",
        "markdown": markdown,
        "cut": reader.is_cut,
    }


def _convert(page: str, base_url: str, reader: _Reader) -> str:
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
        max_depth=MAX_DEPTH * 2,  # the reader's limit comes first
    )
    result = convert(page, options, cast("Any", reader))
    reader.is_cut |= bool(result.warnings)  # the only warning in practice: its own limit of depth was reached
    return visible_text(result.content or "").strip()


_NO_CODE = 1_000_000  # no code block: a depth that no element has


class _Reader:
    """Decides for the library how each element, link and image is converted."""

    def __init__(self, hidden_names: frozenset[str], *, with_menus: bool) -> None:
        self._hidden, self._with_menus = hidden_names, with_menus
        self._code_depth = _NO_CODE  # depth of the current code block; deeper elements are inside it
        self.left_out_menus = False  # True if the page has menus
        self.is_cut = False  # True if elements nested too deep were left out

    def visit_element_start(self, element: Any) -> str:
        """Return `skip` to leave out an element and its contents, else `continue`; called in the order of the page."""
        if element.depth > MAX_DEPTH:
            self.is_cut = True
            return "skip"
        tag, attributes = element.tag_name, element.attributes()
        if element.depth <= self._code_depth:
            self._code_depth = element.depth if tag == "pre" else _NO_CODE
        if not self._with_menus and (tag == "nav" or attributes.get("role") == "navigation"):
            self.left_out_menus = True
            return "skip"
        return "skip" if self._is_invisible(tag, attributes) else "continue"

    def _is_invisible(self, tag: str, attributes: dict[str, str]) -> bool:
        """Return True if a person who looks at the page would not see the element."""
        is_closed_dialog = tag == "dialog" and "open" not in attributes
        is_aria_hidden = attributes.get("aria-hidden", "").strip().lower() == "true"
        names = {f".{name}" for name in attributes.get("class", "").lower().split()}
        is_hidden_by_sheet = not self._hidden.isdisjoint({*names, f"#{attributes.get('id', '').lower()}"})
        is_unseen = is_closed_dialog or is_aria_hidden or is_hidden_by_sheet
        return is_unseen or tag in _NEVER_SHOWN or hides_element(attributes.get("style", ""))

    def visit_link(self, element: Any, href: str | None, text: str | None, title: str | None) -> Any:
        if element.depth > self._code_depth:  # Markdown shows no links in code
            return {"type": "custom", "output": text or ""}
        shown = " ".join((text or "").split())
        target = _address_of_link(href, element.attributes().get("href"))
        if shown in ("", "¶", "#", "§", "🔗"):  # a heading's link to itself
            return "skip"
        link = f"<{target}>" if shown == target else f"[{shown}]({target})"
        return {"type": "custom", "output": link if target else shown}

    def visit_image(self, element: Any, source: str | None, alt: str | None, title: str | None) -> Any:
        described = re.sub(r"[\[\]\s]+", " ", alt or "")[:300].strip()
        target = _address_of_link(source, element.attributes().get("src"))
        if not described:
            return "skip"
        return {"type": "custom", "output": f"![{described}]({target})" if target else described}


def _address_of_link(absolute: str | None, written: str | None) -> str:
    """Return the address of a link to another page; empty within the page, for other schemes, for long addresses."""
    # Browsers ignore blanks and control characters in an address: `java script:` has a scheme.
    absolute, written = (re.sub(r"[\x00-\x20\x7f]+", "", html.unescape(text or "")) for text in (absolute, written))
    has_other_scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", written) and not _SHOWN_SCHEMES.match(written)
    leads_away = _SHOWN_SCHEMES.match(absolute) and not has_other_scheme and not written.startswith("#")
    is_shown = leads_away and len(absolute) <= 500  # longer addresses carry data for a script
    return absolute.replace("(", "%28").replace(")", "%29") if is_shown else ""


def main() -> None:
    limits = {resource.RLIMIT_AS: 1_000_000_000, resource.RLIMIT_CPU: 15, resource.RLIMIT_CORE: 0}  # bytes, seconds
    for limit, wanted in limits.items():
        _, hard = resource.getrlimit(limit)
        lowest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has the memory limit, but rejects every value for it
            resource.setrlimit(limit, (lowest, lowest))
    json.dump(markdown_of(sys.stdin.buffer.read().decode(errors="replace"), sys.argv[1]), sys.stdout)


if __name__ == "__main__":
    main()
