"""Instruction files (AGENTS.md and its kin): data a project gives the model, read without trust and marked as such."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.entries import User, reminder
from agentcli.safety.paths.secret import is_secret
from agentcli.small_files import is_file, read_small_file

BUDGET = 32 * 1024  # bytes of all files together
PER_FOLDER = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md")  # the first that exists counts

_TOO_LARGE = "instruction files hold more than 32 KiB together"


class Instructions(Struct, frozen=True):
    """Files in the order they are read, outermost first. `left_out` are others, each with the reason."""

    files: tuple[tuple[Path, str], ...] = ()
    left_out: tuple[tuple[Path, str], ...] = ()

    def note(self) -> User | None:
        if not self.files:
            return None
        parts = [f'<instructions path="{path}">\n{text.strip()}\n</instructions>' for path, text in self.files]
        return reminder(
            "Instruction files of the user and the project; nearer ones win, the user's own words win over all.\n"
            + "\n".join(parts)
        )


def find_instructions(cwd: Path, root: Path, user_files: Sequence[Path], home: Path | None = None) -> Instructions:
    """The user's files, then one file for each folder from the project's root down to `cwd`.

    A project's file may be a link, but not to what lies outside the project or holds secrets: a repository would
    choose what of this machine the model is shown.
    """
    folders = [folder for folder in (*reversed(cwd.parents), cwd) if folder.is_relative_to(root)]
    candidates: list[tuple[Path, Path | None]] = [(file, None) for file in user_files if is_file(file)]
    found, left_out, size = [], [], 0
    for folder in folders:
        if file := next((folder / name for name in PER_FOLDER if is_file(folder / name)), None):
            real = _real(file)
            if why := _why_not(real, root, home):
                left_out.append((file, why))
            else:
                candidates.append((file, real))
    for file, real in candidates:
        try:
            content = read_small_file(file, most=BUDGET - size, really=real)
        except OSError as error:
            left_out.append(
                (file, _TOO_LARGE if error.errno == errno.EFBIG else f"it cannot be read ({error.strerror})")
            )
            continue
        text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
        if text.strip():
            size += len(content)
            found.append((file, text))
    return Instructions(tuple(found), tuple(left_out))


def _real(file: Path) -> Path | None:
    try:
        return file.resolve(strict=True)
    except (OSError, RuntimeError):  # before Python 3.13 a loop of symlinks is a RuntimeError
        return None


def _why_not(real: Path | None, root: Path, home: Path | None) -> str:
    if real is None:
        return "it cannot be read"
    if not real.is_relative_to(root.resolve()):
        return "it leads out of the project"
    return "it leads to a file that may hold secrets" if is_secret(real, home) else ""
