"""Commands about the project: its changes, a review of them, its instruction and memory files, and added folders."""

import asyncio
import os
import re
from collections.abc import Iterable
from functools import partial
from importlib.resources import files
from pathlib import Path

from agentcli.agent.calls.model import fire
from agentcli.agent.commands.command import AsDiff, AsPrompt, CommandHost, FileDiff, Outcome, SlashCommand
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.undo import show_path_in
from agentcli.conversation import entries as log_entries
from agentcli.conversation.history import listed_names
from agentcli.conversation.rule_files import RuleFile
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.llm.models import estimate_text
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import from_home
from agentcli.tools.command import Grants
from agentcli.tools.text.diff import unified_diff
from agentcli.tools.text.encoding import decode
from agentcli.tools.workspace import Memory, Workspace

MAX_NAMES = 10  # of files in a note
MAX_FILES = 200  # with a diff
MAX_COMPARED_BYTES = 10_000_000  # of a file with a diff
WORKING_CHANGES = "the uncommitted changes of this repository (git status, git diff HEAD, and untracked files)"


async def _run_diff(host: CommandHost, argument: str) -> Outcome:
    calls = host.session.runtime.calls
    checkpoints = calls.recording.checkpoints
    if checkpoints is None:
        raise UserError("File changes are not recorded (checkpoints.enabled is off). To see git's: !git diff HEAD")
    if not host.session.is_busy and (changed := await checkpoints.changes_in_progress()):
        host.session.append(*changed)
    entries = host.session.state.conversation.entries
    files, others = await asyncio.to_thread(_net_changes, entries, checkpoints, calls.workspace)
    notes = [f"Also changed, but not shown: {listed_names(others, MAX_NAMES)}."] if others else []
    recorded = [entry.body for entry in entries if isinstance(entry.body, log_entries.FilesChanged)]
    left_out = dict.fromkeys(name for changed in recorded for name in changed.left_out)
    notes += [f"Not recorded: {show_path_in(name, calls.workspace.shown)}" for name in [*left_out][:MAX_NAMES]]
    if not files and not others:
        notes.append("No recorded file changes in this session. To see git's: !git diff HEAD")
    shown = [FileDiff(file.path, await calls.services.masked(file.diff)) for file in files]
    return AsDiff(tuple(shown), "\n".join(notes))


def _net_changes(
    entries: Iterable[log_entries.Entry], checkpoints: Checkpoints, workspace: Workspace
) -> tuple[list[FileDiff], list[str]]:
    """Return for /diff the diff of each file since the session first changed it, and the names of files without one."""
    # By path: the states before the first change and after the last one.
    states: dict[str, tuple[log_entries.FileState | None, log_entries.FileState | None]] = {}
    for entry in entries:
        if isinstance(entry.body, log_entries.FilesChanged | log_entries.FilesRestored):
            for change in entry.body.changes:
                first, _ = states.get(change.path, (change.before, None))
                states[change.path] = first, change.after
    text_of = partial(_recorded_text, checkpoints=checkpoints, workspace=workspace)
    files: list[FileDiff] = []
    others: list[str] = []
    for stored, (first, last) in states.items():
        # Folders have no text, and what a later change has undone needs no diff.
        if first == last or {state.kind for state in (first, last) if state is not None} == {"folder"}:
            continue
        name = workspace.shown(Path(log_entries.system_path(stored)))
        before, after = (text_of(first), text_of(last)) if len(files) < MAX_FILES else (None, None)
        if before is None or after is None:
            others.append(name)
        elif diff := unified_diff(name, before, after):
            files.append(FileDiff(name, diff))
    return files, others


def _recorded_text(state: log_entries.FileState | None, checkpoints: Checkpoints, workspace: Workspace) -> str | None:
    """Return a recorded file's text, empty if there was no file; None for other kinds and for binary files."""
    if state is None:
        return ""
    if state.kind != "file" or not state.content or state.size > MAX_COMPARED_BYTES:
        return None
    try:
        content = checkpoints.content(state.content)
    except OSError:  # it is no longer stored
        return None
    decoded = decode(content, workspace.settings.charset)
    return decoded.text if decoded else None


async def _ask_model(command: str, host: CommandHost, what: str) -> Outcome:
    text = files("agentcli.agent.commands").joinpath(f"{command}.md").read_text("utf-8").strip()
    return AsPrompt(text.replace("{what}", what or WORKING_CHANGES))


