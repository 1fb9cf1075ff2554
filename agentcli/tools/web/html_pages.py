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
from html.parser import HTMLParser
from typing import Any, Literal, NamedTuple, cast

from html_to_markdown import ConversionOptions, convert
from PIL.ImageColor import getrgb

from agentcli.tools.web.hidden import declarations, hides_element, hiding_names, outer_rules, visible_text

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
    page = without_unreadable(page, style_sheet)
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
        if element.depth <= self._code_depth:  # the code block has ended
            self._code_depth = element.depth if tag == "pre" else _NO_CODE
        if not self._with_menus and (tag == "nav" or attributes.get("role") == "navigation"):
            self.left_out_menus = True
            return "skip"
        return "skip" if self._is_invisible(tag, attributes) else "continue"

    def _is_invisible(self, tag: str, attributes: dict[str, str]) -> bool:
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


# Text in the colour of its background is removed before the conversion. Colours come from `style`, `bgcolor`, `<font>`
# and the plain rules of the page's own style sheets, and are inherited by inner elements. If they are not certain, for
# example because of an external style sheet, such text is only marked.

Colour = tuple[int, int, int]
Unknown = Literal["unknown"]  # a picture, a gradient, a variable

MARK = "[in the colour of its background: {}]"
_VALUE = r"[^\s,/()]{1,20}"
_FUNCTION = re.compile(
    rf"(rgb|hsl)a?\(\s*({_VALUE}?)(?:deg)?[\s,]+({_VALUE})[\s,]+({_VALUE})\s*(?:[,/]\s*(\d{{0,9}}\.?\d{{0,9}})(%?)\s*)?\)"
)
_MIN_COVERING = 0.5  # from this opacity on, a background hides everything behind it
_MAX_DIFFERENCE = 24  # of 255, in each of red, green and blue: up to this, no letters are visible
_COLOURS = re.compile(r"(?<![-\w])(?:color|background(?:-color|-image)?)\s*:", re.IGNORECASE)
_NOT_ON_SCREEN = re.compile(r"@media\s+print\b|@font-face\b|@page\b", re.IGNORECASE)
# Selectors of parts that are no elements, and of elements that somebody points at, for example.
_NOT_AT_REST = re.compile(r"::|:(?:hover|focus|active|visited|target|disabled|before|after|selection|placeholder)")
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_OWN_LOOK = frozenset("button input select textarea option mark".split())  # the browser's colours, not the page's
# Elements whose end tag may be missing: each ends where the next of its kind begins, unless one of these is in between.
_ENDS = {"li": "ul ol", "td": "table", "th": "table", "tr": "table", "p": "", "dt": "dl", "dd": "dl"}
_BLOCKS = frozenset("div ul ol dl table h1 h2 h3 h4 h5 h6 pre blockquote section article form hr".split())


class _Element(NamedTuple):
    """An open element, its colours, and which of them the page itself declares."""

    tag: str = ""
    colour: Colour | Unknown = (0, 0, 0)
    background: Colour | Unknown = (255, 255, 255)
    colour_is_declared: bool = False
    background_is_declared: bool = False

    @property
    def is_unreadable(self) -> bool:
        if self.colour == "unknown" or self.background == "unknown":
            return False
        return all(abs(one - other) <= _MAX_DIFFERENCE for one, other in zip(self.colour, self.background, strict=True))

    def painted(self, declared: dict[str, str], *, is_link: bool = False) -> _Element:
        """Return the element with the colours that CSS declares for it, or the browser's own."""
        element = self._replace(colour="unknown", background="unknown") if self.tag in _OWN_LOOK else self
        if is_link:
            element = element._replace(colour=(0, 0, 238), colour_is_declared=False)
        if (ink := declared.get("color", "inherit")) not in ("inherit", "unset", "currentcolor", "initial"):
            found = colour_of(ink)
            element = element._replace(colour=found[0] if found else "unknown", colour_is_declared=True)
        if back := background_of(declared):
            element = element._replace(background=back, background_is_declared=True)
        return element


def without_unreadable(page: str, style_sheet: str) -> str:
    """Return the page without text in the colour of its background; if that is not certain, with marks around it."""
    if not re.search(r"(?i)color|background|<font", page):
        return page
    other_styles = r"(?i)<link\b[^>]{0,2000}\bstylesheet|@import|color-scheme|prefers-color-scheme"
    walk = _ColourWalk(style_sheet, has_all_styles=not re.search(other_styles, page))
    walk.feed(page)
    walk.close()
    walk.end_text()
    return "".join(walk.parts) if walk.has_hidden else page


