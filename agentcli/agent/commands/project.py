"""The project: its uncommitted changes, a review of them, its instruction file, further folders."""

from __future__ import annotations

import asyncio
import re
import shlex
from importlib.resources import files
from pathlib import Path

from agentcli.agent.commands.changes import edits_in, net_changes
from agentcli.agent.commands.command import AsDiff, AsPrompt, Command, CommandHost, FileDiff, Outcome
from agentcli.conversation.entries import ADDED_FOLDER, reminder
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.settings.paths import from_home
from agentcli.tools.command import Command as ShellCommand
from agentcli.tools.tool import Workspace

# Nothing that a repository's own settings name may run.
_GIT = ("git", "--no-optional-locks", "-c", "core.quotepath=off", "-c", "core.fsmonitor=false")
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color")
_GIT_TIME_LIMIT_S = 30.0
LONGEST_DIFF = 10_000_000  # bytes
_ONE_FILE = re.compile(r"^diff --git .*\n(?:(?!diff --git ).*\n?)*", re.MULTILINE)
WORKING_CHANGES = "the uncommitted changes of this repository (git status, git diff HEAD, and files not yet tracked)"


async def _diff(host: CommandHost, argument: str) -> Outcome:
    if argument == "all":
        return await _uncommitted(host.session.runtime.calls.workspace)
    if argument:
        raise UsageError("Write /diff, or /diff all.")
    session = host.session
    workspace = session.runtime.calls.workspace
    edits = edits_in(session.state.conversation.entries, workspace)
    files, apart = await asyncio.to_thread(net_changes, edits, workspace)
    notes = [] if files else ["This session's edits have changed no file."]
    if apart:
        were = "were" if len(apart) > 1 else "was"
        why = "by something else since, or in very long lines"
        notes.append(f"{', '.join(apart)} {were} changed {why}: each edit is shown as it was made.")
    if edits.commands:
        ran = "1 command" if edits.commands == 1 else f"{edits.commands} commands"
        notes.append(f"What {ran} may have changed is not known here: /diff all shows what git sees.")
    elif not files:
        notes.append("/diff all shows what git sees.")
    shown = [FileDiff(file.path, await session.runtime.calls.services.masked(file.diff)) for file in files]
    return AsDiff(tuple(shown), "\n".join(notes))


async def _uncommitted(workspace: Workspace) -> Outcome:
    has_commit, _ = await _git(workspace, "rev-parse", "--verify", "--quiet", "HEAD")
    ok, changes = await _git(workspace, *_DIFF, "HEAD" if has_commit else "--cached")
    if not ok:
        raise UserError(f"There is no diff: {changes.strip() or 'git failed'}")
    _, names = await _git(workspace, "ls-files", "--others", "--exclude-standard")
    untracked = [f"Untracked: {name}" for name in names.splitlines()]
    files = [FileDiff(_path_in(diff), diff) for diff in _ONE_FILE.findall(changes)]
    return AsDiff(tuple(files), "\n".join(untracked or ["Nothing has changed."] * (not files)))


def _path_in(diff: str) -> str:
    """The file of one part of git's diff: its new name, or the old one of what is gone."""
    names = re.findall(r"^(?:---|\+\+\+) [ab]/(.*)$", diff.partition("\n@@")[0], re.MULTILINE)
    return names[-1] if names else diff.partition("\n")[0].rpartition(" b/")[2]


async def _git(workspace: Workspace, *arguments: str) -> tuple[bool, str]:
    """Whether git succeeded, and what it said."""
    try:
        result = await workspace.sandbox.exec(
            ShellCommand(
                shlex.join([*_GIT, *arguments]), workspace.cwd, timeout_s=_GIT_TIME_LIMIT_S, most_bytes=LONGEST_DIFF
            )
        )
    except ToolError as error:
        raise UserError(str(error)) from error
    return result.exit_code == 0, result.output


async def _review(host: CommandHost, what: str) -> Outcome:
    return AsPrompt(_prose("review").replace("{what}", what or WORKING_CHANGES))


async def _init(host: CommandHost, argument: str) -> Outcome:
    return AsPrompt(_prose("init"))


def _prose(name: str) -> str:
    return files("agentcli.agent.commands").joinpath(f"{name}.md").read_text("utf-8").strip()


async def _add_dir(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    workspace = session.runtime.calls.workspace
    if not argument:
        return "Folders: " + ", ".join(map(str, workspace.sandbox.roots)) + ". Another one: /add-dir PATH"
    folder = await asyncio.to_thread(_folder, workspace.cwd, argument)
    workspace.sandbox.add_root(folder)
    session.state.notes.append(reminder(f"{ADDED_FOLDER} {folder} to the workspace."))
    return f"{folder} may be read and changed in this session."


def _folder(cwd: Path, name: str) -> Path:
    folder = cwd / from_home(name)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    return folder.resolve()


PROJECT_COMMANDS = (
    Command("diff", "show what this session, or all, has changed", _diff, "[all]", is_aside=True),
    Command("review", "let the model review the changes, or what you name", _review, "[WHAT]"),
    Command("init", "let the model write AGENTS.md for this repository", _init),
    Command("add-dir", "let the model work in one more folder", _add_dir, "PATH"),
)
