"""Slash commands: how they are found in what a person typed."""

from __future__ import annotations

import pytest

from agentcli.agent.commands.command import Command, Desk
from agentcli.agent.commands.conversation import conversation_commands
from agentcli.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "name", "argument"),
    [
        ("/model", "model", ""),
        ("  /model   ollama/qwen3  ", "model", "ollama/qwen3"),
        ("/q", "quit", ""),
        ("/exit", "quit", ""),
        ("/?", "help", ""),
        ("/new", "clear", ""),
        ("/sessions 3", "resume", "3"),
    ],
)
def test_a_command_is_found_by_name_and_alias(typed: str, name: str, argument: str) -> None:
    found = conversation_commands().parse(typed)
    assert found is not None
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize("typed", ["hello", "", "/", "/etc/hosts is broken", "what does /model do?", "/ model", "//"])
def test_other_text_is_a_prompt(typed: str) -> None:
    assert conversation_commands().parse(typed) is None


def test_an_unknown_command_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no command /modle\. Did you mean /model\?"):
        conversation_commands().parse("/modle x")
    with pytest.raises(UsageError, match=r"no command /zzzzz\. /help shows all"):
        conversation_commands().parse("/zzzzz")


def test_a_command_that_is_added_is_found_and_listed() -> None:
    async def run(desk: Desk, argument: str) -> str:
        return argument

    commands = conversation_commands()
    commands.add(Command("shout", "say it louder", run, aliases=("loud",)))
    found = commands.parse("/loud now")
    assert found is not None
    assert (found[0].name, found[1]) == ("shout", "now")
    assert "shout" in [command.name for command in commands]
