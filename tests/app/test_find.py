"""`/find`: the prompts of a session, everything that was said in it, and the pager at the chosen place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.terminal import Open, Terminal

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

COUNT = {"tool_calls": [{"name": "bash", "input": {"command": "seq 300"}}]}
REPLIES = [{"text": "The parser reads quotes."}, COUNT, {"text": "Three hundred lines."}, {"text": "a digest"}]


def ask(terminal: Terminal, prompt: str, answer: str) -> None:
    terminal.type(f"{prompt}\r")
    terminal.see(answer)
    terminal.rest()


def test_a_compacted_and_resumed_session_is_searched_whole_and_shown_at_the_place(open_terminal: Open) -> None:
    first = open_terminal(REPLIES, "--permission-mode", "bypassPermissions", PAGER="less")
    ask(first, "what does the parser do", "reads quotes")
    ask(first, "count", "Three hundred")
    first.type("/compact\r")
    first.see("Compacted: ")
    first.leave()
    assert first.exit_code() == 0
    terminal = open_terminal([{"text": "later"}], "-c", PAGER="less")
    terminal.see("Three hundred")
    terminal.type("/find\r")
    listed = terminal.see("2 choices · Enter to select · Esc to cancel")
    assert listed.index("❯ › count") < listed.index("  › what does the parser do")
    terminal.type("212")
    terminal.see(r"Search this session: 212\n❯ .*212.* Run seq 300 · .*\n  1 choice ")
    terminal.type("\r")
    terminal.see(r"^212\n213\n")
    terminal.type("g")
    terminal.see("^› what does the parser do\n\nThe parser reads quotes.\n")
    terminal.type("q")
    terminal.see("› Ask, or describe")


def test_esc_closes_the_list_and_words_can_be_given_at_once(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "The parser reads quotes.", "delay_ms": 10, "chunk": 1}])
    terminal.type("/find\r")
    terminal.see("no match\n  0 choices")
    terminal.type("\x1b")
    terminal.see("› Ask, or describe")
    ask(terminal, "hello", "reads quotes")
    terminal.type("/find prsr\r")
    terminal.see(r"Search this session: prsr\n❯ The parser reads quotes\. +answer · just now\n  1 choice ")
    terminal.type("\x1b")
    assert "1 choice" not in terminal.see("› Ask, or describe")


def test_the_report_of_a_background_agent_is_no_prompt(open_terminal: Open, tmp_path: Path) -> None:
    child = tmp_path / "child.jsonl"
    child.write_text('{"text": "Three modules."}\n')
    task = {"task": "look around", "model": f"scripted/{child}", "background": True}
    script = [{"tool_calls": [{"name": "create_subagent", "input": task}]}, {"text": "Meanwhile."}, {"text": "Heard."}]
    terminal = open_terminal(script, "go", "--permission-mode", "bypassPermissions")
    terminal.see("Heard|Meanwhile")
    terminal.rest()
    terminal.type("/find\r")
    assert "reports" not in terminal.see("❯ › go .*\n  1 choice ")


def test_while_a_turn_runs_the_session_so_far_is_searched(open_terminal: Open) -> None:
    slow = {"text": "word " * 400, "delay_ms": 20, "chunk": 5}
    terminal = open_terminal([{"text": "The parser reads quotes."}, slow])
    ask(terminal, "hello", "reads quotes")
    terminal.type("go\r")
    terminal.see("word word")
    terminal.type("/find quotes\r")
    terminal.see("1 choice ")
    terminal.type("\x1b")
    terminal.see("Esc to interrupt")
    assert terminal.screen.title == "project · working"


def test_line_by_line_it_says_that_it_needs_the_screen(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "said"}], "--plain")
    terminal.type("/find\n")
    terminal.see("/find works only in the terminal")
