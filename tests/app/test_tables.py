"""Lists of subcommands: tables on a terminal, plain columns in pipes."""

from __future__ import annotations

import json
import re
from contextlib import closing

import pytest

from tests.app.running import Place
from tests.app.terminal import Terminal

pytestmark = pytest.mark.slow  # each test starts the program

NAME = "[red]a name[/red] of a session that is longer than one line of a terminal with eighty columns, and then some"


@pytest.fixture
def stored(place: Place) -> tuple[Place, str]:
    """A place with one session, and its id."""
    ran = place.run("-p", "hi", "-m", place.script({"text": "Hi."}), "--name", NAME, "--output-format", "json")
    return place, str(ran.result["session_id"])


def column(shown: str, heading: str, until: str | None) -> str:
    """The cells of a column of a drawn table, joined."""
    lines = shown.splitlines()
    top = next(n for n, line in enumerate(lines) if heading in line)
    start, end = lines[top].index(heading), lines[top].index(until) if until else None
    return "".join(line[start:end].strip() for line in lines[top + 2 :])


@pytest.mark.parametrize("columns", [80, 56])
def test_a_terminal_shows_a_table_with_headings_that_loses_nothing(stored: tuple[Place, str], columns: int) -> None:
    place, id = stored
    with closing(Terminal(place.folder, "sessions", "list", columns=columns, rows=60, COLUMNS="")) as terminal:
        terminal.see("some")
        shown = terminal.text()
    assert column(shown, "id", "changed") == id
    assert column(shown, "title", None).replace(" ", "") == f"one-shot:{NAME}".replace(" ", "")


def test_a_pipe_gets_one_uncut_line_a_row_and_no_heading(stored: tuple[Place, str]) -> None:
    place, id = stored
    (line,) = place.run("sessions", "list").out.splitlines()
    assert line.startswith(f"{id}  ")
    assert line.endswith(NAME)


def test_doctor_marks_its_findings_and_exits_1_for_one_that_is_missing(place: Place) -> None:
    with closing(Terminal(place.folder, "doctor", columns=80, rows=60)) as terminal:
        terminal.see("✓ +agentcli +")
        terminal.see("✗ +model +No model is set up")
        assert terminal.exit_code() == 1


def test_models_are_listed_with_how_their_tokens_are_counted(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "encoders.toml").write_text('["deepseek-*"]\nmargin = 1.3\ncounter = "http://127.0.0.1:9/"\n')
    place.environment["AGENTCLI_TOKENS_ENCODERS"] = "encoders.toml"
    rows = {row["id"]: row for row in json.loads(place.run("models", "list", "--json").out)}
    kept = ("family", "encoder", "margin", "mode")
    assert [rows["claude-opus-5-5"][key] for key in kept] == ["claude", "cl100k_base", 1.15, "estimate"]
    assert [rows["deepseek-v4-pro"][key] for key in kept] == ["deepseek", "cl100k_base", 1.3, "exact"]
    plain = place.run("models", "list").out
    assert re.search(r"^anthropic/claude-opus-5-5 .* cl100k_base +1\.15 +estimate$", plain, re.MULTILINE)
    assert re.search(r"^deepseek/deepseek-v4-pro .* cl100k_base +1\.3 +exact$", plain, re.MULTILINE)
    with closing(Terminal(place.folder, "models", "list", columns=120, rows=60, COLUMNS="")) as terminal:
        terminal.see(r"model +window +reply .*encoder +margin +mode")


def test_a_project_does_not_choose_who_counts_tokens(place: Place) -> None:
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli" / "evil.toml").write_text('["*"]\ncounter = "http://127.0.0.1:9/"\n')
    setting = f'[tokens]\nencoders = "{place.folder}/.agentcli/evil.toml"\n'
    (place.folder / ".agentcli" / "config.toml").write_text(setting)
    assert place.run("config", "trust").code == 0
    assert {row["mode"] for row in json.loads(place.run("models", "list", "--json").out)} == {"estimate"}
    (place.home / "config.toml").write_text(setting)
    assert {row["mode"] for row in json.loads(place.run("models", "list", "--json").out)} == {"exact"}
