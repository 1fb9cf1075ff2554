"""The person's own commands, behind `!`: in a terminal that is lent to them, and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.terminal import Open, Terminal
from tests.processes import is_running

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

KEY = "sk-ant-api03-not-a-real-key-0123456789"


def ready(open_terminal: Open, *flags: str, columns: int = 100, **env: str) -> Terminal:
    terminal = open_terminal([{"text": "First answer."}, {"text": "Second."}], *flags, columns=columns, **env)
    terminal.see("script.jsonl")
    return terminal


def told(tmp_path: Path) -> str:
    """All of the newest session, as the next request would send it."""
    environment = {**os.environ, "AGENTCLI_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "agentcli", "sessions", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    session = json.loads(run("list"))[0]["id"]
    return str(json.dumps(json.loads(run("show", session))["messages"], ensure_ascii=False))


@pytest.mark.full
@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["live", "plain"])
def test_it_is_unconfined_and_sees_the_whole_environment(
    open_terminal: Open, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    terminal = open_terminal([{"text": "First answer."}], *flags, MY_TOKEN=KEY)
    terminal.see("›|script.jsonl")
    terminal.settle(0.5)
    terminal.type('!echo "${#MY_TOKEN} characters" | tee ../outside; echo $MY_TOKEN\r')
    terminal.see(rf"{len(KEY)} characters")
    assert (tmp_path / "outside").exists()
    terminal.settle(0.5)
    terminal.type("go\r")
    terminal.see(r"First answer\.")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert f"{len(KEY)} characters" in told(tmp_path)
    assert KEY not in told(tmp_path)


def test_it_can_ask_and_the_model_is_reported_what_was_reported(open_terminal: Open, tmp_path: Path) -> None:
    terminal = ready(open_terminal)
    terminal.type('!read -p "name? " n; printf "\\033[31mhi\\033[0m %s\\n" "$n"; stty -echo; read -p "password? " p\r')
    terminal.see(r"name\?$")
    terminal.type("Bob\r")
    terminal.see(r"hi Bob\npassword\?$")
    assert b"\x1b[31mhi\x1b[0m Bob" in terminal.written
    terminal.type("swordfish\r")
    terminal.see(r"password\?\n\n› ")
    terminal.type("go\r")
    terminal.see(r"First answer\.")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert b"swordfish" not in terminal.written
    assert "<bash-output>name? Bob\\nhi Bob\\npassword?</bash-output>" in told(tmp_path)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_whole_output_stays_above_the_prompt_as_it_was_printed(open_terminal: Open, columns: int) -> None:
    terminal = ready(open_terminal, columns=columns)
    terminal.type("!seq -f 'line %03g' 200; printf 'no end'\r")
    terminal.see(r"no end\n\n› ")
    lines = terminal.transcript().split("\n")
    first = lines.index("line 001")
    assert lines[first : first + 201] == [*(f"line {number:03}" for number in range(1, 201)), "no end"]
    terminal.type("\x0f")
    terminal.see(r"!seq -f 'line %03g' 200")  # as long as it is, it opens in the pager
    terminal.see("line 001")


def test_it_says_how_a_command_failed_and_follows_it_into_a_folder(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project" / "sub").mkdir()
    terminal = ready(open_terminal)
    terminal.type("!exit 3\r")
    terminal.see(r"\[exit code 3\]")
    terminal.type("!cd sub\r")
    terminal.see(r"\[now in sub\]")
    terminal.type("!!pwd; echo un''told\r")
    terminal.see(r"/sub\nuntold\n\n?› ")
    terminal.type("go\r")
    terminal.see(r"First answer\.")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert "[exit code 3]" in told(tmp_path)
    assert "untold" not in told(tmp_path)


def test_ctrl_c_interrupts_it(open_terminal: Open) -> None:
    terminal = ready(open_terminal)
    terminal.type("!echo be''gun; sleep 30\r")
    terminal.see("begun")
    terminal.type("\x03")
    terminal.see(r"\[interrupted by the user\]\n\n› ")
    terminal.type("go\r")
    terminal.see(r"First answer\.")


KEY_READER = """
import os, sys, tty
tty.setcbreak(0)
sys.stdout.write("\\x1b[?1049h\\x1b[H\\x1b[32mfull screen")
sys.stdout.flush()
keys = [os.read(0, 10), os.read(0, 10)]
open("keys", "w").write(repr(keys))
if len(sys.argv) == 1:
    sys.stdout.write("\\x1b[?1049l")
"""


@pytest.mark.full
@pytest.mark.parametrize("ends", ["in order", "half way"])
def test_esc_is_a_key_for_a_full_screen_program(open_terminal: Open, tmp_path: Path, ends: str) -> None:
    (tmp_path / "project" / "keys.py").write_text(KEY_READER)
    terminal = ready(open_terminal)
    terminal.type(f"!{sys.executable} keys.py{' x' if ends == 'half way' else ''}\r")
    terminal.see("full screen")
    terminal.type("\x1b")
    terminal.settle(0.3)
    terminal.type("\x1b[A")
    terminal.get(b"\x1b[?1049l")
    terminal.settle(0.5)
    assert (tmp_path / "project" / "keys").read_text() == r"[b'\x1b', b'\x1b[A']"
    terminal.type("go\r")
    terminal.see(r"First answer\.")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert "full screen" not in told(tmp_path)


def test_a_resize_reaches_it_and_the_prompt_fits_afterwards(open_terminal: Open) -> None:
    terminal = ready(open_terminal)
    terminal.type("!stty size; read x; stty size\r")
    terminal.see("40 100")
    terminal.resize(30, 60)
    terminal.settle(0.3)
    terminal.type("\r")
    terminal.see(r"30 60\n\n› ")
    terminal.type("go\r")
    terminal.see(r"First answer\.")


def test_the_turn_continues_meanwhile_and_shows_what_came_afterwards(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "word " * 20, "delay_ms": 50, "chunk": 5}], "go")
    terminal.see("word word")
    terminal.type("!echo own; read x; echo done\r")
    terminal.see("own$")
    before = terminal.settle(1.5)
    assert before.endswith("own")
    terminal.type("\r")
    shown = terminal.see(r"done\n\nword")
    assert shown.count("word") == 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_of_it_is_left_however_the_program_ends(
    open_terminal: Open, tmp_path: Path, number: signal.Signals
) -> None:
    terminal = ready(open_terminal)
    terminal.type("!(trap '' HUP TERM INT; echo $BASHPID > pid; while :; do sleep 1; done)\r")
    file = tmp_path / "project" / "pid"
    deadline = time.monotonic() + 10
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline
        terminal.settle(0.1)
    pid = int(file.read_text())
    terminal.kill(number)
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "it goes on"
        terminal.settle(0.1)
    if number != signal.SIGKILL:
        assert terminal.exit_code() == 128 + number


def test_much_output_does_not_keep_a_key_waiting(open_terminal: Open) -> None:
    terminal = ready(open_terminal)
    terminal.type("!yes this goes on for ever\r")
    terminal.see("(this goes on for ever\n){3}")  # its output, not what was typed
    terminal.type("\x03")
    terminal.see(r"\[interrupted by the user\]\n\n› ")
