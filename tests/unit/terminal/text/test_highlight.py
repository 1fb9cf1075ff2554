"""Code in colours, one line at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.terminal.text.code import MAX_LINE_CHARS, CodeHighlighter, lexer_for
from agentcli.frontends.terminal.text.fragments import Fragment, plain
from tests.properties import examples
from tests.rows import each_row

LANGUAGES = (
    "python ts bash json yaml console html css go rust c cpp java kotlin php ruby sql diff toml make xml nosuch".split()
)


def lines(language: str, code: str) -> list[list[Fragment]]:
    highlighter = CodeHighlighter(language)
    return [highlighter.line(line) for line in code.split("\n")]


def roles(language: str, code: str) -> list[set[str]]:
    """The roles in each line."""
    return [{role for role, _ in line} for line in lines(language, code)]


def test_keywords_names_strings_numbers_and_comments_have_roles() -> None:
    assert lines("python", "def f(x): return 'a' + 1  # b") == [
        [
            ("keyword", "def "), ("name", "f"), ("", "(x): "), ("keyword", "return "), ("string", "'a' "), ("", "+ "),
            ("number", "1  "), ("comment", "# b"),
        ]
    ]  # fmt: skip


def test_neighbours_of_one_colour_are_one_fragment() -> None:
    assert lines("python", "x is not None") == [[("", "x "), ("keyword", "is not None")]]


def test_a_name_is_coloured_where_it_is_defined() -> None:
    assert ("name", "__init__") in lines("python", "def __init__(self):")[0]


@each_row(
    "language, code, role",
    [
        ("python", '"""a\nif b\n"""\nif b: pass', "string"),
        ("python", "x = '''a\nif b\n'''\nif b: pass", "string"),
        ("js", "/** a\n * if b\n */\nif (b) {}", "comment"),
        ("ts", "let a = `b\n if c\n`\nif (b) {}", "string"),
        ("c", "/* a\n if b */\n;\nif (b) {}", "comment"),
        ("go", "a := `b\nif c\n`\nif b {}", "string"),
        ("java", "/*\n if b\n */\nif (b) {}", "comment"),
        ("html", "<!-- a\nif b\n-->\n<p class='a'>", "comment"),
        ("css", "/* a\nif b\n*/\na { b: 'c' }", "comment"),
        ("php", "/* a\n if b\n*/\nif ($b) {}", "comment"),
    ],
)
def test_what_a_line_leaves_open_colours_the_next_until_it_is_closed(language: str, code: str, role: str) -> None:
    _, inside, _, after = roles(language, code)
    assert inside == {role}
    assert after & {"keyword", "string"}
    assert role == "string" or role not in after


def test_an_apostrophe_does_not_colour_what_follows() -> None:
    assert roles("jsx", "<p>Don't</p>\nif (a) {}")[1] == {"keyword", ""}


@pytest.mark.parametrize(
    "language",
    ["py3", "sh", "console", "ts", "tsx", "jsonc", "JS", "{.python}", "python:src/a.py", "rust,no_run", "c++"],
)
def test_a_language_has_many_names(language: str) -> None:
    assert lexer_for(language) is not None


@pytest.mark.parametrize("language", ["", "text", "nosuch", "???", "a" * 5_000])
def test_an_unknown_language_is_plain(language: str) -> None:
    assert lines(language, "if x:\n\n  y") == [[("", "if x:")], [], [("", "  y")]]


def test_a_very_long_line_is_plain() -> None:
    line = "if x; " * MAX_LINE_CHARS
    assert lines("python", f"{line}\nif x: pass") == [
        [("", line)],
        [("keyword", "if "), ("", "x: "), ("keyword", "pass")],
    ]


@examples(200)
@given(st.sampled_from(LANGUAGES), st.text("ab1 \t\"'`/*<>!-#$(){}[]\\:;=@%&|\u2028é日\n", max_size=80))
def test_every_character_is_kept_whatever_the_code(language: str, code: str) -> None:
    assert [plain(line) for line in lines(language, code)] == code.split("\n")
