"""Paints the roles of text in the colours of a palette; colour alone never carries a meaning."""

import re
from collections.abc import Iterable, Mapping, Sequence

from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.settings.terminal import COLOUR_NAMES

RAW = "sgr:"  # before SGR parameters that replace roles
BOLD, FAINT, ITALIC, UNDERLINE, REVERSE, STRIKE = 1, 2, 3, 4, 7, 9
# The attributes of roles, the same in every palette.
_ATTRIBUTES: dict[str, tuple[int, ...]] = {
    "bold": (BOLD,), "italic": (ITALIC,), "underline": (UNDERLINE,), "strike": (STRIKE,),
    "heading1": (BOLD, UNDERLINE), "heading2": (BOLD,), "heading3": (BOLD,), "quote": (ITALIC,), "link": (UNDERLINE,),
    "table_header": (BOLD,), "selected": (REVERSE,), "prompt": (BOLD,),
}  # fmt: skip
# The roles that take a colour of the palette.
_ROLES_BY_COLOUR = {
    "grey": "dim muted url rule table_rule comment hunk line_number completion",
    "blue": "heading1 heading2 heading3 marker name accent prompt said",
    "cyan": "code number string",
    "magenta": "keyword",
    "green": "added added_sign added_word ok",
    "red": "removed removed_sign removed_word error",
    "yellow": "warning",
}
_ROLE_COLOURS = {role: colour for colour, roles in _ROLES_BY_COLOUR.items() for role in roles.split()}
# The roles that may have a background.
_BACKGROUND_ROLES = ("added", "removed", "added_sign", "removed_sign", "added_word", "removed_word", "said")
ROLES = tuple(dict.fromkeys((*_ATTRIBUTES, *_ROLE_COLOURS)))
# Indices of the xterm palette whose contrast with the background is at least 4.5:1 (a test computes it).
PALETTES: dict[str, dict[str, int]] = {
    "dark": {"grey": 247, "blue": 111, "cyan": 80, "magenta": 176, "green": 114, "red": 210, "yellow": 179},
    "light": {"grey": 240, "blue": 25, "cyan": 23, "magenta": 90, "green": 22, "red": 124, "yellow": 94},
    "high-contrast-dark": {
        "grey": 252, "blue": 153, "cyan": 123, "magenta": 219, "green": 157, "red": 217, "yellow": 229,
    },
    "high-contrast-light": {"grey": 236, "blue": 18, "cyan": 17, "magenta": 53, "green": 22, "red": 52, "yellow": 52},
    # The terminal's own sixteen colours, whose look the person chooses; -1 means faint text, because many light
    # themes make "bright black" invisible.
    "ansi": {"grey": -1, "blue": 12, "cyan": 6, "magenta": 5, "green": 2, "red": 1, "yellow": 3},
    "none": {},
}  # fmt: skip
# The background of changed lines, of the words in them that differ, and of prompts: an index of the xterm palette,
# and red, green and blue for terminals that show any colour. The other palettes colour the text instead.
_ON_DARK = {
    "added": (22, (18, 42, 28)), "removed": (52, (58, 24, 28)),
    "added_word": (28, (32, 84, 48)), "removed_word": (88, (116, 38, 42)), "said": (236, (42, 44, 54)),
}  # fmt: skip
_ON_LIGHT = {
    "added": (194, (226, 250, 232)), "removed": (224, (255, 233, 231)),
    "added_word": (157, (172, 238, 187)), "removed_word": (217, (255, 193, 188)), "said": (255, (236, 238, 245)),
}  # fmt: skip
# By palette that has backgrounds: these, the palette that can be read on them, and the colour of changed words.
CHANGE_BACKGROUNDS = {
    "dark": (_ON_DARK, "high-contrast-dark", 231), "high-contrast-dark": (_ON_DARK, "high-contrast-dark", 231),
    "light": (_ON_LIGHT, "light", 16), "high-contrast-light": (_ON_LIGHT, "high-contrast-light", 16),
}  # fmt: skip


