"""The terminal session, typed into through a pseudo-terminal and read from the screen."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY", "NO_COLOR", "FORCE_COLOR")


class Terminal:
    """A person at a screen: `type` keys, `see` text."""

    def __init__(self, cwd: Path, *flags: str, columns: int = 100, **env: str) -> None:
        self.screen = pyte.HistoryScreen(columns, 40, history=1_000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        kept = {name: value for name, value in os.environ.items() if name not in KEYS}
        home = {"AGENTCLI_HOME": str(cwd.parent / "home"), "OLLAMA_HOST": "127.0.0.1:9", "TERM": "xterm-256color"}
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", "agentcli", *flags],
            cwd=cwd,
            env={**kept, **home, **env},
            dimensions=(40, columns),
            timeout=10,
        )
        self.screen.write_process_input = self._child.send  # a terminal answers where its cursor is

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def see(self, text: str, seconds: float = 8.0) -> str:
        """Read until the screen shows `text` (a regular expression); gives the screen."""
        deadline = time.monotonic() + seconds
        while not re.search(text, self.text()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} is not on the screen:\n{self.text()}")
            self._read()
        return self.text()

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def _read(self) -> None:
        try:
            data = self._child.read_nonblocking(65_536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._child.wait()
            return
        self.written += data
        self._stream.feed(data)

    def exit_code(self) -> int:
        deadline = time.monotonic() + 8
        while self._child.isalive() and time.monotonic() < deadline:
            self._read()
        self._child.close()
        return int(self._child.exitstatus if self._child.exitstatus is not None else -1)

    def close(self) -> None:
        self._child.close(force=True)


Open = Callable[..., Terminal]


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Open]:
    """Opens the program on a script of replies."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    (cwd / "a.py").write_text('print("hi")\n')
    opened: list[Terminal] = []

    def open_on(replies: list[dict[str, Any]] | None, *flags: str, columns: int = 100, **env: str) -> Terminal:
        if replies is not None:
            (cwd / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
            flags = ("-m", "scripted/script.jsonl", *flags)
        opened.append(Terminal(cwd, *flags, columns=columns, **env))
        return opened[-1]

    yield open_on
    for terminal in opened:
        terminal.close()


EDIT = {"tool_calls": [{"name": "file_edit", "input": {"path": "a.py", "old_string": "hi", "new_string": "hello"}}]}


def test_an_answer_appears_and_what_it_used(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "It prints **hi**."}])
    terminal.see("›")
    terminal.type("what is a.py?")
    terminal.see("› what is a.py\\?")
    terminal.type("\r")
    terminal.see(r"It prints \*\*hi\*\*\.\nscripted/script.jsonl · [\d,]+ tokens in, \d+ out")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_a_first_prompt_on_the_command_line_is_answered(open_terminal: Open) -> None:
    open_terminal([{"text": "Hello back."}], "hello").see("Hello back")


def test_calls_take_a_line_each(open_terminal: Open) -> None:
    call = {"name": "file_read", "input": {"path": "a.py"}}
    terminal = open_terminal(
        [{"tool_calls": [call, {"name": "bash", "input": {"command": "ls"}}]}, {"text": "done"}], "go"
    )
    assert "✓ Read a.py · 1 line" in terminal.see("done")
    assert "✓ Run ls · 2 lines" in terminal.text()


def test_an_edit_shows_its_diff_once_and_is_made_on_yes(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([EDIT, {"text": "edited"}], "go")
    screen = terminal.see("Allow\\?")
    assert '-print("hi")' in screen
    assert '+print("hello")' in screen
    terminal.type("y\r")
    assert terminal.see("edited").count('+print("hello")') == 1
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'


@pytest.mark.parametrize("answer", ["n\r", "\r", "\x03", "\x04"])
def test_anything_but_yes_declines(open_terminal: Open, tmp_path: Path, answer: str) -> None:
    terminal = open_terminal([EDIT, {"text": "understood: {{last_result}}"}], "go")
    terminal.see("Allow\\?")
    terminal.type(answer)
    terminal.see("understood: The user declined")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'


def test_words_in_place_of_a_yes_go_to_the_model(open_terminal: Open) -> None:
    terminal = open_terminal([EDIT, {"text": "understood: {{last_result}}"}], "go")
    terminal.see("Allow\\?")
    terminal.type("say good morning instead\r")
    terminal.see("understood: .*say good morning instead")


def test_an_answer_for_the_session_is_asked_once(open_terminal: Open, tmp_path: Path) -> None:
    command = {"tool_calls": [{"name": "bash", "input": {"command": "touch made && echo made"}}]}
    terminal = open_terminal([command, command, {"text": "done"}], "go")
    terminal.see("Allow\\?")
    terminal.type("s\r")
    assert terminal.see("\ndone").count("Allow?") == 1
    assert (tmp_path / "project" / "made").exists()


def test_ctrl_c_interrupts_a_streaming_answer_and_the_next_prompt_works(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "word " * 200, "delay_ms": 50, "chunk": 5}, {"text": "second answer"}], "go")
    terminal.see("word word")
    started = time.monotonic()
    terminal.type("\x03")
    terminal.see("Interrupted; what was said is kept")
    assert time.monotonic() - started < 2
    terminal.type("again\r")
    terminal.see("second answer")


