"""How often a person is asked about the commands that a model makes every day; they stand in the text file beside this.

Each line says what its command does, then the command, in which `↵` stands for a newline. It only `reads` the workspace
(and fills caches), `changes` files there, or reaches hosts or acts `beyond` the workspace.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentcli.agent.permissions.decide import decide
from agentcli.agent.permissions.facts import DryRunUse, find_facts
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules
from tests.unit.tools.bench import Bench

FILE = Path(__file__).parent / "everyday_commands.txt"
MOST_QUESTIONS = 47


def everyday_commands() -> list[tuple[str, str]]:
    """Pairs of what a command does and the command."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [(does, command.replace("↵", "\n")) for does, _, command in (line.partition("\t") for line in lines)]


def decisions(bench: Bench, mode: Mode = "default", *, dry_run: DryRunUse = "always") -> list[tuple[str, str, str]]:
    """What each command does, what is decided about it, and the command."""
    bench.confine()
    bash = bench.tools.get("bash")
    found = []
    for does, command in everyday_commands():
        facts = replace(find_facts(bash, bash.parse({"command": command}), bench.workspace), dry_run=dry_run)
        found.append((does, decide(facts, mode, Rules()).outcome, command))
    return found


def test_there_are_two_hundred_different_commands() -> None:
    commands = everyday_commands()
    assert len({command for _, command in commands}) == len(commands) == 200
    assert min(Counter(does for does, _ in commands).values()) > 10
    assert {does for does, _ in commands} == {"reads", "changes", "beyond"}


def test_nobody_is_asked_about_commands_that_only_read(bench: Bench) -> None:
    found = [row for row in decisions(bench) if row[0] == "reads"]
    assert [row for row in found if row[1] == "ask"] == []
    assert Counter(decision for _, decision, _ in found) == {"dry_run": 112, "allow": 41}


def test_commands_that_change_files_run_as_a_dry_run_first(bench: Bench) -> None:
    otherwise = [row for row in decisions(bench) if row[0] == "changes" and row[1] != "dry_run"]
    assert otherwise == []


def test_commands_that_act_outside_the_workspace_ask_before_they_run(bench: Bench) -> None:
    unasked = [row for row in decisions(bench) if row[0] == "beyond" and row[1] != "ask"]
    assert unasked == []


@pytest.mark.slow
def test_two_hundred_everyday_commands_put_few_questions(bench: Bench) -> None:
    found = decisions(bench)
    before = sum(decision == "ask" for _, decision, _ in found)
    afterwards = sum((does, decision) == ("changes", "dry_run") for does, decision, _ in found)
    assert before + afterwards <= MOST_QUESTIONS
    assert sum(decision == "ask" for _, decision, _ in decisions(bench, dry_run="never")) > 3 * MOST_QUESTIONS
    assert sum(decision == "ask" for _, decision, _ in decisions(bench, "acceptEdits")) < 20
