"""Finds parts of a page that a person would not see: invisible characters, and elements hidden by styles."""

import re

# Joiners and variation selectors are parts of scripts and emoji: each follows a visible character beyond ASCII.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_JOINING = "\u200c\u200d\ufe00-\ufe0f"
_SHOWS_NOTHING = re.compile(
    f"[{_INVISIBLE}\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]"
    f"|(?<![^\x00-\x7f{_INVISIBLE}{_JOINING}])[{_JOINING}]"
    f"|(?<=[{_JOINING}])(?<!\ufe0f)[{_JOINING}]"
)
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")


def visible_text(text: str) -> str:
    """Return a text without control characters, direction marks and other invisible characters; lines end with LF."""
    return _SHOWS_NOTHING.sub("", _LINE_END.sub("\n", text))


def hides_element(style: str) -> bool:
    """Return True if CSS takes an element out of sight: not shown, transparent, of no size, off the screen."""
    declared = declarations(style)
    harmless: set[str] = set()  # properties that do not hide this element, whatever their value
    if any(name.startswith(("transform", "transition", "animation", "will-change")) for name in declared):
        harmless.add("opacity")  # an animation may fade it in
    if any("background-clip" in name for name in declared):
        harmless.add("color")  # the background is seen through the letters
    overflow = " ".join(declared.get(f"overflow{axis}", "") for axis in ("", "-x", "-y"))
    if "hidden" not in overflow and "clip" not in overflow:
        harmless |= {"width", "height", "max-width", "max-height"}  # its contents are visible outside of it
    return any(_HIDING[name].fullmatch(declared[name]) for name in declared.keys() & _HIDING.keys() - harmless)


def hiding_names(style_sheet: str) -> frozenset[str]:
    """Return the `.class` and `#id` names that a plain rule of the page hides and no rule of the page shows again."""
    hidden: set[str] = set()
    shown: set[str] = set()
    for selectors, body in outer_rules(style_sheet):
        if selectors.startswith("@"):
            continue
        is_hidden = hides_element(body)
        for selector in selectors.split(","):
            selector = _plain_css(selector).strip()
            if is_hidden and _NAME.fullmatch(selector):
                hidden.add(selector)
            elif not is_hidden and _SHOWING & declarations(body).keys():
                shown.update(_NAME.findall(selector))
    return frozenset(hidden - shown)


_NAME = re.compile(r"[.#][\w-]+")
_SHOWING = {"display", "visibility", "opacity", "font-size", "position", "left", "top", "clip", "clip-path", "height"}


def outer_rules(sheet: str) -> list[tuple[str, str]]:
    """Return selectors and declarations of the outer rules; those of `@media` and the like contain inner rules."""
    rules: list[tuple[str, str]] = []
    depth, start, opened = 0, 0, 0  # the open braces; where an outer rule and its brace begin
    sheet = re.sub(r"/\*.*?(?:\*/|\Z)", "", sheet[:500_000], flags=re.DOTALL)
    for mark in re.finditer(r"[{};]", sheet):
        match mark[0]:
            case "{":
                if depth == 0:
                    opened = mark.start()
                depth += 1
            case "}":
                depth = max(0, depth - 1)
                if depth == 0:
                    if opened >= start:  # else a closing brace without an opening one
                        rules.append((sheet[start:opened].lstrip(), sheet[opened + 1 : mark.start()]))
                    start = mark.end()
            case _ if depth == 0:  # the end of a statement such as `@import`
                start = mark.end()
    return rules


def declarations(style: str) -> dict[str, str]:
    """Return the properties of a style by name, in lower case; the last one of a name wins."""
    declared: dict[str, str] = {}
    for declaration in _plain_css(style).split(";"):
        name, colon, value = declaration.partition(":")
        if colon:
            declared[name.strip()] = value.replace("!important", "").strip()
    return declared


def _plain_css(css: str) -> str:
    """Return CSS without comments and escapes (CSS Syntax 3 §4.3.7), in lower case."""
    css = re.sub(r"/\*.*?(?:\*/|\Z)", "", css, flags=re.DOTALL)
    css = re.sub(r"\\([0-9a-fA-F]{1,6})\s?", lambda found: chr(min(int(found[1], 16), 0x10FFFF)), css)
    return css.replace("\\", "").lower()


_ZERO = r"(?:0+(?:\.0*)?|\.0+)"
_FAINT = r"(?:0+(?:\.0\d*)?|\.0\d*)"  # less than a tenth
_FAR_OFF = r"-(?:\d{4,}|[5-9]\d\d)(?:\.\d+)?(?:px|pt)|-\d{2,}(?:\.\d+)?(?:r?em|ch|vw|vh)|-[1-9]\d{2,}%"
_FAR_ASIDE = rf"{_FAR_OFF}|(?:\d{{5,}}|[5-9]\d{{3}})(?:\.\d+)?(?:px|pt)"  # nobody scrolls so far to the right
_PIXEL = r"[01](?:px)?"
_HIDING = {
    name: re.compile(pattern)
    for names, pattern in {
        "display": "none",
        "visibility": "hidden|collapse",
        "content-visibility": "hidden",
        "opacity": rf"{_FAINT}|\d(?:\.\d*)?%",
        "color": rf"transparent|(?:rgb|hsl)a?\([^)]*[,/]\s*{_FAINT}%?\s*\)|#[0-9a-f]{{3}}0|#[0-9a-f]{{6}}00",
        "filter": rf".*opacity\(\s*{_FAINT}%?\s*\).*",
        "font-size": rf"(?:0*1(?:\.0*)?|0*\.\d+)(?:px|pt)|{_ZERO}(?:[a-z]+|%)?",
        "text-indent left margin-left": _FAR_ASIDE,
        "top right bottom margin-top": _FAR_OFF,
        "width height max-width max-height": rf"(?:0*1|{_ZERO}|0*\.\d+)(?:[a-z]+|%)?",
        "clip": rf"rect\(\s*{_PIXEL}[\s,]+{_PIXEL}[\s,]+{_PIXEL}[\s,]+{_PIXEL}\s*\)",
        "clip-path": r"inset\(\s*(?:[5-9]\d|1\d\d)%.*\)|circle\(\s*0[a-z%]*.*\)|polygon\((?:\s*0[a-z%]*[\s,]*)+\)",
        "transform": rf".*scale[xy]?\(\s*{_ZERO}[\s,)].*|"
        r".*translate[xy]?\(\s*(?:-\d{4,}|\d{5,}|[5-9]\d{3})(?:px|%).*",
    }.items()
    for name in names.split()
}