class _ColourWalk(HTMLParser):
    """Collects a page in `parts`, without text in the colour of its background; see `end_text` for doubtful cases."""

    def __init__(self, style_sheet: str, *, has_all_styles: bool) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []  # the page so far
        self.has_hidden = False  # True if text was left out or marked
        self._has_all_styles = has_all_styles  # False if an external style sheet may change the colours
        self._text: list[str] = []  # pieces of text since the last tag, all in the same colours
        self._rules: dict[str, dict[str, str]] = {}  # declarations by tag, `.class` or `#id`
        self._has_unresolved_rules = False  # True for rules that may colour an element but are not applied here
        for selectors, body in outer_rules(style_sheet):
            if selectors.startswith("@"):
                self._has_unresolved_rules |= bool(_COLOURS.search(body) and not _NOT_ON_SCREEN.match(selectors))
                continue
            declared = declarations(body)
            for selector in selectors.lower().split(","):
                if re.fullmatch(r"[.#]?[\w-]+", name := selector.strip().replace(":root", "html")):
                    self._rules.setdefault(name, {}).update(declared)
                elif _COLOURS.search(body) and not _NOT_AT_REST.search(name):
                    self._has_unresolved_rules = True
        # The open elements, outermost first. The rules of `html` and `body` apply even if a page has no such tags.
        self._open = [_Element().painted(self._rules.get("html", {})).painted(self._rules.get("body", {}))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.end_text()
        self.parts.append(self.get_starttag_text() or "")
        if tag in _ENDS:
            self._close(tag, stops=_ENDS[tag].split())
        if tag in _BLOCKS:  # a block ends the paragraph before it
            self._close("p", stops=["table", "li", "td", "div", "button"])
        if tag in _VOID:
            return
        attributes = {name: value or "" for name, value in attrs}
        classes = (f".{name}" for name in attributes.get("class", "").lower().split())
        declared: dict[str, str] = {}
        for name in (tag, *classes, f"#{attributes.get('id', '').lower()}"):  # the most specific rule last, as in CSS
            declared |= self._rules.get(name, {})
        for attribute, name in (("bgcolor", "background-color"), ("text", "color"), ("color", "color")):
            if value := attributes.get(attribute):
                declared[name] = value.strip().lower()
        declared |= declarations(attributes.get("style", ""))
        element = self._open[-1]._replace(tag=tag)
        self._open.append(element.painted(declared, is_link=tag == "a" and "href" in attributes))

    handle_startendtag = handle_starttag  # in HTML the slash means nothing

    def _close(self, tag: str, stops: list[str]) -> None:
        """Close the innermost element with that tag and all inside it, unless one of `stops` is further in."""
        # Not the first, which is the page itself. The limit keeps pages with many open elements fast.
        for number in range(len(self._open) - 1, max(0, len(self._open) - 100), -1):
            if self._open[number].tag == tag:
                del self._open[number:]
                return
            if self._open[number].tag in stops:
                return

    def handle_endtag(self, tag: str) -> None:
        self.end_text()
        self.parts.append(f"</{tag}>")
        # As in browsers, an end tag in a table closes nothing outside of the table.
        self._close(tag, stops=[] if tag in ("table", "body", "html") else ["table"])

    def end_text(self) -> None:
        """Add the text so far. It is removed if it surely has its background's colour, and marked if it may have it."""
        text, element = "".join(self._text), self._open[-1]
        self._text.clear()
        if text.strip() and element.tag not in ("style", "script", "title") and element.is_unreadable:
            self.has_hidden = True
            # External style sheets do not matter if the page itself declares both colours.
            is_declared = element.colour_is_declared and element.background_is_declared
            is_certain = not self._has_unresolved_rules and (self._has_all_styles or is_declared)
            text = " " if is_certain else MARK.format(text)
        self.parts.append(text)

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_entityref(self, name: str) -> None:
        self._text.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._text.append(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.parts.append(f"<!{decl}>")


def colour_of(value: str) -> tuple[Colour, float] | None:
    """Parse a colour of CSS Color 4, given in lower case, and return it with its opacity; None if it is unknown."""
    opacity = 1.0
    try:
        if found := _FUNCTION.fullmatch(value := value.strip()):
            kind, first, second, third, alpha_text, is_percent = found.groups()
            value = f"{kind}({first},{second},{third})"
            opacity = float(alpha_text or 1) / (100 if is_percent else 1)
        red, green, blue, *alpha = getrgb(value)
    except ValueError:
        return None
    return (red, green, blue), alpha[0] / 255 if alpha else opacity


def background_of(declared: dict[str, str]) -> Colour | Unknown | None:
    """Return the background that declarations give an element; None if its parent's stays visible."""
    value = declared.get("background-color") or declared.get("background", "")
    image = f"{declared.get('background', '')} {declared.get('background-image', '')}"
    if "url(" in image or "gradient(" in image or "var(" in value:
        return "unknown"
    found = map(colour_of, re.findall(r"[a-z-]+\([^)]*\)|[^\s/]+", value))  # `rgb(…)`, or words
    return next((colour for colour, opacity in filter(None, found) if opacity >= _MIN_COVERING), None)


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
