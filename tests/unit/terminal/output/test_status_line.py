"""The status line, and the command that may fill it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.agent.permissions.modes import MODES
from agentcli.frontends.terminal.status import (
    COMMAND_TIMEOUT_S,
    SessionPlace,
    SessionUse,
    Status,
    StatusCommand,
    coloured_rows,
    status_rows,
)
from agentcli.frontends.terminal.text.fragments import Row, plain, row_width
from agentcli.frontends.terminal.text.theme import Theme
from tests.processes import is_running

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))
FULL = Status(
    model="anthropic/opus",
    mode="acceptEdits",
    effort="high",
    use=SessionUse(tokens=123_456, window=200_000, cost_usd=1.5, budget_usd=10.0),
    place=SessionPlace("id", "/x", "main"),
    jobs=2,
    is_busy=True,
)


def script(folder: Path, text: str) -> str:
    path = folder / "status"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def output_rows(command: str, status: Status = FULL) -> list[Row]:
    running = StatusCommand(command, ENVIRONMENT, lambda: None, Status.to_json)
    await running.run(status)
    return running.rows


def answer(command: str, status: Status = FULL) -> str:
    return "\n".join(map(plain, asyncio.run(output_rows(command, status))))


def status_row(status: Status, columns: int, **more: Any) -> Row:
    (row,) = status_rows(status, columns, **more)
    return row


def test_a_command_of_claude_code_gets_the_form_that_it_reads() -> None:
    status = json.loads(FULL.to_claude_json())
    assert status["model"] == {"id": "opus", "display_name": "opus"}
    assert status["workspace"]["current_dir"] == status["cwd"] == "/x"
    assert status["cost"]["total_cost_usd"] == 1.5
    assert (status["context_window"]["used_percentage"], status["context_window"]["remaining_percentage"]) == (62, 38)


def ends(pid: int) -> bool:
    for _ in range(100):
        if not is_running(pid):
            return True
        time.sleep(0.02)
    return False


@given(
    st.builds(
        Status,
        model=TEXT,
        mode=st.sampled_from(MODES),
        effort=TEXT,
        use=st.builds(
            SessionUse,
            tokens=st.integers(0, 10**9),
            window=st.integers(0, 10**7),
            cost_usd=st.one_of(st.none(), st.floats(0, 1e6)),
            budget_usd=st.one_of(st.none(), st.floats(0, 1e6)),
        ),
        place=st.builds(SessionPlace, TEXT, TEXT, TEXT),
        jobs=st.integers(0, 99),
    ),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
    TEXT,
    TEXT,
)
def test_the_line_fits_any_window(status: Status, columns: int, custom: str, hint: str) -> None:
    rows = status_rows(status, columns, custom=coloured_rows(custom), hint=hint)
    assert all(row_width(row) <= columns for row in rows)
    assert "\n" not in "".join(map(plain, rows))


def test_a_hint_that_is_too_long_for_the_window_takes_more_rows() -> None:
    rows = status_rows(FULL, 40, hint="The command waits in the input until you have answered.")
    assert [plain(row) for row in rows] == ["The command waits in the input until you", "  have answered."]


def test_what_matters_most_comes_first_and_stays_longest() -> None:
    whole = "accept edits · 62% context · $1.50 of $10.00 · 2 jobs · opus high · main"
    assert plain(status_row(FULL, 100)) == whole
    assert plain(status_row(FULL, 40)) == "accept edits · 62% context"
    assert plain(status_row(FULL, 60)) == "accept edits · 62% context · $1.50 of $10.00 · 2 jobs"
    assert plain(status_row(FULL, 8)) == "accept …"
    assert plain(status_row(FULL, 100, hint="Saved.")) == f"Saved. · {whole}"
    assert plain(status_row(FULL, 100, custom=[[("", "mine")]])) == "accept edits · mine"
    assert plain(status_row(FULL, 24, custom=[[("", "mine is longer")]])) == "accept edits · mine is …"


def test_the_rows_of_a_status_command_keep_their_colours_and_nothing_else() -> None:
    output = "\x1b[32mon \x1b[1mmain\x1b[0m plain\x1b]0;title\a\x1b[2J\n\nsecond\x1b[5A\n" + "more\n" * 9
    rows = coloured_rows(output)
    assert [*map(plain, rows)] == ["on main plain", "second", "more"]
    assert Theme("ansi").paint(rows[0]) == "\x1b[32mon \x1b[;32;1mmain\x1b[;2m plain\x1b[m"
    assert Theme("none").paint(rows[0]) == "on main plain"


def test_a_model_is_named_without_its_provider_and_a_file_without_its_folder() -> None:
    names = {"openrouter/anthropic/claude": "anthropic/claude", "local//models/qwen.gguf": "qwen.gguf"}
    assert {name: plain(status_row(Status(model=name), 80)) for name in names} == names


def test_a_price_that_is_not_known_is_not_a_zero() -> None:
    assert "$?" in plain(status_row(Status(model="m", use=SessionUse(cost_usd=None, budget_usd=1.0)), 80))


def test_a_status_command_gets_json_and_gives_its_first_lines(tmp_path: Path) -> None:
    command = script(tmp_path, f"cat > {tmp_path}/seen; printf '\\033[31mred\\033[m\\a\\nmore\\n'")
    assert answer(command) == "red␇\nmore"
    assert json.loads((tmp_path / "seen").read_text()) == {
        "model": "anthropic/opus",
        "mode": "acceptEdits",
        "effort": "high",
        "context_tokens": 123456,
        "context_window": 200000,
        "context_share": 0.6173,
        "cost_usd": 1.5,
        "budget_usd": 10.0,
        "cold_usd": None,
        "branch": "main",
        "jobs": 2,
        "cwd": "/x",
        "session_id": "id",
        "is_busy": True,
    }
    assert answer(f"'{command}' 'an argument'") == "red␇\nmore"


@pytest.mark.parametrize("command", ["", "   ", "no-such-program", "'open", "/", "false"])
def test_a_status_command_that_cannot_run_shows_nothing(command: str) -> None:
    assert answer(command) == ""


def test_a_status_command_that_fails_shows_nothing(tmp_path: Path) -> None:
    assert answer(script(tmp_path, "echo half; exit 3")) == ""


def test_a_status_command_that_reads_nothing_is_fine(tmp_path: Path) -> None:
    assert answer(script(tmp_path, "exec < /dev/null; echo ok"), Status(model="x" * 300_000)) == "ok"


@pytest.mark.slow
def test_status_commands_that_hang_are_killed_with_their_children(tmp_path: Path) -> None:
    bodies = [
        "echo $$ > PID; sleep 60",
        "echo $$ > PID; yes",
        "echo $$ > PID; trap '' TERM; while :; do sleep 1; done",
    ]
    commands = []
    for number, body in enumerate(bodies):
        (folder := tmp_path / str(number)).mkdir()
        commands.append(script(folder, body.replace("PID", str(folder / "pid"))))

    async def all_at_once() -> list[list[Row]]:
        return await asyncio.gather(*(output_rows(command) for command in commands))

    began = time.monotonic()
    assert asyncio.run(all_at_once()) == [[]] * len(bodies)
    assert time.monotonic() - began < COMMAND_TIMEOUT_S + 20
    for number in range(len(bodies)):
        assert ends(int((tmp_path / str(number) / "pid").read_text())), bodies[number]


def test_a_status_command_ends_with_the_program(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = script(tmp_path, f"echo $$ > {pid}; sleep 60")

    async def leave_early() -> None:
        task = asyncio.create_task(output_rows(command))
        while not pid.exists() or not pid.read_text().strip():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave_early())
    assert ends(int(pid.read_text()))


@pytest.mark.parametrize("output", ["> /dev/null 2>&1", ""])
def test_a_status_command_may_leave_something_running(tmp_path: Path, output: str) -> None:
    pid = tmp_path / "pid"
    command = script(tmp_path, f"sleep 60 {output} & echo $! > {pid}; echo ok")
    assert answer(command) == "ok"
    assert is_running(int(pid.read_text()))
    os.kill(int(pid.read_text()), 9)
