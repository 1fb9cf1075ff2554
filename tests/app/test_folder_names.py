"""Work in a folder whose name is no UTF-8, which Linux allows: nothing that names it may fail."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.running import Place, call
from tests.app.terminal import Open, Terminal

pytestmark = pytest.mark.slow  # each test starts the program

NAME = os.fsdecode(b"caf\xe9")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    try:
        made.folder = made.folder.rename(tmp_path / NAME)
    except OSError:
        pytest.skip("names are UTF-8 on this file system")
    (made.folder / "a.py").write_text('print("hi")\n')
    return made


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
def test_a_prompt_is_answered(place: Place, format: str) -> None:
    model = place.script({"tool_calls": [call("bash", command="cat a.py")]}, {"text": "It says {{last_result}}"})
    ran = place.run("-m", model, "-p", "go", "--permission-mode", "bypassPermissions", "--output-format", format)
    assert (ran.code, ran.err) == (0, "")
    assert "hi" in ran.out.splitlines()[-1]


def test_a_session_is_found_again(place: Place) -> None:
    model = place.script({"text": "x"})
    for number, flags in enumerate(([], ["--continue"])):
        ran = place.run("-m", model, "-p", f"question {number}", *flags)
        assert (ran.code, ran.err) == (0, "")
    assert "question 0" in place.run("sessions", "list").out
    [listed] = json.loads(place.run("sessions", "list", "--json").out)
    assert listed["cwd"] == (place.folder.parent.as_uri() + "/caf%E9")
    assert listed["session_id"] == listed["id"]
    shown = place.run("sessions", "show", listed["session_id"]).out
    assert "question 0" in shown
    assert "question 1" in shown


def test_sessions_of_a_folder_that_looks_alike_are_others(place: Place) -> None:
    place.run("-m", place.script({"text": "x"}), "-p", "question")
    place.folder = place.folder.parent / "caf%E9"
    place.folder.mkdir()
    assert "No sessions" in place.run("sessions", "list").out


def test_a_session_to_continue_is_missed_in_words(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "x"}), "-p", "go on", "--continue")
    assert (ran.code, "There is no session to continue in" in ran.err) == (2, True)


def test_the_project_can_be_trusted(place: Place) -> None:
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli" / "config.toml").write_text("[limits]\nmax_turns = 7\n")
    assert "not trusted and not used" in place.run("config", "show").out
    assert place.run("config", "trust").code == 0
    assert "max_turns = 7" in place.run("config", "show").out


@pytest.mark.parametrize(
    "arguments",
    [
        "tools run file_list {} --permission-mode bypassPermissions",
        "permissions explain ls",
        "config path --json",
        "config show",
    ],
)
def test_subcommands_work(place: Place, arguments: str) -> None:
    ran = place.run(*arguments.split())
    assert (ran.code, ran.err) == (0, "")


@pytest.fixture
def open_terminal(place: Place) -> Iterator[Open]:
    opened: list[Terminal] = []
    model = place.script({"text": "The answer."})

    def open_on(*flags: str) -> Terminal:
        opened.append(Terminal(place.folder, "-m", model, *flags))
        return opened[-1]

    yield open_on
    for terminal in opened:
        terminal.close()


@pytest.mark.slow
def test_a_terminal_session_works_and_keeps_its_history(open_terminal: Open) -> None:
    first = open_terminal()
    first.see("script-")
    first.type("a question\r")
    first.see("The answer.")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal()
    second.see("script-")
    second.type("\x1b[A")
    second.see("› a question")


@pytest.mark.slow
def test_a_session_line_by_line_works(open_terminal: Open) -> None:
    terminal = open_terminal("--plain")
    terminal.see("›")
    terminal.type("a question\r")
    terminal.see("The answer.")


@pytest.mark.slow
def test_a_custom_status_line_works(place: Place, open_terminal: Open) -> None:
    place.home.mkdir()
    seen = place.home / "seen"
    (place.home / "config.toml").write_text(f"[terminal]\nstatus_command = 'cat >>\"{seen}\"; echo mine'\n")
    open_terminal().see("mine")
    assert '"session_id":""' not in seen.read_text(), "it runs for a session"


@pytest.mark.slow
def test_a_draft_is_found_again(open_terminal: Open) -> None:
    first = open_terminal()
    first.see("script-")
    first.type("half a thou")
    first.settle(1.0)
    first.kill(signal.SIGKILL)
    open_terminal().see("› half a thou")
