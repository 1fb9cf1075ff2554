"""Reads custom slash commands: each Markdown file is a prompt.

As in a skill, `$ARGUMENTS` is the text after the command's name, `$1` to `$9` its words, !`command` a shell's output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from agentcli.agent.commands.command import AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand
from agentcli.agent.permissions.decide import decide_with_exposure, suggested_rules
from agentcli.agent.permissions.facts import find_facts
from agentcli.agent.permissions.rules import Rule, Rules, parse_rule
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.extensions.skills.skill import one_line, split_frontmatter, tool_rules
from agentcli.settings.files import markdown_files, read_small_file
from agentcli.tools.tool import RunTerms, ToolContext

if TYPE_CHECKING:
    from agentcli.extensions.plugins.plugin import Plugin

SHELL_COMMAND = re.compile(r"(?m)!`([^`\n]+)`|^```!\n([^`]+?)\n```$")  # on one line (group 1), or as a block (2)
# `$ARGUMENTS[0]` and `$1` are the first word of the argument.
ARGUMENT = re.compile(r"\$(?:ARGUMENTS\[(?P<index>\d+)\]|(?P<name>ARGUMENTS\b|[1-9](?!\d)|[a-z_]\w*))")
_NAME = re.compile(r"[\w.-]+")


class Template(Struct, frozen=True, kw_only=True):
    """A prompt with placeholders. The rules `allowed` let its shell commands run without asking.

    `$1` is a placeholder only if it `takes_words`; `names` are further placeholders for these words, in order. If it
    `adds_argument`, an argument is appended to a prompt that has no placeholder for it.
    """

    name: str
    body: str
    allowed: tuple[Rule, ...]
    file: Path
    takes_words: bool = True
    names: tuple[str, ...] = ()
    adds_argument: bool = True

    @property
    def has_placeholder(self) -> bool:
        return self.fill_in(self.body, "") != self.body

    def fill_in(self, text: str, argument: str) -> str:
        """Return a part of the body with the argument and its words in place of the placeholders."""
        try:
            words = shlex.split(argument)
        except ValueError:  # an open quotation mark
            words = argument.split()
        values = {"ARGUMENTS": argument}
        if self.takes_words:
            for names in (tuple("123456789"), self.names):  # a name without a word is replaced by nothing
                values |= dict(zip_longest(names, words[: len(names)], fillvalue=""))

        def value_of(placeholder: re.Match[str]) -> str:
            if index := placeholder["index"]:
                return words[int(index)] if int(index) < len(words) else ""
            return values.get(placeholder["name"], placeholder[0])  # another `$name` stays as it is

        return ARGUMENT.sub(value_of, text)


async def expand_template(template: Template, argument: str, session: Session) -> str:
    """Return the text of a template, filled in. Raises `UserError` if a shell command fails or needs approval."""
    body, text, position = template.body.replace("${CLAUDE_SESSION_ID}", session.id), "", 0
    for command in SHELL_COMMAND.finditer(body):
        text += template.fill_in(body[position : command.start()], argument)
        text += await _command_output(template.fill_in(command[1] or command[2], argument), template, session)
        position = command.end()
    text += template.fill_in(body[position:], argument)
    lacks_argument = argument and template.adds_argument and not template.has_placeholder
    return f"{text}\n\n{argument}" if lacks_argument else text


async def _command_output(command: str, template: Template, session: Session) -> str:
    """Run a shell command of a template, and return its output with secrets masked. Raises `UserError`."""
    state, calls = session.state, session.runtime.calls
    try:
        tool = calls.tools.get("bash")
        arguments = tool.parse({"command": command})
        rules = Rules([*state.rules.allow, *template.allowed], state.rules.deny, state.rules.ask)
        facts = find_facts(tool, arguments, calls.workspace)
        decision = decide_with_exposure(facts, state.mode, rules)  # a command that can read secret files needs a yes
        if decision.outcome != "allow":
            need = "is denied" if decision.outcome == "deny" else "requires approval"
            problem = f"/{template.name} wants to run `{command}`, which {need}: {decision.reason}."
            if suggested := suggested_rules(facts, state.mode, rules):  # empty if no rule can allow it
                rule = suggested[0]
                problem += f" Add {rule} to allowed-tools in {template.file}, or use /permissions allow {rule}."
            raise UserError(problem)
        terms = RunTerms(only_reads=decision.only_reads)
        context = ToolContext(calls.workspace, call_id=template.name, terms=terms)
        output = await tool.output(arguments, context)
    except ToolError as error:
        problem = await calls.services.masked(str(error))
        raise UserError(f"/{template.name} could not run `{command}`: {problem}") from error
    return await calls.services.masked(str(output.content))


def add_user_commands(
    commands: CommandSet, folders: Sequence[Path], on_notice: Callable[[str], None], plugins: Sequence[Plugin] = ()
) -> None:
    """Add the commands in `folders` (a later folder overrides) and in plugins (`/PLUGIN:NAME`); report bad files."""
    found: dict[str, SlashCommand] = {}
    # Each file with the name of its command, and a function that expands a plugin's variables; `str` expands nothing.
    files: list[tuple[Path, str, Callable[[str], str]]] = []
    for folder in folders:
        paths = [(file, file.relative_to(folder).with_suffix("")) for file in markdown_files(folder)]
        files += [(file, ":".join(path.parts), str) for file, path in paths]
    for plugin in plugins:
        files += [(file, f"{plugin.name}:{name}", plugin.fill) for name, file in plugin.commands.items()]
    for file, name, fill in files:
        try:
            command = _read_command(file, name, fill)
            if command.name in commands.names:
                raise ValueError(f"/{command.name} is a built-in command")
        except (OSError, ValueError, UsageError) as error:
            on_notice(f"{file} is not a command: {error}")
            continue
        found[command.name] = command
    for command in found.values():
        commands.add(command)


def _read_command(file: Path, name: str, fill: Callable[[str], str]) -> SlashCommand:
    """Return a file's command; `fill` expands a plugin's variables. Raises `OSError`, `ValueError` or `UsageError`."""
    if not all(_NAME.fullmatch(part) for part in name.split(":")):
        raise ValueError("its name contains characters that commands cannot have")
    keys, body = split_frontmatter(fill(read_small_file(file).decode()).encode())
    if not body.strip():
        raise ValueError("it is empty")
    allowed = tuple(map(parse_rule, tool_rules(keys.get("allowed-tools"))))
    names = tuple(tool_rules(keys.get("arguments")))
    template = Template(name=name, body=body.strip(), allowed=allowed, file=file, names=names)
    model = one_line(keys, "model").removeprefix("inherit")  # empty: the session's model

    async def run(host: CommandHost, argument: str) -> Outcome:
        if model:
            await host.check_model(model)
        return AsPrompt(await expand_template(template, argument, host.session), model)

    first_line = body.strip().partition("\n")[0].lstrip("# ")  # often a heading
    help = one_line(keys, "description") or first_line.rstrip()[:80]
    hint = one_line(keys, "argument-hint") or ("[ARGUMENTS]" if template.has_placeholder else "[TEXT]")
    return SlashCommand(template.name, help, run, hint)