def test_ctrl_c_ends_a_running_command(open_terminal: Open) -> None:
    sleep = {"tool_calls": [{"name": "bash", "input": {"command": "echo begun; sleep 60"}}]}
    terminal = open_terminal([sleep, {"text": "next"}], "--permission-mode", "bypassPermissions", "go")
    terminal.see(r"\(running\)")
    terminal.type("\x03")
    terminal.see("✗ Run echo begun; sleep 60 · interrupted")
    terminal.type("and now?\r")
    terminal.see("next")


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_and_ctrl_d_leave_from_an_empty_line(open_terminal: Open, key: str) -> None:
    terminal = open_terminal([{"text": "x"}])
    terminal.see("›")
    time.sleep(0.3)
    terminal.type(key)
    assert terminal.exit_code() == 0


def test_ctrl_c_clears_a_line_that_is_not_empty(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "answered: yes"}])
    terminal.see("›")
    terminal.type("unfinished")
    terminal.see("unfinished")
    terminal.type("\x03")
    terminal.type("whole\r")
    assert "unfinished" not in terminal.see("answered: yes")


def test_several_lines_are_one_prompt(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "got it"}])
    terminal.see("›")
    terminal.type("first\x1b\rsecond\x0athird\\\rfourth")
    terminal.see("first\n  second\n  third\n  fourth")
    terminal.type("\r")
    terminal.see("got it")


def test_commands_help_model_clear_resume_quit(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "first answer"}])
    terminal.see("›")
    terminal.type("/help\r")
    screen = terminal.see("/quit")
    assert all(f"/{name}" in screen for name in ("model", "clear", "resume", "quit", "help"))
    terminal.type("remember me\r")
    terminal.see("first answer")
    terminal.type("/model\r")
    terminal.see("scripted/script.jsonl\\. Another one")
    terminal.type("/clear\r")
    terminal.see("A new conversation")
    terminal.type("/resume\r")
    terminal.see("1 .* remember me")
    terminal.type("/resume 1\r")
    terminal.see("Going on with")
    terminal.type("/quit\r")
    assert terminal.exit_code() == 0


def test_an_unknown_command_suggests_the_nearest_and_sends_nothing(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "sent"}])
    terminal.see("›")
    terminal.type("/modle\r")
    assert "sent" not in terminal.see("Did you mean /model")


def test_the_model_is_switched_in_mid_conversation(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "from the first"}], "go")
    terminal.see("from the first")
    (tmp_path / "project" / "other.jsonl").write_text('{"text": "from the second"}\n')
    terminal.type("/model scripted/other.jsonl\r")
    terminal.see("From the next request on")
    terminal.type("and you?\r")
    assert "script.jsonl → scripted/other.jsonl" in terminal.see("from the second")


def test_a_failure_is_told_and_the_session_goes_on(open_terminal: Open) -> None:
    terminal = open_terminal([{"error": {"kind": "bad_request"}}, {"text": "better now"}], "go")
    terminal.see("✗ scripted bad_request error")
    terminal.type("again\r")
    terminal.see("better now")


def test_escape_sequences_from_model_and_tools_do_not_reach_the_terminal(open_terminal: Open) -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b2Jend"
    printed = {"name": "bash", "input": {"command": "printf '\\033[2J\\033]0;owned\\007shown'"}}
    terminal = open_terminal(
        [{"text": attack, "tool_calls": [printed]}, {"text": "last"}], "--permission-mode", "bypassPermissions", "go"
    )
    assert "redend" in terminal.see("last")
    assert b"\x1b[2J" not in terminal.written
    assert b"owned\x07" not in terminal.written


@pytest.mark.parametrize(
    ("flag", "env"), [("--plain", {}), ("--verbose", {"NO_COLOR": "1"}), ("--verbose", {"TERM": "dumb"})]
)
def test_colours_can_be_turned_off(open_terminal: Open, flag: str, env: dict[str, str]) -> None:
    terminal = open_terminal([EDIT, {"text": "done"}], "--permission-mode", "acceptEdits", flag, "go", **env)
    assert '+print("hello")' in terminal.see("done")
    assert not re.search(rb"\x1b\[(3[1-6]|2)m", terminal.written)


def test_forty_columns_are_enough(open_terminal: Open) -> None:
    text = "wide 漢字 and 🎉 " * 8
    terminal = open_terminal([{"text": text + "END"}], "go", columns=40)
    terminal.see("END")
    terminal.type("next")
    terminal.see("› next")


def test_without_a_model_the_ways_to_get_one_are_named(open_terminal: Open) -> None:
    terminal = open_terminal(None)
    terminal.see("agentcli local install")
    assert terminal.exit_code() == 2


def test_resume_without_an_id_lists_what_there_is(open_terminal: Open) -> None:
    first = open_terminal([{"text": "kept answer"}], "a prompt to find again")
    first.see("kept answer")
    first.type("\x04")
    assert first.exit_code() == 0
    second = open_terminal([{"text": "unused"}], "--resume")
    second.see("1 .* a prompt to find again")


def test_continue_goes_on_where_the_last_session_ended(open_terminal: Open) -> None:
    first = open_terminal([{"text": "kept answer"}], "a prompt")
    first.see("kept answer")
    first.type("\x04")
    assert first.exit_code() == 0
    second = open_terminal([{"text": "on we go"}], "--continue", "and then?")
    second.see("on we go")
