"""The fixed beginning of every request, and the notes that are appended because they change."""

from __future__ import annotations

import re
from pathlib import Path

from agentcli.conversation.entries import User, reminder
from agentcli.settings.files import read_small_file
from agentcli.tools.path_names import display_name

MOST_NAMES = 40

_LONGEST_LINE = 8_192  # bytes: twice the longest path
_BRANCH = re.compile(r"[^\s<>\x00-\x20\x7f-\xa0]{1,255}")  # what is no name, or could be read as a mark-up, is not told


def system_prompt(*, small: bool, replace: str | None = None, append: str = "") -> str:
    """The system text: the same bytes for every session of a kind, so that a provider's cache is shared."""
    name = "system_prompt_small.md" if small else "system_prompt.md"
    text = replace if replace is not None else Path(__file__).with_name(name).read_text("utf-8")
    return "\n\n".join(part.strip() for part in (text, append) if part.strip())


def environment_note(*, cwd: Path, platform: str, date: str, branch: str) -> User:
    """Where and when the session runs; what changes never stands in the system text."""
    git = f", git branch {branch}" if branch else ""
    return reminder(f"Working directory {display_name(str(cwd))}{git}. {platform}. {date}.")


def files_note(cwd: Path) -> User:
    """List the working directory for small models, which otherwise guess the names of files."""
    try:
        names = sorted(f"{e.name}/" if e.is_dir() else e.name for e in cwd.iterdir() if not e.name.startswith("."))
    except OSError:
        names = []
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    shown = ", ".join(map(display_name, names[:MOST_NAMES]))
    return reminder(f"Files here: {shown or 'none'}{more}.")


def git_branch(root: Path) -> str:
    """The checked-out branch, read from the repository itself; empty outside one or when no branch is checked out."""
    git = root / ".git"
    try:
        if git.is_file():  # a worktree or submodule names its folder
            git = (root / _line_of(git).removeprefix("gitdir:").strip()).resolve()
        head = _line_of(git / "HEAD")
    except (OSError, RuntimeError, ValueError):
        return ""
    name = head.removeprefix("ref: refs/heads/") if head.startswith("ref:") else ""
    return name if _BRANCH.fullmatch(name) else ""


def _line_of(file: Path) -> str:
    return read_small_file(file, max_bytes=_LONGEST_LINE).decode().strip()
