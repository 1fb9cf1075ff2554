"""Takes text out of a page that is written in the colour of its background.

Colours are those of `style`, `bgcolor`, `<font>` and the plain rules of the page's own style sheets, passed on from
element to element. Where a page leaves something open, as by a style sheet elsewhere, such text is only marked.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Literal, NamedTuple

from PIL.ImageColor import getrgb

from agentcli.tools.web.hidden import declarations, outer_rules

Colour = tuple[int, int, int]
Unknown = Literal["unknown"]  # a picture, a gradient, a variable: nobody can tell what it looks like here

MARK = "[in the colour of its background: {}]"
_VALUE = r"[^\s,/()]{1,20}"
_FUNCTION = re.compile(
    rf"(rgb|hsl)a?\(\s*({_VALUE}?)(?:deg)?[\s,]+({_VALUE})[\s,]+({_VALUE})\s*(?:[,/]\s*(\d{{0,9}}\.?\d{{0,9}})(%?)\s*)?\)"
)
_COVERS = 0.5  # of a background's opacity, from which on what is behind it is not seen
_NEAR = 24  # of 255, in each of red, green and blue: a reader sees no letters then
_WHITE, _BLACK, _LINK = (255, 255, 255), (0, 0, 0), (0, 0, 238)
_MAY_HIDE = re.compile(r"color|background|<font", re.IGNORECASE)
_FROM_ELSEWHERE = re.compile(
    r"<link\b[^>]{0,2000}\bstylesheet|@import|color-scheme|prefers-color-scheme", re.IGNORECASE
)
_ONE_NAME = re.compile(r"[.#]?[\w-]+")
_COLOURS = re.compile(r"(?<![-\w])(?:color|background(?:-color|-image)?)\s*:", re.IGNORECASE)
_NOT_ON_SCREEN = re.compile(r"@media\s+print\b|@font-face\b|@page\b", re.IGNORECASE)
_NOT_AT_REST = re.compile(r"::|:(?:hover|focus|active|visited|target|disabled|before|after|selection|placeholder)")
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_OWN_LOOK = frozenset("button input select textarea option mark".split())  # the browser's colours, not the page's
# An element whose end is not written ends where the next one of its kind begins, unless an element of these is between.
_ENDS = {"li": "ul ol", "td": "table", "th": "table", "tr": "table", "p": "", "dt": "dl", "dd": "dl"}
_BLOCKS = frozenset("div ul ol dl table h1 h2 h3 h4 h5 h6 pre blockquote section article form hr".split())


class _Element(NamedTuple):
    """An open element, the colours in it, and which of them the page itself declares."""

    tag: str = ""
    colour: Colour | Unknown = _BLACK
    background: Colour | Unknown = _WHITE
    colour_is_declared: bool = False
    background_is_declared: bool = False

    @property
    def is_unreadable(self) -> bool:
        if self.colour == "unknown" or self.background == "unknown":
            return False
        return all(abs(one - other) <= _NEAR for one, other in zip(self.colour, self.background, strict=True))

    def painted(self, declared: dict[str, str], *, is_link: bool = False) -> _Element:
        element = self
        if self.tag in _OWN_LOOK:
            element = element._replace(colour="unknown", background="unknown")
        if is_link:
            element = element._replace(colour=_LINK, colour_is_declared=False)
        if (ink := declared.get("color", "inherit")) not in ("inherit", "unset", "currentcolor", "initial"):
            colour = found[0] if (found := colour_of(ink)) else "unknown"
            element = element._replace(colour=colour, colour_is_declared=True)
        if back := background_of(declared):
            element = element._replace(background=back, background_is_declared=True)
        return element


def without_unreadable(page: str, style_sheet: str) -> str:
    """The page without such text, or with marks around it; the same page where it has none."""
    if not _MAY_HIDE.search(page):
        return page
    walk = _Walk(style_sheet, is_certain=not _FROM_ELSEWHERE.search(page))
    walk.feed(page)
    walk.close()
    walk.end_text()
    return "".join(walk.kept) if walk.has_hidden else page


class _Walk(HTMLParser):
    def __init__(self, style_sheet: str, *, is_certain: bool) -> None:
        super().__init__(convert_charrefs=False)
        self.kept: list[str] = []
        self.has_hidden = False
        self._is_certain = is_certain
        self._text: list[str] = []
        self._rules: dict[str, dict[str, str]] = {}
        self._has_open_rules = False  # that may paint an element, and that are not followed here
        for selectors, body in outer_rules(style_sheet):
            if selectors.startswith("@"):
                self._has_open_rules |= bool(_COLOURS.search(body) and not _NOT_ON_SCREEN.match(selectors))
                continue
            declared = declarations(body)
            for selector in selectors.lower().split(","):
                if _ONE_NAME.fullmatch(name := selector.strip().replace(":root", "html")):
                    self._rules.setdefault(name, {}).update(declared)
                elif _COLOURS.search(body) and not _NOT_AT_REST.search(name):
                    self._has_open_rules = True
        # Both count also where a page leaves these tags out.
        self._open = [_Element().painted(self._rules.get("html", {})).painted(self._rules.get("body", {}))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.end_text()
        self.kept.append(self.get_starttag_text() or "")
        if tag in _ENDS:
            self._close(tag, stops=_ENDS[tag].split())
        if tag in _BLOCKS:
            self._close("p", stops=["table", "li", "td", "div", "button"])
        if tag in _VOID:
            return
        given = {name: value or "" for name, value in attrs}
        classes = (f".{name}" for name in given.get("class", "").lower().split())
        declared: dict[str, str] = {}
        for name in (tag, *classes, f"#{given.get('id', '').lower()}"):
            declared |= self._rules.get(name, {})
        for attribute, name in (("bgcolor", "background-color"), ("text", "color"), ("color", "color")):
            if value := given.get(attribute):
                declared[name] = value.strip().lower()
        declared |= declarations(given.get("style", ""))
        element = self._open[-1]._replace(tag=tag)
        self._open.append(element.painted(declared, is_link=tag == "a" and "href" in given))

    handle_startendtag = handle_starttag  # in HTML the slash means nothing

    def _close(self, tag: str, stops: list[str]) -> None:
        """Close the innermost element of that name, and all within it."""
        for number in range(len(self._open) - 1, max(0, len(self._open) - 100), -1):
            if self._open[number].tag == tag:
                del self._open[number:]
                return
            if self._open[number].tag in stops:
                return

    def handle_endtag(self, tag: str) -> None:
        self.end_text()
        self.kept.append(f"</{tag}>")
        self._close(tag, stops=[] if tag in ("table", "body", "html") else ["table"])

    def end_text(self) -> None:
        """Keep the text up to here, marked or not, or leave it out."""
        text, element = "".join(self._text), self._open[-1]
        self._text.clear()
        if text.strip() and element.tag not in ("style", "script", "title") and element.is_unreadable:
            self.has_hidden = True
            is_declared = element.colour_is_declared and element.background_is_declared
            is_certain = not self._has_open_rules and (self._is_certain or is_declared)
            text = " " if is_certain else MARK.format(text)
        self.kept.append(text)

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_entityref(self, name: str) -> None:
        self._text.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._text.append(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.kept.append(f"<!{decl}>")


def colour_of(value: str) -> tuple[Colour, float] | None:
    """Return a colour in lower case, as CSS Color 4 writes it, and its opacity; None for what is unknown."""
    opacity = 1.0
    try:
        if found := _FUNCTION.fullmatch(value := value.strip()):
            kind, first, second, third, share, is_percent = found.groups()
            value = f"{kind}({first},{second},{third})"
            opacity = float(share or 1) / (100 if is_percent else 1)
        red, green, blue, *alpha = getrgb(value)
    except ValueError:
        return None
    return (red, green, blue), alpha[0] / 255 if alpha else opacity


def background_of(declared: dict[str, str]) -> Colour | Unknown | None:
    """Return the background that declarations give an element; None where what is behind it stays."""
    value = declared.get("background-color") or declared.get("background", "")
    image = f"{declared.get('background', '')} {declared.get('background-image', '')}"
    if "url(" in image or "gradient(" in image or "var(" in value:
        return "unknown"
    found = map(colour_of, re.findall(r"[a-z-]+\([^)]*\)|[^\s/]+", value))
    return next((colour for colour, opacity in filter(None, found) if opacity >= _COVERS), None)
