"""Colours that can be read, and nothing that only a colour says."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import Color

from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import plain
from agentcli.frontends.terminal.text.theme import (
    CHANGE_BACKGROUNDS,
    PALETTES,
    ROLES,
    Theme,
    background_of,
    own_codes,
    palette_for,
)
from agentcli.settings.terminal import COLOUR_NAMES, COLOURS, THEMES
from agentcli.settings.terminal import ROLES as ROLES_OF_SETTINGS
from tests.properties import examples
from tests.rows import each_row

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
BACKGROUNDS = {"dark": "#1e1e1e", "light": "#f5f5f5", "high-contrast-dark": "#000000", "high-contrast-light": "#ffffff"}


def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def xterm_rgb(index: int) -> tuple[int, int, int]:
    return Color.from_ansi(index).get_truecolor()


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[int, int, int]) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", sorted(BACKGROUNDS))
def test_every_colour_can_be_read_on_its_background(palette: str) -> None:
    least = 7 if palette.startswith("high-contrast") else 4.5  # WCAG 2.2, 1.4.6 and 1.4.3
    for name, index in PALETTES[palette].items():
        assert index >= 16, "the first sixteen are the person's choice"
        assert contrast(xterm_rgb(index), rgb(BACKGROUNDS[palette])) >= least, name


@pytest.mark.parametrize("palette", sorted(BACKGROUNDS))
def test_every_colour_can_be_read_on_black_or_white_too(palette: str) -> None:
    extreme = WHITE if "light" in palette else BLACK
    assert all(contrast(xterm_rgb(index), extreme) >= 4.5 for index in PALETTES[palette].values())


@pytest.mark.parametrize("palette", sorted(CHANGE_BACKGROUNDS))
@pytest.mark.parametrize("is_true_colour", [False, True])
def test_every_part_of_a_diff_and_a_prompt_can_be_read(palette: str, is_true_colour: bool) -> None:
    theme = Theme(palette, is_true_colour=is_true_colour)
    syntax = ["keyword", "string", "comment", "number", "name"]
    sides = [
        [f"{side}_sign", *(f"{side} {role}" for role in syntax), f"{side} {side}_word"] for side in ("added", "removed")
    ]
    for roles in ["said", *(role for side in sides for role in side)]:
        numbers = [int(number) for number in theme.code(roles).split(";")]
        assert numbers[:2] == [38, 5]
        behind = tuple(numbers[5:8]) if is_true_colour else xterm_rgb(numbers[5])
        assert contrast(xterm_rgb(numbers[2]), behind) >= 4.5, roles  # type: ignore[arg-type]


def test_contrast_is_the_ratio_of_the_guidelines() -> None:
    assert contrast(BLACK, WHITE) == contrast(WHITE, BLACK) == pytest.approx(21)
    assert contrast(WHITE, WHITE) == 1
    assert contrast((118, 118, 118), WHITE) == pytest.approx(4.54, abs=0.01)


def test_all_palettes_name_the_same_colours() -> None:
    names = {frozenset(colours) for palette, colours in PALETTES.items() if palette != "none"}
    assert len(names) == 1


def test_added_and_removed_lines_have_marks_and_changed_words_are_reversed() -> None:
    fragments = diff_fragments("--- a\n+++ b\n@@ -1 +1 @@\n-one two\n+one three\n", width=80, max_lines=None)
    assert [line.split()[1] for line in plain(fragments).splitlines()] == ["-", "+"]
    for role in ("added_word", "removed_word", "selected"):
        assert "7" in Theme("none").code(role).split(";")


def test_added_lines_and_strings_differ_in_the_terminals_own_colours() -> None:
    theme = Theme("ansi")
    assert len({theme.code(role) for role in ("added", "removed", "string", "comment", "keyword")}) == 5


def test_without_colours_there_are_only_attributes() -> None:
    codes = {Theme("none").code(role) for role in ROLES}
    assert codes <= {"", "1", "3", "4", "7", "9", "1;4"}


@examples(40)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(ROLES), max_size=3).map(" ".join), st.text("ab \n", max_size=3)), max_size=14
    )
)
def test_each_piece_looks_as_its_roles_say_whatever_came_before(pieces: list[tuple[str, str]]) -> None:
    for palette in PALETTES:
        theme = Theme(palette)
        screen = pyte.Screen(60, 16)
        pyte.Stream(screen).feed(theme.paint(pieces).replace("\n", "\r\n"))
        cells = [screen.buffer[y][x] for y in range(16) for x in range(60)]
        shown = [cell for cell in cells if cell != screen.default_char and cell.data != " "]
        expected = []
        for roles, text in pieces:
            one = pyte.Screen(200, 1)
            pyte.Stream(one).feed(f"\x1b[{theme.code(roles)}mx")
            expected += [one.buffer[0][0]._replace(data=letter) for letter in text if letter not in " \n"]
        assert [cell for cell in shown if cell.data in "ab"] == [
            cell for cell in expected if cell != screen.default_char
        ]
        assert screen.cursor.attrs == screen.default_char


@each_row(
    "choice, environment, background, palette",
    [
        ("auto", {"TERM": "xterm-256color"}, "dark", "dark"),
        ("auto", {"TERM": "xterm-256color"}, "light", "light"),
        ("auto", {"TERM": "xterm-256color"}, "", "ansi"),
        ("auto", {"TERM": "xterm"}, "dark", "ansi"),
        ("auto", {"TERM": "xterm", "COLORTERM": "truecolor"}, "dark", "dark"),
        ("high-contrast", {"TERM": "xterm"}, "", "high-contrast-dark"),
        ("high-contrast", {"TERM": "xterm"}, "light", "high-contrast-light"),
        ("dark", {"TERM": "xterm", "NO_COLOR": "1"}, "", "none"),
        ("dark", {"TERM": "xterm", "NO_COLOR": ""}, "", "dark"),
        ("dark", {"TERM": "dumb"}, "", "none"),
        ("none", {"TERM": "xterm-256color"}, "dark", "none"),
    ],
)
def test_the_palette_for_a_choice(choice: str, environment: dict[str, str], background: str, palette: str) -> None:
    assert palette_for(choice, environment, background) == palette


@given(
    st.sampled_from(THEMES),
    st.dictionaries(st.sampled_from(["TERM", "COLORTERM", "NO_COLOR"]), st.text()),
    st.sampled_from(["dark", "light", ""]),
)
def test_any_environment_leads_to_a_palette(choice: str, environment: dict[str, str], background: str) -> None:
    assert palette_for(choice, environment, background) in PALETTES


def test_the_background_is_in_the_terminals_answer() -> None:
    for background, replies in {
        "dark": ("11;rgb:1e1e/1e1e/1e1e", "11;rgba:0000/0000/ffff/ffff"),
        "light": ("11;rgb:ffff/ffff/ffff", "11;rgb:f/f/e"),
        "": ("11;?", ""),
    }.items():
        assert [background_of(reply) for reply in replies] == [background] * 2


def test_the_settings_know_the_roles_and_colours_there_are() -> None:
    assert set(ROLES_OF_SETTINGS) == set(ROLES)
    assert set(COLOURS) == set(PALETTES["dark"])
    assert {choice for choice in THEMES if choice not in ("auto", "high-contrast")} <= set(PALETTES)


TRUE, MANY = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}, {"TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("colour", "true", "many"),
    [
        ("#5f87ff", "38;2;95;135;255", "38;5;69"),
        ("#5e88fe", "38;2;94;136;254", "38;5;69"),
        ("#808080", "38;2;128;128;128", "38;5;244"),
        ("#000000", "38;2;0;0;0", "38;5;16"),
        ("#FFFFFF", "38;2;255;255;255", "38;5;231"),
        ("#ff0000", "38;2;255;0;0", "38;5;196"),
        (176, "38;5;176", "38;5;176"),
        (3, "33", "33"),
        ("yellow", "33", "33"),
        ("bright-black", "90", "90"),
        ("default", "39", "39"),
    ],
)
def test_a_custom_colour_is_painted_as_near_as_the_terminal_can(colour: int | str, true: str, many: str) -> None:
    for environment, code in ((TRUE, true), (MANY, many)):
        theme = Theme("dark", own_codes({"keyword": colour}, environment))
        assert theme.code("keyword") == code
        assert theme.paint([("keyword", "if"), ("", " x")]) == f"\x1b[{code}mif\x1b[m x"


def test_a_custom_theme_changes_only_the_colours_that_it_names() -> None:
    theme = Theme("dark", own_codes({"blue": "green", "heading1": "#ff0000"}, MANY))
    plain = Theme("dark")
    assert theme.code("accent") == "32"
    assert theme.code("heading1") == "1;4;38;5;196"
    in_a_diff = Theme("dark", own_codes({"magenta": "#ff0000"}, MANY)).code("added keyword")
    assert in_a_diff.startswith("38;5;196;48;5;")  # over the background of added lines
    assert theme.code("error") == plain.code("error")
    assert Theme("none", own_codes({"blue": "green"}, MANY)).code("accent") == ""
    assert palette_for("mine", TRUE, "light") == "light"


def test_every_name_of_a_colour_has_a_code() -> None:
    assert all(own_codes({"blue": name}, MANY)["blue"] for name in COLOUR_NAMES)
