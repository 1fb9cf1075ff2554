"""Instruction files (AGENTS.md and its kin): data a project gives the model, read without trust and marked as such."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.entries import Body, Compaction, User, reminder
from agentcli.safety.paths.secret import is_secret
from agentcli.small_files import is_file, read_small_file

BUDGET = 32 * 1024  # bytes of all files together
PER_FOLDER = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md")  # the first that exists counts
LOCAL = ("AGENTS.local.md", "CLAUDE.local.md")  # a person's own, beside it
DEEPEST_IMPORT = 5

_TOO_LARGE = "instruction files hold more than 32 KiB together"
_HEADING = "Instruction files of the user and the project; nearer ones win, the user's own words win over all."
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|(`+)[^`].*?\2", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"(?<![\w@.])@([\w./~-]*[\w/])")
_TOLD = re.compile(r'^<instructions path="(.*)">$', re.MULTILINE)


class Instructions(Struct, frozen=True):
    """Files in the order they are read, outermost first. `left_out` are others, each with the reason."""

    files: tuple[tuple[Path, str], ...] = ()
    left_out: tuple[tuple[Path, str], ...] = ()

    def note(self) -> User | None:
        if not self.files:
            return None
        parts = [f'<instructions path="{path}">\n{text.strip()}\n</instructions>' for path, text in self.files]
        return reminder("\n".join([_HEADING, *parts]))


@dataclass
class InstructionReader:
    """Reads instruction files of a project whose folder is `root`; all that it reads shares one budget.

    A project's file may be a link or import others by `@path`, but not what lies outside the project or holds secrets:
    a repository would choose what of this machine the model is shown.
    """

    root: Path
    home: Path | None = None
    files: list[tuple[Path, str]] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    _size: int = 0
    _seen: set[Path | None] = field(default_factory=set)

    @property
    def found(self) -> Instructions:
        return Instructions(tuple(self.files), tuple(self.left_out))

    def take_folder(self, folder: Path) -> None:
        """A folder's instruction file, and the person's local ones beside it."""
        first = next((folder / name for name in PER_FOLDER if is_file(folder / name)), None)
        for file in (first, *(folder / name for name in LOCAL if is_file(folder / name))):
            if file is not None:
                self.take(file, self.root)

    def take(self, file: Path, within: Path, *, depth: int = 0) -> None:
        """A file and what it imports, all of which must lie in the folder `within`."""
        real = _real(file)
        if real in self._seen:
            return
        self._seen.add(real)
        if why := _why_not(real, within, self.home):
            self.left_out.append((file, why))
            return
        try:
            content = read_small_file(file, most=BUDGET - self._size, really=real)
        except OSError as error:
            why = _TOO_LARGE if error.errno == errno.EFBIG else f"it cannot be read ({error.strerror})"
            self.left_out.append((file, why))
            return
        text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
        if not text.strip():
            return
        self._size += len(content)
        self.files.append((file, text))
        for imported in _imports(text, file.parent, self.home):
            if depth == DEEPEST_IMPORT:
                self.left_out.append((imported, f"imports lead deeper than {DEEPEST_IMPORT} files"))
            else:
                self.take(imported, within, depth=depth + 1)


def find_instructions(cwd: Path, root: Path, user_files: Sequence[Path], home: Path | None = None) -> Instructions:
    """The user's files, then those of each folder from the project's root down to `cwd`."""
    reader = InstructionReader(root, home)
    for file in user_files:
        if is_file(file):
            reader.take(file, Path(file.anchor))
    for folder in (*reversed(cwd.parents), cwd):
        if folder.is_relative_to(root):
            reader.take_folder(folder)
    return reader.found


def nested_instructions(
    folders: Iterable[Path], cwd: Path, root: Path, told: Iterable[str], home: Path | None = None
) -> Instructions:
    """The files of folders below `cwd` and of those on the way to them, outermost first, without those `told` before.

    `told` are paths. They count against the budget as they are now.
    """
    reader = InstructionReader(root, home)
    for path in map(Path, told):
        reader.take(path, Path(path.anchor))
    count, problems = len(reader.files), len(reader.left_out)
    for way in sorted({way for folder in folders for way in _way_down(cwd, folder)}):
        reader.take_folder(way)
    return Instructions(tuple(reader.files[count:]), tuple(reader.left_out[problems:]))


def told_paths(bodies: Iterable[Body]) -> list[str]:
    """The instruction files that the model was given, in these entries."""
    begins = f"<system-reminder>{_HEADING}"
    texts = (
        body.text if isinstance(body, User) else body.carried[body.carried.find(f"\n{begins}") + 1 :]
        for body in bodies
        if isinstance(body, Compaction) or (isinstance(body, User) and body.is_reminder)
    )
    texts = (text for text in texts if text.startswith(begins))
    return list(dict.fromkeys(path for text in texts for path in _TOLD.findall(text)))


def _way_down(cwd: Path, folder: Path) -> Iterator[Path]:
    """The folders below `cwd` that lead to another, that one included."""
    if folder.is_relative_to(cwd):
        yield from (one for one in (folder, *folder.parents) if one.is_relative_to(cwd) and one != cwd)


def _imports(text: str, folder: Path, home: Path | None) -> Iterator[Path]:
    """The files that a text names as `@path`, outside of code. A name that is no file is no import."""
    for name in _IMPORT.findall(_CODE.sub("", text)):
        file = home / name[2:] if name.startswith("~/") and home else Path(normpath(folder / name))
        if is_file(file):
            yield file


def _real(file: Path) -> Path | None:
    try:
        return file.resolve(strict=True)
    except (OSError, RuntimeError):  # before Python 3.13 a loop of symlinks is a RuntimeError
        return None


def _why_not(real: Path | None, within: Path, home: Path | None) -> str:
    if real is None:
        return "it cannot be read"
    if not real.is_relative_to(within.resolve()):
        return "it leads out of the project"
    return "it leads to a file that may hold secrets" if is_secret(real, home) else ""
