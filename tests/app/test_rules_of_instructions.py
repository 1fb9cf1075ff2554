"""Lines of instruction files that become permission rules once a person says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.running import Place, call

STREAM = ("--output-format", "stream-json", "--input-format", "stream-json")
DONE = {"text": "Done."}


pytestmark = pytest.mark.slow  # each test starts the program


@pytest.fixture(autouse=True)
def _instructions(place: Place) -> None:
    (place.folder / "AGENTS.md").write_text("# Rules\n\n- Use uv, not pip.\n- Never edit vendor/.\n- Use tabs.\n")
    (place.folder / "vendor").mkdir()


def said(place: Place, *commands: str) -> list[tuple[str, bool]]:
    """What a session says to slash commands, and whether it was an error."""
    with place.start("-m", place.script(), *STREAM, stdin=True) as running:
        for command in commands:
            running.control("command", text=command, id=command)
            running.wait_for(lambda line, wanted=command: line.get("id") == wanted)
        return [(line["output"], line["is_error"]) for line in running.ended().of("system", "command")]


def results(place: Place, *calls: Any) -> list[str]:
    """The refusals of calls in a later one-shot run."""
    ran = place.run("-m", place.script({"tool_calls": list(calls)}, DONE), "-p", "go", "--output-format", "stream-json")
    return [
        block["content"] for line in ran.of("user") for block in line["message"]["content"] if "tool_use_id" in block
    ]


PIP = call("bash", command="cd . && pip install x")
EDIT = call("file_write", path="vendor/new.py", content="x")


def test_nothing_is_a_rule_before_a_yes_and_the_lines_are_shown_with_their_rules(place: Place) -> None:
    listed, is_error = said(place, "/permissions instructions")[0]
    assert not is_error
    assert listed.splitlines()[:3] == [
        '  1  AGENTS.md says: "Use uv, not pip."',
        "     refused: bash(pip *), bash(pip3 *), bash(python* -m pip *)",
        '  2  AGENTS.md says: "Never edit vendor/."',
    ]
    assert "tabs" not in listed
    assert not any("AGENTS.md says" in text for text in results(place, PIP, EDIT))


def test_an_accepted_line_refuses_in_every_later_session_and_is_quoted(place: Place) -> None:
    (taken, is_error), (shown, _) = said(place, "/permissions instructions 1 2", "/permissions list")
    assert not is_error, taken
    assert 'refused  bash(pip *)  (AGENTS.md says: "Use uv, not pip.")' in shown
    pip, edit = results(place, PIP, EDIT)
    assert 'the rule bash(pip *) (AGENTS.md says: "Use uv, not pip.") denies it' in pip
    assert 'AGENTS.md says: "Never edit vendor/."' in edit
    explained = place.run("permissions", "explain", "python3 -m pip install x")
    assert explained.out.startswith("block: ")
    assert "AGENTS.md says" in explained.out
    (again, _), *_ = said(place, "/permissions instructions")
    assert again.count("(holds)") == 2


def test_all_can_be_taken_and_one_taken_back(place: Place) -> None:
    answers = said(place, "/permissions instructions all", "/permissions forget file_edit(/vendor)")
    assert answers[1] == ("file_edit(/vendor) does not hold any more.", False)
    kept = json.loads((place.home / "state/grants.json").read_text())[str(place.folder)]
    assert [rule["rule"] for rule in kept] == ["bash(pip *)", "bash(pip3 *)", "bash(python* -m pip *)"]


@pytest.mark.parametrize("which", ["3", "0", "x", "1 9"])
def test_a_number_that_is_not_there_makes_no_rule(place: Place, which: str) -> None:
    assert said(place, f"/permissions instructions {which}")[0][1]
    assert not (place.home / "state/grants.json").exists()


def test_a_one_shot_run_shows_the_lines_and_makes_no_rule(place: Place) -> None:
    assert "refused: bash(pip *)" in place.run("-m", place.script(), "-p", "/permissions instructions").out
    ran = place.run("-m", place.script(), "-p", "/permissions instructions all")
    assert ran.code == 2
    assert "by a person's yes" in ran.err
    assert not (place.home / "state/grants.json").exists()


def test_without_such_lines_it_says_so(place: Place) -> None:
    (place.folder / "AGENTS.md").write_text("Be kind.\n")
    assert said(place, "/permissions instructions")[0] == (
        "No line of the instruction files that were read is a clear permission rule.",
        False,
    )
