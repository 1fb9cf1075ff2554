"""Searching what was said in a session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentcli.conversation.entries import (
    Assistant,
    Body,
    Compaction,
    ContextNote,
    Entry,
    Result,
    Rewound,
    User,
    reminder,
)
from agentcli.frontends.terminal.session_text import MAX_FOUND, SessionText
from agentcli.llm.messages import Text, ToolResult, ToolUse

CALL = ToolUse("c1", "bash", {"command": "pytest -q"})
OUTPUT = "".join(f"test {number} passed\n" for number in range(300)) + "Naïve parser failed\n"
ANSWER = f"The parser\nis mended: it reads {'long words ' * 30}quotes now."
BODIES: list[Body] = [
    User((Text("Mend the config of the parser"),)),
    Assistant(content=(Text("I run the tests first."), CALL), provider="p", model="m"),
    Result(result=ToolResult("c1", OUTPUT, is_error=True), name="bash", summary="exit code 1"),
    Assistant(content=(Text(ANSWER),), provider="p", model="m"),
    reminder("a hidden reminder about the parser"),
    Compaction(carried="digest of the parser"),
    User((Text("And now the \x1b]0;title\x07colours"),)),
    Rewound("6"),
    User((Text("Rather the fonts"),)),
]  # fmt: skip


def session_of(bodies: Sequence[Body]) -> SessionText:
    return SessionText(Entry(str(number), None, 0.0, body) for number, body in enumerate(bodies))


@pytest.fixture
def session() -> SessionText:
    return session_of(BODIES)


def labels(found: list[tuple[str, str]]) -> list[str]:
    return [label for label, _ in found]


def test_without_words_all_prompts_are_listed_newest_first(session: SessionText) -> None:
    found = session.search(" ")
    assert labels(found) == ["› Rather the fonts", "› And now the colours", "› Mend the config of the parser"]
    assert all(detail.startswith("prompt · ") for _, detail in found)


def test_words_are_found_in_prompts_answers_and_results_also_from_before_a_compaction(session: SessionText) -> None:
    found = session.search("PARSER")
    assert [detail.split(" · ")[0] for _, detail in found] == ["answer", "Run pytest -q", "prompt"]
    assert "parser failed" in found[1][0]
    assert labels(session.search("exit code 1"))[0].startswith("✗ Run pytest -q · exit code 1")


def test_commands_of_the_persons_own_are_found_with_their_output() -> None:
    text = "<bash-input>make docs</bash-input>\n<bash-output>12 pages\nno warnings</bash-output>"
    session = session_of([User((Text(text),), is_reminder=True), ContextNote(text)])
    assert [detail.split(" · ")[0] for _, detail in session.search("warnings")] == ["your command"] * 2
    assert session.page_at(0)[0].startswith("› !make docs\n12 pages\n")


def test_a_phrase_comes_before_its_words_apart() -> None:
    session = session_of([User((Text(text),)) for text in ("red blue", "blue or red", "blue", "r-e-d blue")])
    assert labels(session.search("red blue")) == ["› red blue", "› blue or red"]


def test_letters_may_be_spread_over_a_word_where_nothing_else_is_found(session: SessionText) -> None:
    assert labels(session.search("cnfg prsr")) == ["› Mend the config of the parser"]
    assert session.search("zzz parser") == []
    assert session.search("hidden reminder") == []


@pytest.mark.parametrize(
    ("query", "line"),
    [("quotes now", "is mended: it reads"), ("naïve", "Naïve parser failed"), ("colours", "› And now the colours")],
)
def test_the_page_has_everything_and_begins_where_it_was_found(session: SessionText, query: str, line: str) -> None:
    session.search(query)
    page, number = session.page_at(0)
    assert page.split("\n")[number - 1].startswith(line)
    assert page.startswith(
        "› Mend the config of the parser\n\nI run the tests first.\n\n✗ Run pytest -q · exit code 1\ntest 0"
    )
    assert page.endswith("› Rather the fonts\n\n")
    assert "\x1b" not in page


def test_an_excerpt_shows_what_was_found_in_a_narrow_window(session: SessionText) -> None:
    assert "quotes now" in session.search("quotes now")[0][0][:36]


def test_a_word_that_is_everywhere_lists_the_newest_places() -> None:
    session = session_of([User((Text(f"prompt {number} says x"),)) for number in range(MAX_FOUND + 50)])
    found = labels(session.search("x"))
    assert (len(found), found[0]) == (MAX_FOUND, f"› prompt {MAX_FOUND + 49} says x")
