"""Slash commands people write themselves: a Markdown file is a prompt with a name.

`$ARGUMENTS` and `$1` to `$9` stand for what follows the name, !`command` for a command's output; files named with `@`
are attached as in every prompt.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentcli.agent.commands.command import AsPrompt, Command, CommandHost, Commands, Outcome
from agentcli.agent.permissions.exposure import decide_with_exposure
from agentcli.agent.permissions.judge import judge
from agentcli.agent.permissions.rule_checks import check_rule
from agentcli.agent.permissions.rules import Rule, Rules, parse_rule
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.paths import markdown_files
from agentcli.small_files import read_small_file
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.tool import ToolContext

_COMMAND = re.compile(r"!`([^`\n]+)`")
_ARGUMENT = re.compile(r"\$(ARGUMENTS\b|[1-9](?!\d))")
_RULE = re.compile(r"[A-Za-z_][\w-]*(?:\([^)]*\))?")
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class UserCommand:
    """A file's command. `allowed` are the rules under which its own shell commands run unasked."""

    name: str
    description: str
    hint: str
    body: str
    allowed: tuple[Rule, ...] = ()
    model: str = ""
    file: Path = Path()


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
                for warning in _warnings(command.allowed):
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
    split = import_module("agentcli.agent.commands.frontmatter").split_frontmatter
    keys, body = split(read_small_file(file).decode("utf-8-sig").replace("\r\n", "\n"))
    if not body.strip():
        raise ValueError("it says nothing")
    first = next(line.strip() for line in body.splitlines() if line.strip())
    return UserCommand(
        ":".join(parts),
        _text(keys, "description") or first.lstrip("# ")[:80],
        _text(keys, "argument-hint") or ("[ARGUMENTS]" if _ARGUMENT.search(body) else "[TEXT]"),
        body.strip(),
        tuple(_rules(keys.get("allowed-tools"))),
        _text(keys, "model"),
        file,
    )


def _text(keys: dict[str, Any], key: str) -> str:
    """A key's value on one line."""
    value = keys.get(key)
    return " ".join(str(value).split()) if value is not None else ""


def _rules(value: Any) -> Iterator[Rule]:
    """From a YAML list, or a line of rules with commas or spaces between them."""
    texts = map(str, value) if isinstance(value, list) else _RULE.findall(str(value or ""))
    return (parse_rule(text) for text in texts)


def _runner(command: UserCommand) -> Callable[[CommandHost, str], Any]:
    async def run(host: CommandHost, argument: str) -> Outcome:
        if command.model:
            await host.check_model(command.model)
        return AsPrompt(await expanded(command, argument, host.session), command.model)

    return run


async def expanded(command: UserCommand, argument: str, session: Session) -> str:
    """The prompt a command stands for. Raises `UserError` for a shell command that may not run, or that fails."""
    text, position = "", 0
    for found in _COMMAND.finditer(command.body):
        text += _filled(command.body[position : found.start()], argument)
        text += await _output(_filled(found[1], argument), command, session)
        position = found.end()
    text += _filled(command.body[position:], argument)
    return text if not argument or _ARGUMENT.search(command.body) else f"{text}\n\n{argument}"


def _filled(text: str, argument: str) -> str:
    try:
        words = shlex.split(argument)
    except ValueError:  # a quote that does not end
        words = argument.split()

    def fill(found: re.Match[str]) -> str:
        if found[1] == "ARGUMENTS":
            return argument
        return words[int(found[1]) - 1] if int(found[1]) <= len(words) else ""

    return _ARGUMENT.sub(fill, text)


async def _output(shell: str, command: UserCommand, session: Session) -> str:
    state, calls = session.state, session.runtime.calls
    try:
        tool = calls.tools.get("bash")
        arguments = tool.parse({"command": shell})
        rules = Rules([*state.rules.allow, *command.allowed], state.rules.deny, state.rules.ask)
        verdict = decide_with_exposure(judge(tool, arguments, calls.workspace), state.mode, rules)
        if verdict.decision != "allow":
            raise UserError(
                f"/{command.name} wants to run `{shell}`, which may not run unasked: {verdict.reason}. "
                f"Add bash({shell}) to allowed-tools in {command.file}, or /permissions allow bash({shell})."
            )
        context = ToolContext(calls.workspace, command.name, only_reads=verdict.only_reads)
        output = await tool.output(arguments, context)
    except ToolError as error:
        raise UserError(
            f"/{command.name} could not run `{shell}`: {await calls.services.masked(str(error))}"
        ) from error
    return await calls.services.masked(str(output.content))
