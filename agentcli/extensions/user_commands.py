"""Reads the slash commands that people write themselves: a Markdown file is a prompt with a name.

In it, as in a skill, `$ARGUMENTS` and `$1` to `$9` stand for what follows the name, !`command` for its output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcli.agent.calls.model import SessionCalls
from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.agent.permissions.decide import decide_with_exposure
from agentcli.agent.permissions.facts import find_facts
from agentcli.agent.permissions.rule_text import check_rule, parse_rule
from agentcli.agent.permissions.rules import Rule, Rules
from agentcli.agent.state import AgentState
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.extensions.skills.skill import one_line, split_frontmatter, tool_rules
from agentcli.settings.files import read_small_file
from agentcli.settings.paths import markdown_files
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.tool import RunTerms, ToolContext

_COMMAND = re.compile(r"!`([^`\n]+)`")
ARGUMENT = re.compile(r"\$(ARGUMENTS\b|[1-9](?!\d))")
_NAME = re.compile(r"[\w.-]+")
_ALL_ARGUMENTS = re.compile(r"\$(ARGUMENTS\b)")


@dataclass(frozen=True)
class Template:
    """A prompt whose own shell commands run unasked under the rules `allowed`; `takes_words`: `$1` is an argument."""

    name: str
    body: str
    allowed: tuple[Rule, ...]
    file: Path
    takes_words: bool = True
    adds_argument: bool = True


async def expanded(template: Template, argument: str, state: AgentState, calls: SessionCalls) -> str:
    """The text a template stands for. Raises `UserError` for a shell command that may not run, or that fails."""
    places = ARGUMENT if template.takes_words else _ALL_ARGUMENTS
    text, position = "", 0
    for found in _COMMAND.finditer(template.body):
        text += _filled(template.body[position : found.start()], argument, places)
        text += await _output(_filled(found[1], argument, places), template, state, calls)
        position = found.end()
    text += _filled(template.body[position:], argument, places)
    is_complete = not argument or not template.adds_argument or places.search(template.body)
    return text if is_complete else f"{text}\n\n{argument}"


def _filled(text: str, argument: str, places: re.Pattern[str]) -> str:
    try:
        words = shlex.split(argument)
    except ValueError:  # a quote that does not end
        words = argument.split()

    def fill(found: re.Match[str]) -> str:
        if found[1] == "ARGUMENTS":
            return argument
        return words[int(found[1]) - 1] if int(found[1]) <= len(words) else ""

    return places.sub(fill, text)


async def _output(shell: str, template: Template, state: AgentState, calls: SessionCalls) -> str:
    try:
        tool = calls.tools.get("bash")
        arguments = tool.parse({"command": shell})
        rules = Rules([*state.rules.allow, *template.allowed], state.rules.deny, state.rules.ask)
        verdict = decide_with_exposure(find_facts(tool, arguments, calls.workspace), state.mode, rules)
        if verdict.decision != "allow":
            raise UserError(
                f"/{template.name} wants to run `{shell}`, which may not run unasked: {verdict.reason}. "
                f"Add bash({shell}) to allowed-tools in {template.file}, or /permissions allow bash({shell})."
            )
        context = ToolContext(calls.workspace, template.name, terms=RunTerms(only_reads=verdict.only_reads))
        output = await tool.output(arguments, context)
    except ToolError as error:
        told = await calls.services.masked(str(error))
        raise UserError(f"/{template.name} could not run `{shell}`: {told}") from error
    return await calls.services.masked(str(output.content))


def add_user_commands(commands: CommandSet, folders: Sequence[Path], on_notice: Callable[[str], None]) -> None:
    """Add the commands of these folders, of which later ones win; names that are taken, and faults, are reported."""
    found: dict[str, SlashCommand] = {}
    for folder in folders:
        for file in markdown_files(folder):
            try:
                command, allowed = _read_command(file, folder)
                if command.name in commands.names:
                    raise ValueError(f"/{command.name} is one of agentcli's own")
            except (OSError, ValueError, UsageError) as error:
                on_notice(f"{file} is no command: {error}")
                continue
            found[command.name] = command
            for rule in allowed:  # files of other agents name tools that are not here, and work all the same
                try:
                    check_rule(rule, builtin_tools())
                except UsageError as error:
                    on_notice(f"{file}, allowed-tools: {error}")
    for command in found.values():
        commands.add(command)


def _read_command(file: Path, folder: Path) -> tuple[SlashCommand, Sequence[Rule]]:
    """The command of a file, and the rules that it allows. Raises `OSError`, `ValueError`, `UsageError`."""
    parts = file.relative_to(folder).with_suffix("").parts
    if not all(_NAME.fullmatch(part) for part in parts):
        raise ValueError("its name has characters that a command's cannot have")
    keys, body = split_frontmatter(read_small_file(file))
    if not body.strip():
        raise ValueError("it says nothing")
    allowed = tuple(map(parse_rule, tool_rules(keys.get("allowed-tools"))))
    template, model = Template(":".join(parts), body.strip(), allowed, file), one_line(keys, "model")

    async def run(host: CommandHost, argument: str) -> Outcome:
        if model:
            await host.check_model(model)
        text = await expanded(template, argument, host.session.state, host.session.runtime.calls)
        return AsPrompt(text, model)

    help = one_line(keys, "description") or body.strip().partition("\n")[0].rstrip().lstrip("# ")[:80]
    hint = one_line(keys, "argument-hint") or ("[ARGUMENTS]" if ARGUMENT.search(body) else "[TEXT]")
    return SlashCommand(template.name, help, run, hint), allowed
