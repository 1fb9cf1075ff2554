"""Instruction files (AGENTS.md and its kin): data a project gives the model, read without trust and marked as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.entries import User, reminder

BUDGET = 32 * 1024  # bytes of all files together
PER_FOLDER = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md")  # the first that exists counts


class Instructions(Struct, frozen=True):
    """Files in the order they are read, outermost first. `left_out` did not fit the budget."""

    files: tuple[tuple[Path, str], ...] = ()
    left_out: tuple[Path, ...] = ()

    def note(self) -> User | None:
        if not self.files:
            return None
        parts = [f'<instructions path="{path}">\n{text.strip()}\n</instructions>' for path, text in self.files]
        return reminder(
            "Instruction files of the user and the project; nearer ones win, the user's own words win over all.\n"
            + "\n".join(parts)
        )


def find_instructions(cwd: Path, root: Path, user_files: Sequence[Path]) -> Instructions:
    """The user's files, then one file for each folder from the project's root down to `cwd`."""
    folders = [folder for folder in (*reversed(cwd.parents), cwd) if folder.is_relative_to(root)]
    candidates = [file for file in user_files if _is_file(file)]
    for folder in folders:
        if file := next((folder / name for name in PER_FOLDER if _is_file(folder / name)), None):
            candidates.append(file)
    found, left_out, size = [], [], 0
    for file in candidates:
        try:
            text = file.read_text("utf-8-sig", errors="replace")
        except OSError:
            left_out.append(file)
            continue
        if size + len(text.encode()) > BUDGET:
            left_out.append(file)
        elif text.strip():
            size += len(text.encode())
            found.append((file, text))
    return Instructions(tuple(found), tuple(left_out))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that may not be searched
        return False
