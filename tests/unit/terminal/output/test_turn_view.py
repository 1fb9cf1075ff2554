"""Puts a session's events on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.agent.events import BlockStarted, Done, InputDelta, TextDelta, TurnEnded, TurnFailed, TurnStarted
from agentcli.conversation.evidence import Claim
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.text.fragments import Fragment, plain
from agentcli.llm.messages import Usage


class Page(list[Fragment]):
    columns = 80
    at_line_start = True

    def print(self, fragments: Sequence[Fragment]) -> None:
        self.extend(fragments)


def test_an_answer_that_broke_off_continues_within_its_block() -> None:
    printed = Page()
    view = TurnView(printed)
    view.show(TextDelta("```python\ndef f():\n    retu"))
    view.show(TurnFailed("The connection broke.", True, broke_off=True))
    view.show(TextDelta("rn 2\n```\nAnd **that** is all."))
    view.show(Done("", 1, Usage()))
    assert plain(printed).split("\n")[-5:] == ["rn 2", "", "And that is all.", "", ""]
    assert ("bold", "that") in printed


def test_another_prompt_begins_a_text_of_its_own() -> None:
    printed = Page()
    view = TurnView(printed)
    view.show(TextDelta("```\ncode"))
    view.show(TurnFailed("The connection broke.", True, broke_off=True))
    view.begin_prompt("something else")
    view.show(TextDelta("**bold**"))
    view.show(Done("", 1, Usage()))
    assert ("bold", "bold") in printed


def test_a_text_is_printed_to_its_last_word_when_the_call_behind_it_begins() -> None:
    printed = Page()
    view = TurnView(printed)
    view.show(TurnStarted(1))
    view.show(TextDelta("Now I write the module for you."))
    assert not plain(printed)
    view.show(BlockStarted(1, "tool_use", "c", "file_write"))
    assert plain(printed) == "Now I write the module for you.\n"
    view.show(InputDelta("c", '{"path": "zz.py", "content": "a\\nb\\n', 1))
    assert plain(view.activity.rows(80, 9)[0])[1:] == " Writing zz.py · 2 lines"
    view.show(TurnEnded(1, "tool_use", "m", "p"))
    assert view.activity.pending is None


def test_claims_name_what_they_are_about_and_the_reasons_of_those_that_are_not_verified() -> None:
    printed = Page()
    printed.columns = 50
    claims = (
        Claim("I created t/test_a.py.", "file_created", "verified", ("e1",), "t/test_a.py"),
        Claim("docs/acp.md is as it was.", "file_unchanged", "verified", (), "docs/acp.md"),
        *(Claim(f"I ran make {n}.", "command_passed", "verified", ("e2",), f"make {n}") for n in range(3)),
        Claim("All 12 tests pass.", "tests_pass", "unverified", ("e1",)),
        Claim("All tests pass.", "tests_pass", "unverified", ("e1",)),
        Claim("I created new.txt.", "file_created", "refuted", ("e2",), "new.txt"),
        Claim("I changed\x1b it.", "file_changed", "unverified"),
    )
    TurnView(printed).show(Done("", 1, Usage(), claims=claims))
    assert plain(printed).replace("\xa0", " ").splitlines() == [
        "✓ t/test_a.py created · docs/acp.md unchanged +3",
        "? tests: not run in full since the last edit ·",
        "  ✗ new.txt: not created · ? “I changed\\x1b it.”:",
        "  no change recorded",
        "",
    ]
    printed.clear()
    passed = Claim("Tests pass.", "tests_pass", "verified", ("e1",))
    TurnView(printed).show(Done("", 1, Usage(), claims=(passed,)))
    assert plain(printed) == "✓ tests passed\n\n"
