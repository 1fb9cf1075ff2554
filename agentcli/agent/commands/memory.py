"""The memory beyond a conversation: instruction files, and the project's memory files."""

from __future__ import annotations

import asyncio
import re

from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand
from agentcli.conversation.entries import Compaction, User, reminder
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.llm.tokens import estimate_text
from agentcli.tools.remembered import Memory

NOTES = "notes.md"
_INSTRUCTIONS = re.compile(r'<instructions path="(.*?)">\n(.*?)\n</instructions>', re.DOTALL)


async def _remember(host: CommandHost, text: str) -> Outcome:
    if not text:
        raise UsageError("Say what: /remember TEXT")
    memory = _memory_of(host)
    try:
        await asyncio.to_thread(memory.append, NOTES, f"- {text}")
    except ToolError as error:
        raise UserError(str(error)) from error
    host.session.state.notes.append(
        reminder(f"The user asked to remember, and {NOTES} of the memory holds now: {text}")
    )
    return f"Remembered in {memory.place_of(NOTES)}"


async def _show(host: CommandHost, argument: str) -> Outcome:
    verb, _, name = argument.partition(" ")
    if verb == "edit":
        return await _edit(host, name.strip() or NOTES)
    if argument:
        raise UsageError("Write /memory, or /memory edit [FILE].")
    files = instruction_files(host)
    lines = ["Instruction files that the model was given:"]
    lines += [f"  {path}  about {estimate_text(text):,} tokens" for path, text in files.items()] or ["  none"]
    memory = host.session.runtime.calls.workspace.memory
    if memory is None:
        return "\n".join([*lines, "Memory files: switched off (memory.enabled)"])
    lines.append(f"Memory files of this project, in {memory.place_of(NOTES).parent}:")
    lines += await asyncio.to_thread(_listed, memory) or ["  none"]
    lines.append("/remember TEXT adds a line; /memory edit [FILE] opens a file.")
    return "\n".join(lines)


def _listed(memory: Memory) -> list[str]:
    lines = []
    for name, _ in memory.index():
        try:
            lines.append(f"  {name}  about {estimate_text(memory.view(name)):,} tokens")
        except ToolError as error:
            lines.append(f"  {name}  {error}")
    return lines


def instruction_files(host: CommandHost) -> dict[str, str]:
    """Return the instruction files in the next request, each with its newest text."""
    state = host.session.state
    bodies = [entry.body for entry in state.conversation.request_entries] + [*state.notes]
    texts = [body.text for body in bodies if isinstance(body, User) and body.is_reminder]
    texts += [body.carried for body in bodies if isinstance(body, Compaction)]
    return dict(found for text in texts for found in _INSTRUCTIONS.findall(text))


async def _edit(host: CommandHost, name: str) -> Outcome:
    memory = _memory_of(host)
    try:
        place = memory.place_of(name)
        try:
            before = await asyncio.to_thread(memory.view, name)
        except ToolError as error:
            if error.kind != "not_found":
                raise
            before = ""
        after = await host.edit(before)
        if after is None:
            return f"Edit {place}"
        if after.rstrip("\n") == before.rstrip("\n"):
            return f"{place} is as it was."
        await asyncio.to_thread(memory.write, name, after.rstrip("\n") + "\n")
    except ToolError as error:
        raise UserError(str(error)) from error
    return f"Kept in {place}"


def _memory_of(host: CommandHost) -> Memory:
    memory = host.session.runtime.calls.workspace.memory
    if memory is None:
        raise UserError("The memory is switched off (memory.enabled).")
    return memory


MEMORY_COMMANDS = (
    SlashCommand("remember", "add a line to this project's memory", _remember, "TEXT"),
    SlashCommand("memory", "show what is remembered, or edit a file of it", _show, "[edit]", forms=("", "edit [FILE]")),
)
