"""Slash commands people write themselves: a Markdown file is a prompt with a name.

What its text stands for is made by templates.py; files named with `@` are attached as in every prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcli.agent.commands.command import AsPrompt, Command, CommandHost, Commands, Outcome
from agentcli.agent.permissions.rule_checks import check_rule
from agentcli.agent.permissions.rules import Rule, parse_rule
from agentcli.errors import UsageError
from agentcli.extensions.commands.templates import ARGUMENT, Template, expanded
from agentcli.extensions.skills.skill import tool_rules
from agentcli.settings.files import read_small_file
from agentcli.settings.paths import markdown_files
from agentcli.tools.builtin.toolset import builtin_tools

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class UserCommand:
    """A file's command."""

    template: Template
    description: str
    hint: str
    model: str = ""

    @property
    def name(self) -> str:
        return self.template.name


def add_user_commands(commands: Commands, folders: Sequence[Path], on_notice: Callable[[str], None]) -> None:
    """Add the commands of these folders, a later one's before an earlier's; the ones that are there keep their names.

    What cannot be used is told and left out.
    """
    taken = {name for command in commands for name in (command.name, *command.aliases)}
    found: dict[str, UserCommand] = {}
    for folder in folders:
        for file in markdown_files(folder):
            try:
                command = read_command(file, folder)
                if command.name in taken:
                    raise ValueError(f"/{command.name} is one of agentcli's own")
            except (OSError, ValueError, UsageError) as error:
                on_notice(f"{file} is no command: {error}")
            else:
                found[command.name] = command
                for warning in _warnings(command.template.allowed):
                    on_notice(f"{file}, allowed-tools: {warning}")
    for one in found.values():
        commands.add(Command(one.name, one.description, _runner(one), one.hint))


def _warnings(rules: Sequence[Rule]) -> Iterator[str]:
    """About rules that never hold; files of other agents name tools that are not here, and work all the same."""
    for rule in rules:
        try:
            check_rule(rule, "allow", builtin_tools())
        except UsageError as error:
            yield str(error)


def read_command(file: Path, folder: Path) -> UserCommand:
    """Raises `OSError`, `ValueError` or `UsageError` for what cannot be used."""
    parts = file.relative_to(folder).with_suffix("").parts
    if not all(_NAME.fullmatch(part) for part in parts):
        raise ValueError("its name has characters that a command's cannot have")
    from agentcli.extensions.skills.frontmatter import split_frontmatter as split

    keys, body = split(read_small_file(file).decode("utf-8-sig").replace("\r\n", "\n"))
    if not body.strip():
        raise ValueError("it says nothing")
    first = next(line.strip() for line in body.splitlines() if line.strip())
    allowed = tuple(map(parse_rule, tool_rules(keys.get("allowed-tools"))))
    return UserCommand(
        Template(":".join(parts), body.strip(), allowed, file),
        _text(keys, "description") or first.lstrip("# ")[:80],
        _text(keys, "argument-hint") or ("[ARGUMENTS]" if ARGUMENT.search(body) else "[TEXT]"),
        _text(keys, "model"),
    )


def _text(keys: dict[str, Any], key: str) -> str:
    """A key's value on one line."""
    value = keys.get(key)
    return " ".join(str(value).split()) if value is not None else ""


def _runner(command: UserCommand) -> Callable[[CommandHost, str], Any]:
    async def run(host: CommandHost, argument: str) -> Outcome:
        if command.model:
            await host.check_model(command.model)
        session = host.session
        text = await expanded(command.template, argument, session.state, session.runtime.calls)
        return AsPrompt(text, command.model)

    return run
