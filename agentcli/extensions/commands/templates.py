"""Makes prompts of templates: the texts of slash commands and skills that people write.

`$ARGUMENTS` and `$1` to `$9` stand for what follows the name, !`command` for a command's output.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from agentcli.agent.calls.scopes import SessionCalls
from agentcli.agent.permissions.exposure import decide_with_exposure
from agentcli.agent.permissions.judge import judge
from agentcli.agent.permissions.rules import Rule, Rules
from agentcli.agent.state import AgentState
from agentcli.errors import ToolError, UserError
from agentcli.tools.tool import ToolContext

_COMMAND = re.compile(r"!`([^`\n]+)`")
ARGUMENT = re.compile(r"\$(ARGUMENTS\b|[1-9](?!\d))")
_ALL_ARGUMENTS = re.compile(r"\$(ARGUMENTS\b)")


@dataclass(frozen=True)
class Template:
    """`allowed` are the rules under which its own shell commands run unasked.

    `takes_words`: `$1` stands for an argument. `adds_argument`: what nothing in the text stands for follows it.
    """

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
        verdict = decide_with_exposure(judge(tool, arguments, calls.workspace), state.mode, rules)
        if verdict.decision != "allow":
            raise UserError(
                f"/{template.name} wants to run `{shell}`, which may not run unasked: {verdict.reason}. "
                f"Add bash({shell}) to allowed-tools in {template.file}, or /permissions allow bash({shell})."
            )
        context = ToolContext(calls.workspace, template.name, only_reads=verdict.only_reads)
        output = await tool.output(arguments, context)
    except ToolError as error:
        told = await calls.services.masked(str(error))
        raise UserError(f"/{template.name} could not run `{shell}`: {told}") from error
    return await calls.services.masked(str(output.content))
