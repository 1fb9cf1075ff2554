"""Markdown as it is printed while it comes in."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcswidth

from agentcli.frontends.terminal.text.fragments import Fragment, merged, plain
from agentcli.frontends.terminal.text.markdown import MAX_PARAGRAPH_CHARS, RULE, MarkdownStream
from tests.properties import examples
from tests.rows import each_row

quick = examples(300)

PIECES = [
    *"$ $$ ^ [^1] \\( \\)".split(),
    *"* ** *** _ __ ` `` ``` ~~ ~~~ [ ] ( ) ]( ]( ![ < > & &amp; &#27; \\ # ! | : + - --- 1. 2) [x] [r] :// a".split(),
    *["\n", "\n\n", " ", "  ", "    ", "\t", "word ", "# ", "- ", "* ", "1. ", "> ", "[r]: /u\n", "```py\n"],
    *["| a | b |\n", "|---|:-:|\n", "https://a.b/", "<http://a>", "<br>", "日本", "é", "👩\u200d🚀", "e\u0301", "שלום"],
]
sources = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60)
widths = st.integers(1, 300)
words = st.text("abcdefghij", min_size=1, max_size=9)


def printed(chunks: Iterable[str], width: int = 80) -> list[Fragment]:
    stream = MarkdownStream(width=lambda: width)
    fragments = [fragment for chunk in chunks for fragment in stream.feed(chunk)]
    fragments += stream.close()
    assert stream.preview() == []
    return merged(fragments)


def show(source: str, width: int = 80) -> list[Fragment]:
    """The print of a source, both without the last line break."""
    *rest, (roles, text) = printed([source], width)
    return merged([*rest, (roles, text.removesuffix("\n"))])


def text_of(source: str, width: int = 80) -> str:
    return plain(printed([source], width))


def cut(source: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(source) + 1) for place in places} | {0, len(source)})
    return [source[begin:end] for begin, end in pairwise(ends)]


@quick
@given(sources, st.lists(st.integers(0, 1000), max_size=30), widths)
@example("a\n| b |\n|---|\n| c |\nd", [3], 20)
@example("*a " + "b" * MAX_PARAGRAPH_CHARS + "*", [1], 80)
@example("word " * MAX_PARAGRAPH_CHARS, [1], 80)
@example("a" + " " * 600 + "\n", [300], 80)
@example("- " * 300 + "\n", [299], 80)
def test_chunk_boundaries_do_not_matter(source: str, places: list[int], width: int) -> None:
    whole = printed([source], width)
    assert printed(cut(source, places), width) == whole
    assert printed(list(source), width) == whole


@quick
@given(sources, widths)
def test_any_output_is_printed_with_one_line_break_at_the_end(source: str, width: int) -> None:
    text = text_of(source, width)
    assert text == "" or (text.endswith("\n") and not text.endswith("\n\n") and not text.startswith("\n"))


@quick
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(words, min_size=1, max_size=6)), min_size=1, max_size=12), widths)
def test_no_word_is_lost_whatever_the_block(blocks: list[tuple[int, list[str]]], width: int) -> None:
    shapes = [
        "{}\n", "## {}\n", "- {}\n", "  1. {}\n", "> {}\n", "**{}**\n\n", "```\n{}\n```\n", "[{}](/u)\n\n", "*{}\n",
        "| h | i |\n|---|--:|\n| {} | |\n",
    ]  # fmt: skip
    source = "".join(shapes[shape].format(" ".join(row)) for shape, row in blocks)
    remaining = text_of(source, width)
    for _, row in blocks:
        for word in row:
            letters = re.search(r"[\s│─┼]*".join(word), remaining)  # a narrow table breaks words
            assert letters is not None
            remaining = remaining[letters.start() :]


@each_row(
    "source, expected",
    [
        ("*a* _b_", [("italic", "a"), ("", " "), ("italic", "b")]),
        ("**a** __b__", [("bold", "a"), ("", " "), ("bold", "b")]),
        ("***a***", [("bold italic", "a")]),
        ("**a *b* c**", [("bold", "a "), ("bold italic", "b"), ("bold", " c")]),
        ("~~a~~ ~b~", [("strike", "a"), ("", " ~b~")]),
        ("`a *b*` ``c`d``", [("code", "a *b*"), ("", " "), ("code", "c`d")]),
        ("**`a`**", [("bold code", "a")]),
        ("*a\nb*", [("italic", "a"), ("", "\n"), ("italic", "b")]),
        ("[a *b*](http://x 'title')", [("link", "a "), ("italic link", "b"), ("url", " (http://x)")]),
        ("[http://x](http://x) <http://y>", [("link", "http://x"), ("", " "), ("link", "http://y")]),
        ("[a](<b c>) [d](e(f)g)", [("link", "a"), ("url", " (b c)"), ("", " "), ("link", "d"), ("url", " (e(f)g)")]),
        ("![a](b.png)", [("link", "a"), ("url", " (b.png)")]),
        ("**注意：**请看", [("bold", "注意："), ("", "请看")]),
        ("见https://x.y和**重点**", [("", "见https://x.y和"), ("bold", "重点")]),
    ],
)
def test_marks_become_roles(source: str, expected: list[Fragment]) -> None:
    assert show(source) == expected


@each_row(
    "source",
    [
        "2 * 3 * 4", "snake_case_name and __init", "f(**kwargs) and *args", "a [1] and b[i](x, y) and [ ]",
        "a < b && c > d", "`unclosed and ``more", "<b class='x'>html</b> <!-- c -->",
        "https://x/_a_/*b* stays", "a! b&c; C:\\dir &nope;",
        "costs $5 and $10", "$HOME/bin:$PATH and US$5=US$6", "$VAR_ONE and $VAR_TWO", "[^note]",
        "|a|b|", "12345678901. a", "#tag", "-a +b", "1986) is text", "==== text",
    ],
)  # fmt: skip
def test_what_is_not_a_markup_is_printed_as_it_is(source: str) -> None:
    assert show("x " + source, 100_000) == [("", "x " + source)]


@each_row(
    "source, expected",
    [
        ("so[^1] and[^12]", "so¹ and¹²"),
        ("$E=mc^2$ for $x$, *a $b_1$*", "E=mc² for x, a b₁"),
        (r"\(\alpha \le \frac{1}{2}\) and \[ \text{so} \times x^{10} \]", "α ≤ 1/2 and  so × x¹⁰ "),
        ("$$\n\\sum_{i=1}^{n} x_i\n$$", "\n∑_(i=1)ⁿ x_i\n"),
        (r"f\(x\) and \[a-z\]", "f(x) and [a-z]"),
        ("`$a=b$`", "$a=b$"),
    ],
)
def test_footnotes_and_formulas_are_plain_text(source: str, expected: str) -> None:
    assert text_of(source) == expected.strip("\n") + "\n"


def test_escapes_and_entities_are_resolved() -> None:
    assert show(r"\*a\* \[b] \q &amp; &copy; &#65;&#x42;") == [("", r"*a* [b] \q & © AB")]


@pytest.mark.parametrize("source", ["&#27;[2J", "&#x9b;2J", "&#x202e;a", "a&#10;b", "[a](http://x/&#27;[2J)"])
def test_an_entity_does_not_bring_back_what_steers_the_terminal(source: str) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text_of(source))
    assert text_of(source).count("\n") == 1


def test_lists_quotes_and_boxes_keep_their_shape() -> None:
    source = "- a\n  - [ ] b\n  - [x] *c*\n1) d\n\n> e\n>> f\n> - g"
    assert show(source) == [
        ("marker", "- "), ("", "a\n  "), ("marker", "- [ ] "), ("", "b\n  "), ("marker", "- [x] "), ("italic", "c"),
        ("", "\n"), ("marker", "1) "), ("", "d\n\n"), ("marker", "> "), ("quote", "e"), ("", "\n"), ("marker", "> > "),
        ("quote", "f"), ("", "\n"), ("marker", "> - "), ("quote", "g"),
    ]  # fmt: skip


def test_emphasis_in_a_quote_continues_behind_the_next_quote_mark() -> None:
    mark = ("marker", "> ")
    assert show("> **a\n> b** c") == [mark, ("quote bold", "a"), ("", "\n"), mark, ("quote bold", "b"), ("quote", " c")]


def test_a_number_in_a_paragraph_is_a_list_only_from_one_on() -> None:
    assert show("so:\n1. It was") == [("", "so:\n"), ("marker", "1. "), ("", "It was")]


def test_headings_lose_their_marks_and_stand_apart() -> None:
    assert show("# A #\n## B `c` ##\nd\n\n\n##### E#") == [
        ("heading1", "A"), ("", "\n\n"), ("heading2", "B "), ("heading2 code", "c"), ("", "\nd\n\n"),
        ("heading3", "E#"),
    ]  # fmt: skip


@each_row(
    "source, expected",
    [
        ("\n \n\na\n\n \n\nb\n\n> c\n>\n>\n> d\n\n\n", "a\n\nb\n\n> c\n>\n> d\n"),
        ("a\n---\n* * *\nb", f"a\n{RULE}\n{RULE}\nb\n"),  # a rule also below a paragraph
        ("a  \nb\\\nc\n\nin C:\\dir\\\n\nd", "a\nb\nc\n\nin C:\\dir\\\n\nd\n"),  # hard breaks, and a path
        ("in\n1986. It was", "in\n1986. It was\n"),
        ("a\n```\n*a*\n\n*b*\n```\nb", "a\n\n*a*\n\n*b*\n\nb\n"),
    ],
)
def test_blocks_are_printed_as_lines(source: str, expected: str) -> None:
    assert text_of(source) == expected


def test_nothing_to_see_prints_nothing() -> None:
    assert printed(["\n  \n"]) == printed([">"]) == printed([]) == []


@pytest.mark.parametrize(
    "source",
    [
        "```python\nif x:\n  y\n\nz\n```", "- a\n  ```python\n  if x:\n    y\n\n  z\n  ```",
        "> ```python\n> if x:\n>   y\n>\n> z\n> ```",
        "1. a\n\n   > ~~~~python x=1\n   > if x:\n   >   y\n   > \n   > z\n   > ~~~~",
    ],
)  # fmt: skip
def test_code_copies_as_code_wherever_its_fence_stands(source: str) -> None:
    text = text_of(source)
    assert "\nif x:\n  y\n\nz\n" in "\n" + text
    assert not re.search("[`~]", text)
    assert ("keyword", "if ") in printed([source])


def test_code_with_tabs_keeps_its_shape_below_an_indented_fence() -> None:
    for fence in ("\t", "    "):
        source = f"1. a\n\n{fence}```go\n\tif x {{\n\t\ty()\n\t}}\n{fence}```"
        assert "\nif x {\n    y()\n}\n" in text_of(source)


def test_a_fence_is_closed_by_one_as_long_and_else_by_the_end() -> None:
    assert show("````\n```\n*a*\n````\n*b*")[-1] == ("italic", "b")
    assert show("```\n*a*\n\n") == [("", "*a*")]
    assert text_of("- ```\n  a\n  ```\n- b") == "- \na\n\n- b\n"


def test_three_backticks_in_a_line_are_a_code_span() -> None:
    assert show("```a``` b") == [("code", "a"), ("", " b")]


def test_indented_code_stays_as_it_is_outside_of_lists() -> None:
    assert show("a\n\n    *b*\n\n- c\n\n      *d*")[1:3] == [("code", "    *b*"), ("", "\n\n")]
    assert show("- c\n\n      *d*")[-1] == ("italic", "d")
    assert show("a\n    *b*")[-1] == ("italic", "b")


def test_a_reference_link_is_printed_as_it_is_written() -> None:
    source = "[a] and [b][a]\n\n[a]: http://x 'y'\n[b]: http://y"
    assert show(source) == [("", source)]


TABLE = "| Name | 数 |\n|:--|--:|\n| `a\\|b` | 1 |\n| 👩‍🚀 **漢字** | 1234 |\n"


def test_a_table_is_aligned() -> None:
    assert text_of(TABLE) == "Name    │   数\n────────┼─────\na|b     │    1\n👩‍🚀 漢字 │ 1234\n"
    assert {"table_header", "table_rule", "code", "bold", ""} == {roles for roles, _ in printed([TABLE])}


@given(widths, st.lists(st.lists(st.text(" ab日é👩e\u0301\t|\\`*<br>", max_size=30), max_size=4), max_size=4))
@quick
def test_a_table_in_columns_fits_the_screen(width: int, rows: list[list[str]]) -> None:
    source = "| a | b | c |\n|---|:-:|--:|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    lines = text_of(source, width).split("\n")
    if any("┼" in line for line in lines):
        assert all(wcswidth(line) <= width for line in lines)


def test_a_table_that_is_too_wide_wraps_its_cells_and_then_gives_up_columns() -> None:
    source = "| first | second |\n|---|---|\n| some words here | https://example.com/long |\n"
    assert text_of(source, 24) == (
        "first      │ second\n───────────┼────────────\n"
        "some words │ https://exa\nhere       │ mple.com/lo\n           │ ng\n"
    )
    assert text_of(source, 9) == "first: some words here\nsecond: https://example.com/long\n"


def test_wrapped_rows_have_a_line_between_them_and_a_name_is_broken_only_without_room_for_it() -> None:
    source = "| module | what it does | why |\n|---|---|---|\n| module_0.py | reads the settings | others need them |\n"
    shown = text_of(source + "| b.py | x | y |\n", 36)
    assert "\nmodule_0.py │ reads the" in shown
    assert re.search(" them\n─[─┼]+\nb.py +│ x", shown)
    assert shown.count("┼") == 4


def test_a_table_waits_for_its_end_and_a_line_with_a_bar_for_the_next() -> None:
    stream = MarkdownStream(width=lambda: 80)
    assert stream.feed("a\n\n") == [("", "a\n")]
    assert stream.feed("| b |\n|---|\n| c |\n") == []
    assert [plain(line) for line in stream.preview()] == ["", "b", "─", "c"]
    assert plain(stream.feed("d e\n")) == "\nb\n─\nc\n"
    assert text_of("| no table\n*b* |") == "| no table\nb |\n"


def test_a_table_is_to_be_seen_while_it_comes_in_as_it_will_be_printed() -> None:
    source = "a\n\n| name | what it does |\n|---|---|\n" + "".join(f"| row {n} | text |\n" for n in range(9))
    stream = MarkdownStream(width=lambda: 40)
    out = stream.feed(source[:40])
    seen = []
    for character in source[40:]:
        out += stream.feed(character)
        seen.append([plain(line) for line in stream.preview()])
    assert ["", "name │ what it does", "─────┼─────────────"] in seen
    assert seen[-1][:5] == ["", "name  │ what it does", "──────┼─────────────", "row 0 │ text", "row 1 │ text"]
    assert "".join(f"{line}\n" for line in seen[-1]) in plain(stream.close())
    assert stream.preview() == []


def test_cells_too_many_or_too_few_lose_nothing() -> None:
    rows = text_of("| a | b |\n|---|---|\n| 1 |\n| 2 | 3 | 4<br>5 |\n").split("\n")[2:]
    assert rows == ["1 │", "──┼──────", "2 │ 3 | 4", "  │ 5", ""]


def test_a_paragraph_is_printed_when_it_has_ended_and_seen_before_as_it_will_be_printed() -> None:
    stream = MarkdownStream(width=lambda: 20)
    assert stream.feed("a\n\nsome **bo") == [("", "a\n")]
    assert stream.preview() == [[], [("", "some **bo")]]
    assert stream.feed("ld words** that are wrapped\n") == []
    rows = [[], [("", "some "), ("bold", "bold words"), ("", " that")], [("", "are wrapped")]]
    assert stream.preview() == rows
    assert stream.feed("- ") == []
    assert stream.preview() == [*rows, [("", "- ")]]
    assert plain(stream.feed("b\n")) == "\nsome bold words that\nare wrapped\n"
    assert plain(stream.feed("```\ncode")) == "- b\n"
    assert stream.preview() == [[], [("", "code")]]
    assert plain(stream.close()) == "\ncode\n"


def test_a_preview_shows_the_block_that_is_open_also_when_it_is_as_long_as_the_one_before() -> None:
    stream = MarkdownStream(width=lambda: 20)
    stream.feed("0123456789")
    assert stream.preview() == [[("", "0123456789")]]
    assert stream.feed("\n\nabcdefghij") == [("", "0123456789\n")]
    assert stream.preview() == [[], [("", "abcdefghij")]]


@pytest.mark.parametrize("text", ["2.", "+", "- a\n-\n- b", "1. a\n2.", "- [ ]", "> -", "a~~~b~~~c"])
def test_marks_alone_are_shown(text: str) -> None:
    assert text_of(text) == f"{text}\n"


@pytest.mark.parametrize(
    "text", ["مرحبا **بالعالم** שלום", "e\u0301 *a\u0308* n\u0303", "👩‍👩‍👧 **🇩🇪** ☝🏽", "a\tb\t*c*"]
)
def test_every_script_keeps_its_characters(text: str) -> None:
    assert text_of(text) == text.replace("*", "") + "\n"


class Counter:
    """Counts the calls of functions, in Python and in C."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event in {"call", "c_call"}


def work(source: str) -> tuple[int, int]:
    """Calls made, and the most characters held back, when it comes one character at a time, drawn now and then."""
    stream = MarkdownStream(width=lambda: 80)
    counter, most = Counter(), 0
    sys.setprofile(counter)
    try:
        for number, character in enumerate(source):
            stream.feed(character)
            if number % 1_000 == 0:
                most = max(most, sum(len(plain(row)) for row in stream.preview()))
        stream.close()
    finally:
        sys.setprofile(None)
    return counter.calls, most


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "unit", ["word ", "x", "*a ", "**a_ ", "[", "[a](", "`a``b ", "<a ", "_a*b", "![a", "日", "- a\n", "> ", "```\na\n"]
)
def test_the_work_for_a_character_does_not_grow_with_the_text(unit: str) -> None:
    half, _ = work("*" + unit * (8_000 // len(unit)))
    whole, held = work("*" + unit * (16_000 // len(unit)))
    assert whole < 2.5 * half + 1_000
    assert held <= 2 * MAX_PARAGRAPH_CHARS


def test_a_very_long_line_is_printed_as_it_is_written() -> None:
    source = "> - " + "*word* " * MAX_PARAGRAPH_CHARS
    assert text_of(source).split() == source.split()
