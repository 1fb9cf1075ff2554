"""Text of models, tools and files reaches a terminal without control codes, hidden text or disguises."""

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.frontends.printable import MAX_LINE_ENDS, PrintableStream, escape_hidden, printable, replace_hidden
from tests.properties import examples
from tests.rows import each_row

SHARED = Path(__file__).parents[3].parent / "shared/data/terminal.jsonl.gz"


def streamed(text: str, size: int = 1) -> str:
    stream = PrintableStream()
    return "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.close()


ways = pytest.mark.parametrize("shown", [printable, escape_hidden, streamed])

STEERING = [
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1b]8;;http://x.test\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\", "\x1b_Gf=100;AAAA\x1b\\", "\x1b^x\x1b\\", "\x1bc", "\x1b(0", "\x1b[?1049l", "\x9b2J",
    "\x9d0;t\x9c", "\x90x\x9c", "a\x08\x08b", "safe\rrm -rf /", "a\x00b\x07\x7f", "a\x0eb\x0f",
    "\r\n\x1b[1A✓ Approved by user", "\x1b[200~rm\n\x1b[201~", "\x1b", "\x1b[",
]  # fmt: skip


@ways
@each_row("text", STEERING)
def test_nothing_that_steers_a_terminal_is_left(shown: Callable[[str], str], text: str) -> None:
    for character in shown(f"before {text} after"):
        assert character in "\n\t" or character.isprintable()


@pytest.mark.parametrize("text", STEERING[:11])
def test_of_a_whole_sequence_a_text_shows_nothing_and_a_request_all(text: str) -> None:
    assert printable(f"a{text.replace('link', '')}b") == "ab"
    assert escape_hidden(f"a{text}b") == f"a{text}b".encode("unicode_escape").decode().replace("\\\\", "\\")


@ways
@pytest.mark.parametrize(
    "text",
    [
        "",
        "héllo 世界 🎉",
        "line1\n\tline2\n",
        "👨\u200d👩\u200d👧 ❤\ufe0f 👍🏽",
        "नमस्ते e\u0301 مرحبا Ελλάδα Россия",
        "\\x1b[31m C:\\path\\file",
        "┌──┐\n│ok│\n└──┘",
        "\n" * MAX_LINE_ENDS,
        "APIшный метод, 5 µs, λx, Wi-Fi и e-mail; Δt = 2πr",
    ],
)
def test_everyday_text_stays_as_it_is(shown: Callable[[str], str], text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("shown", [printable, streamed])
@pytest.mark.parametrize(
    "text",
    ["می\u200cخواهم", "क्\u200dष", "葛\U000e0100飾", "1\ufe0f\u20e3", "🏴\U000e0067\U000e0062\U000e007f flag", "JSONа"],
)
def test_in_text_what_shows_nothing_stays_where_a_language_needs_it(shown: Callable[[str], str], text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("shown", [printable, streamed])
@pytest.mark.parametrize(
    "hidden", "\u200b \u200c \u200d \ufeff \u00ad \u2060 \ufe00 \U000e0041 \U000e01ef \u180e".split(" ")
)
def test_in_text_what_shows_nothing_goes(shown: Callable[[str], str], hidden: str) -> None:
    assert shown(f"a{hidden}{hidden}b🎉{hidden} c") == "ab🎉 c"


@each_row(
    "hidden", "\u200b\u200c\u200d\ufeff\u00ad\u2060\ufe00\U000e0041\U000e01ef\u2028\u202e\u200e\ufff9\u3164\u2800\u206a"
)
def test_in_a_request_each_character_that_shows_nothing_is_an_escape(hidden: str) -> None:
    assert escape_hidden(f"rm a{hidden}b") == "rm a" + hidden.encode("unicode_escape").decode() + "b"


@pytest.mark.parametrize("shown", [printable, streamed])
@pytest.mark.parametrize(("text", "seen"), [("pаypal", "p�ypal"), ("раypal.com", "��ypal.com"), ("Οpen", "�pen")])
def test_a_letter_that_passes_for_a_latin_one_is_seen(shown: Callable[[str], str], text: str, seen: str) -> None:
    assert shown(text) == seen


def test_in_a_document_each_of_them_becomes_a_picture() -> None:
    assert replace_hidden("rm\x1b[2K\r a\u202e\u200bb p\u0430ypal") == "rm␛[2K␍ a��b p�ypal"


def test_in_a_request_such_a_letter_is_an_escape_also_at_the_end_of_a_word() -> None:
    assert escape_hidden("раypal.com") == "\\u0440\\u0430ypal.com"
    assert escape_hidden("curl googlе.com") == "curl googl\\u0435.com"


@pytest.mark.parametrize("shown", [printable, streamed])
def test_a_flood_of_empty_lines_does_not_push_away_what_was_there_before(shown: Callable[[str], str]) -> None:
    assert shown("a" + "\n" * 1000 + "b") == "a" + "\n" * MAX_LINE_ENDS + "b"
    assert shown("a" + "\r\n" * 1000 + "b") == "a" + "\n" * MAX_LINE_ENDS + "b"
    assert escape_hidden("a" + "\n" * 1020 + "b") == "a" + "\n" * 20 + "… 1,000 more line breaks\nb"


def test_a_stream_waits_for_the_rest_of_a_sequence_and_not_forever() -> None:
    stream = PrintableStream()
    assert stream.feed("ok \x1b") == "ok "
    assert stream.feed("[2J") == ""
    assert stream.feed("done") == "done"
    assert stream.feed("\x1b]0;" + "x" * 5_000) == ""
    assert stream.feed("more") == "more"


# What begins, ends or depends on its neighbours, so that pieces cut it.
_PARTS = [
    *STEERING, *"abc", *"аоре", "привет", "\r", "\n", "\r\n", "\n" * 15, "🎉", "👩", "\ufe0f", "\u200d", "\u200c",
    "\u200b", "می", "葛", "\U000e0100", "🏴", "\U000e0067", "\U000e007f", "[", "2J", ";", "\\", "\x07", " ",
]  # fmt: skip


@examples(500)
@given(st.lists(st.one_of(st.sampled_from(_PARTS), st.text(max_size=3)), max_size=12), st.lists(st.integers(0, 60)))
@example(["p", "а", "ypal"], [1, 2])
@example(["👨", "\u200d", "👩"], [1, 2])
@example(["\n" * 100], [30, 50])
@example(["🏴", "\u200d", "🏴"], [])
def test_a_text_in_pieces_is_shown_like_the_whole(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    stream = PrintableStream()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert "".join(stream.feed(text[start:end]) for start, end in pairwise(places)) + stream.close() == printable(text)


@pytest.mark.slow
@given(st.text())
def test_no_report_steers_the_agent(text: str) -> None:
    for shown in (printable(text), escape_hidden(text), streamed(text)):
        assert not any(
            (character < " " and character not in "\n\t") or "\x7f" <= character < "\xa0" for character in shown
        )


@pytest.mark.skipif(not SHARED.exists(), reason="the shared rows lie outside the project")
@ways
def test_the_shared_rows_are_shown_as_expected(shown: Callable[[str], str]) -> None:
    with gzip.open(SHARED, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if not row.get("lenient")]
    for row in rows:
        if row["input"] == "[2J":
            continue  # the rest of a sequence whose beginning is the row before: alone it is three letters
        assert (shown(row["input"]) == row["input"]) == (row["expected"] == "clean"), row
    assert streamed("\x1b[2J", 1) == ""