async def _run_add_dir(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    workspace = session.runtime.calls.workspace
    if not argument:
        return "Folders: " + ", ".join(map(str, workspace.facts.roots)) + ". To add one: /add-dir PATH"
    folder = await asyncio.to_thread(_existing_folder, workspace.cwd, argument)
    workspace.grants += Grants(roots=(folder,))
    session.state.notes.append(log_entries.reminder(f"{log_entries.ADDED_FOLDER} {folder} to the workspace."))
    await fire(session.runtime.calls, "DirectoryAdded", directory=str(folder), source="slash_command")
    return f"Added {folder}. The model can read and change files in it for the rest of this session."


def _existing_folder(cwd: Path, name: str) -> Path:
    folder = cwd / from_home(name)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    return folder.resolve()


_REVIEW = partial(_ask_model, "review")
PROJECT_COMMANDS = (
    SlashCommand("diff", "show this session's file changes", _run_diff, is_parallel=True),
    SlashCommand("review", "have the model review the uncommitted changes, or what you name", _REVIEW, "[WHAT]"),
    SlashCommand("init", "have the model write AGENTS.md for this repository", partial(_ask_model, "init")),
    SlashCommand("add-dir", "add a folder to the workspace", _run_add_dir, "PATH"),
)


NOTES = "notes.md"
_WHY_UNREAD = "another file has the same text, or it was left out"  # why a rule that always applies was not read
_INSTRUCTIONS = lazy_pattern(r'<instructions path="(.*?)">\n(.*?)\n</instructions>', re.DOTALL)


async def _run_remember(host: CommandHost, text: str) -> Outcome:
    if not text:
        raise UsageError("Add what to remember: /remember TEXT")
    memory = _memory_of(host)
    await asyncio.to_thread(memory.append, NOTES, f"- {text}")
    host.session.state.notes.append(log_entries.reminder(f"The user added this to {NOTES} in the memory: {text}"))
    return f"Added to {memory.path_of(NOTES)}"


async def _run_memory(host: CommandHost, argument: str) -> Outcome:
    """List the instruction files, rule files and memory files of the model, or edit a memory file."""
    verb, _, name = argument.partition(" ")
    if verb == "edit":
        return await _edit_memory_file(host, name.strip() or NOTES)
    if argument:
        raise UsageError("Usage: /memory, or /memory edit [FILE].")
    lines = ["Instruction files the model has read:"]
    files, rules = instruction_files(host), await asyncio.to_thread(_rule_files, host)
    for path, text in files.items():
        condition = f", {rules[path].condition}" if path in rules else ""
        lines.append(f"  {path}  about {estimate_text(text):,} tokens{condition}")
    lines += [] if files else ["  none"]
    if unread := [rule for path, rule in rules.items() if path not in files]:
        lines.append("Rules of the project the model has not read:")
        lines += [f"  {rule.path}  {_WHY_UNREAD if rule.applies == 'always' else rule.condition}" for rule in unread]
    if (finder := host.session.runtime.context.rules) and finder.disabled:
        lines.append(f"Not read: the files of {', '.join(finder.disabled)} (instructions.off)")
    memory = host.session.runtime.calls.workspace.resources.memory
    if memory is None:
        return "\n".join([*lines, "Memory files: off (memory.enabled)"])
    lines.append(f"This project's memory files, in {memory.path_of(NOTES).parent}:")
    lines += await asyncio.to_thread(_memory_lines, memory) or ["  none"]
    lines.append("To add a line: /remember TEXT. To edit a file: /memory edit [FILE]")
    return "\n".join(lines)


def _rule_files(host: CommandHost) -> dict[str, RuleFile]:
    """Return the rule files in the folders from the project's root to the working directory, by path."""
    finder, cwd = host.session.runtime.context.rules, host.session.runtime.calls.workspace.cwd
    if finder is None:
        return {}
    folders = [folder for folder in (*reversed(cwd.parents), cwd) if folder.is_relative_to(finder.root)]
    return {str(rule.path): rule for folder in folders for rule in finder.rule_files_in(folder)}


def _memory_lines(memory: Memory) -> list[str]:
    lines = []
    for name, _ in memory.index():
        try:
            lines.append(f"  {name}  about {estimate_text(memory.view(name)):,} tokens")
        except ToolError as error:
            lines.append(f"  {name}  {error}")
    return lines


def instruction_files(host: CommandHost) -> dict[str, str]:
    """Return the instruction files in the next request by path, each with its newest text."""
    state = host.session.state
    bodies = [entry.body for entry in state.conversation.request_entries] + [*state.notes]
    texts = [body.text for body in bodies if isinstance(body, log_entries.User) and body.is_reminder]
    texts += [body.carried for body in bodies if isinstance(body, log_entries.Compaction)]
    return dict(found for text in texts for found in _INSTRUCTIONS.findall(text))


async def _edit_memory_file(host: CommandHost, name: str) -> Outcome:
    memory = _memory_of(host)
    place = memory.path_of(name)
    is_there = await asyncio.to_thread(os.path.lexists, place)
    before = await asyncio.to_thread(memory.view, name) if is_there else ""
    after = await host.edit(before)
    if after is None:  # this front end has no editor
        return f"Edit {place}"
    if after.rstrip("\n") == before.rstrip("\n"):
        return f"No changes to {place}."
    await asyncio.to_thread(memory.write, name, after.rstrip("\n") + "\n", before=before)
    return f"Saved {place}"


def _memory_of(host: CommandHost) -> Memory:
    memory = host.session.runtime.calls.workspace.resources.memory
    if memory is None:
        raise UserError("Memory is off. Turn it on with memory.enabled.")
    return memory


MEMORY_COMMANDS = (
    SlashCommand("remember", "add a line to this project's memory", _run_remember, "TEXT"),
    SlashCommand(
        "memory", "show memory and instruction files, or edit memory", _run_memory, "[edit]", forms=("", "edit [FILE]")
    ),
)