class Theme:
    """Turns fragments into text with SGR codes, switching only where the look changes."""

    def __init__(self, palette: str = "none", own: Mapping[str, str] = {}, *, is_true_colour: bool = False) -> None:
        self._is_true_colour = is_true_colour  # the terminal shows 24-bit colours
        self.palette, self._own, self._colours = palette, own, PALETTES[palette]  # `own`: the person's codes, by role
        self._codes: dict[str, str] = {"": ""}  # built so far, by roles

    def use(self, palette: str, own: Mapping[str, str] = {}) -> bool:
        """Paint in another palette from now on. Return False if nothing changes."""
        if (palette, own) == (self.palette, self._own):
            return False
        self.palette, self._own, self._colours, self._codes = palette, own, PALETTES[palette], {"": ""}
        return True

    def code(self, roles: str) -> str:
        """Return the SGR parameters of space separated roles; empty for plain text."""
        if roles not in self._codes:
            self._codes[roles] = self._build_code(roles.split())
        return self._codes[roles]

    def _build_code(self, roles: Sequence[str]) -> str:
        """Return the SGR parameters of roles: the attributes of all, and the colour of the last that has one."""
        if roles[0].startswith(RAW):
            return roles[0].removeprefix(RAW) if self.palette != "none" else ""
        if shown_as := next((role for role in reversed(roles) if role in _BACKGROUND_ROLES), ""):
            return self._build_background_code(shown_as, roles)
        code = ""
        attributes: list[int] = []
        for role in roles:
            attributes += [a for a in _ATTRIBUTES.get(role, ()) if a not in attributes]
            if self.palette != "none" and (own := self._own_code(role)):
                code = own
            elif (colour := self._colours.get(_ROLE_COLOURS.get(role, ""))) is not None:
                code = _colour_code(colour) if colour >= 0 else ""  # -1 means faint text in the usual colour
                if not code and FAINT not in attributes:
                    attributes.append(FAINT)
        return ";".join([*map(str, attributes), *([code] if code else [])])

    def _own_code(self, role: str) -> str:
        return self._own.get(role) or self._own.get(_ROLE_COLOURS.get(role, ""), "")

    def _build_background_code(self, shown_as: str, roles: Sequence[str]) -> str:
        """Return the code of a part of a diff or a prompt: colours over a background, else one colour for all of it.

        `shown_as` is a changed line, its + or - (`_sign`), words in it that differ (`_word`), or a prompt ("said"). A
        person's own colour for it takes the place of the background and of the syntax.
        """
        codes = [str(number) for role in roles for number in _ATTRIBUTES.get(role, ())]
        is_word = shown_as.endswith("_word")
        # Without a background, one colour shows what the part is, and reversed colours show the words that differ.
        if (own := self._own_code(shown_as)) or self.palette not in CHANGE_BACKGROUNDS:
            codes = [str(REVERSE), *codes] if is_word else codes
            if self.palette != "none":
                codes.append(own or _colour_code(self._colours[_ROLE_COLOURS[shown_as]]))
            return ";".join(codes)
        backgrounds, text_palette, word_colour = CHANGE_BACKGROUNDS[self.palette]
        coloured_roles = [role for role in roles if role in _ROLE_COLOURS and role not in ("added", "removed")]
        own_colours = list(filter(None, map(self._own_code, coloured_roles)))
        if is_word:  # it stands out by its own colour, not by that of the syntax
            codes.append(_colour_code(word_colour))
        elif own_colours:
            codes.append(own_colours[-1])
        elif coloured_roles:
            codes.append(_colour_code(PALETTES[text_palette][_ROLE_COLOURS[coloured_roles[-1]]]))
        index, rgb = backgrounds[shown_as.removesuffix("_sign")]  # a sign has the background of its line
        codes.append("48;2;{};{};{}".format(*rgb) if self._is_true_colour else f"48;5;{index}")
        return ";".join(codes)

    def paint(self, fragments: Iterable[Fragment]) -> str:
        """Return text with codes; it ends in the terminal's own look."""
        out: list[str] = []
        now = ""  # the code in force
        for roles, text in fragments:
            code = self.code(roles)
            if code != now and text:
                out.append(f"\x1b[{';' if now else ''}{code}m" if code else "\x1b[m")  # a leading `;` resets
                now = code
            out.append(text)
        if now:
            out.append("\x1b[m")
        return "".join(out)


def _colour_code(colour: int) -> str:
    """Return the SGR parameters of a text colour: of the first eight, their bright forms, or the others of 256."""
    return str(30 + colour) if colour < 8 else str(82 + colour) if colour < 16 else f"38;5;{colour}"


def own_codes(table: Mapping[str, int | str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SGR parameters for a person's theme, as near to it as the terminal can paint."""
    return {role: _nearest_code(colour, environment) for role, colour in table.items()}


def _nearest_code(colour: int | str, environment: Mapping[str, str]) -> str:
    """Return the SGR parameters for an index of 256 colours, the name of one of the first sixteen, or `#rrggbb`."""
    if colour == "default":
        return "39"  # the terminal's own colour of text
    if isinstance(colour, str) and colour in COLOUR_NAMES:
        colour = COLOUR_NAMES.index(colour)
    if isinstance(colour, int):
        return _colour_code(colour)
    if has_true_colours(environment):
        return f"38;2;{int(colour[1:3], 16)};{int(colour[3:5], 16)};{int(colour[5:7], 16)}"
    from rich.color import Color, ColorSystem  # 5 ms that few terminals need

    return _colour_code(Color.parse(colour).downgrade(ColorSystem.EIGHT_BIT).number or 0)


def palette_for(choice: str, environment: Mapping[str, str], background: str = "") -> str:
    """Return the palette for a theme, ours or the person's own. `background` is dark, light or, if unknown, empty."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return "none"
    if choice == "high-contrast":
        return f"high-contrast-{background or 'dark'}"
    if choice in PALETTES:
        return choice
    has_256_colours = "256" in environment.get("TERM", "") or environment.get("COLORTERM")
    return background if background and has_256_colours else "ansi"  # for "auto" and the person's own themes


def has_true_colours(environment: Mapping[str, str]) -> bool:
    return environment.get("COLORTERM") in ("truecolor", "24bit")


def background_of(reply: str) -> str:
    """Return `dark` or `light` by a terminal's answer to OSC 11 (xterm: `rgb:RRRR/GGGG/BBBB`), else an empty text."""
    if not (found := re.search(r"rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})", reply)):
        return ""
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return "light" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "dark"  # by its luminance
