"""The state of the session, reported to a terminal that shows the states of programs (OSC 7501)."""

from __future__ import annotations

import re

import pytest

from tests.app.terminal import Open, Terminal

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

ANSWER = "\x1b]7501;?\x1b\\"  # of a terminal, as it was asked
ASK = {"tool_calls": [{"name": "ask_user", "input": {"question": "Which colour?", "options": ["red"]}}]}
RUN = {"tool_calls": [{"name": "bash", "input": {"command": "touch new && rm a.py"}}]}
SECRET_WORDS = "tell nobody"


def reported(terminal: Terminal) -> list[str]:
    return [code.decode() for code in re.findall(rb"\x1b\]7501;(?!\?)([^\x1b]*)\x1b\\", terminal.written)]


def see_report(terminal: Terminal, state: str) -> None:
    terminal.get(f"\x1b]7501;state={state}:app=agentcli\x1b\\".encode())


def test_each_state_is_reported_in_turn_once_the_terminal_has_answered(open_terminal: Open) -> None:
    replies = [
        {**ASK, "delay_ms": 200},
        {**RUN, "delay_ms": 200},
        {"text": "It is done.", "delay_ms": 200},
        {"error": {"kind": "bad_request"}},
        {"error": {"kind": "auth"}},
    ]
    terminal = open_terminal(replies, AGENTCLI_PERMISSIONS_TRY="false")
    terminal.see("script.jsonl")
    assert terminal.written.count(ANSWER.encode()) == 1
    assert terminal.written.index(b"Ask, or describe") < terminal.written.index(ANSWER.encode()), (
        "after the first frame"
    )
    assert reported(terminal) == []
    assert terminal.screen.title == "project · ready"
    terminal.type(ANSWER)
    see_report(terminal, "idle")
    terminal.type(f"{SECRET_WORDS}\r")
    terminal.see(r"Which colour\?")
    terminal.settle(0.5)
    terminal.type("\r")
    terminal.asked()
    terminal.type("y")
    see_report(terminal, "done")
    terminal.type("again\r")
    see_report(terminal, "error")
    terminal.see("› again\n.*script.jsonl")
    terminal.type("\x03and again\r")  # Ctrl-C clears the prompt, which is back in the input
    see_report(terminal, "blocked:kind=auth")
    assert terminal.screen.title == "project"
    terminal.see("› and again\n.*script.jsonl")
    terminal.type("\x03/login openai\r")
    terminal.see("Paste your API key")
    terminal.type("\x1b")
    terminal.see("› Ask, or describe")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    states = [
        *("idle", "working", "blocked:kind=question", "working", "blocked:kind=permission", "working", "done"),
        *("working", "error", "working", "blocked:kind=auth", "idle"),
    ]
    assert reported(terminal) == [*(f"state={state}:app=agentcli" for state in states), "state=clear"]


def test_without_an_answer_the_title_and_the_bell_tell_it(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "It is done.", "delay_ms": 300}], TERM_PROGRAM="", KITTY_WINDOW_ID="")
    terminal.see("script.jsonl")
    terminal.type("\x1b[O")  # the window loses the focus
    terminal.type("go\r")
    terminal.see("It is done")
    terminal.get(b"\x07")
    terminal.rest()
    assert terminal.screen.title == "project · ready"
    assert reported(terminal) == []


@pytest.mark.parametrize(("setting", "rings"), [("auto", False), ("bell", True)])
def test_the_terminal_notifies_by_itself_unless_the_person_chose_how(
    open_terminal: Open, setting: str, rings: bool
) -> None:
    terminal = open_terminal([{"text": "It is done."}], AGENTCLI_TERMINAL_NOTIFICATIONS=setting)
    terminal.see("script.jsonl")
    terminal.type(f"{ANSWER}\x1b[O")
    see_report(terminal, "idle")
    terminal.type("go\r")
    see_report(terminal, "done")
    terminal.settle(0.3)
    assert (b"\x07" in re.sub(rb"\x1b\][^\x07\x1b]*(\x07|\x1b\\)", b"", terminal.written)) == rings


def test_a_late_answer_in_pieces_is_not_typed_and_counts(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "said"}])
    terminal.see("script.jsonl")
    terminal.type("before")
    terminal.settle(3.0)
    for piece in (ANSWER[:4], ANSWER[4:7], ANSWER[7:]):
        terminal.type(piece)
        terminal.settle(0.2)
    see_report(terminal, "idle")
    assert terminal.see("› before").count("7501") == 0
