"""Instruction files (AGENTS.md and its kin): data a project gives the model, read without trust and marked as such."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.entries import Body, Compaction, User, reminder
from agentcli.safety.paths.judge import is_secret
from agentcli.settings.files import is_file, read_small_file

BUDGET = 32 * 1024  # bytes of all files together
PER_FOLDER = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md")  # the first that exists counts
LOCAL = ("AGENTS.local.md", "CLAUDE.local.md")  # a person's own, beside it
DEEPEST_IMPORT = 5

_TOO_LARGE = "instruction files together exceed 32 KiB"
_HEADING = "Instruction files of the user and the project; nearer ones win, the user's own words win over all."
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|(`+)[^`].*?\2", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"(?<![\w@.])@([\w./~-]*[\w/])")
_TOLD = re.compile(r'^<instructions path="(.*)">$', re.MULTILINE)


class Instructions(Struct, frozen=True):
    """Instruction files, outermost first. `cut` says what is missing of some, `left_out` why others are not there."""

    files: tuple[tuple[Path, str], ...] = ()
    left_out: tuple[tuple[Path, str], ...] = ()
    cut: tuple[tuple[Path, str], ...] = ()

    @property
    def notices(self) -> list[str]:
        """Sentences for the person about files that the model does not get, or not whole."""
        left_out = (f"{file} was left out: {why}." for file, why in self.left_out)
        return [*left_out, *(f"The model gets only the beginning of {file}: {missing}." for file, missing in self.cut)]

    def note(self) -> User | None:
        if not self.files:
            return None
        parts = [f'<instructions path="{path}">\n{text.strip()}\n</instructions>' for path, text in self.files]
        return reminder("\n".join([_HEADING, *parts]))


@dataclass(kw_only=True)
class InstructionReader:
    """Reads instruction files of a project whose folder is `root`, within one budget: large ones get equal shares.

    A project's file may be a link or import others by `@path`, but not what lies outside the project or holds secrets:
    a repository would choose what of this machine the model is shown.
    """

    root: Path
    home: Path | None = None
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    _files: list[tuple[Path, bytes, int]] = field(default_factory=list)  # with the size of the whole file
    _spent: int = 0
    _seen: set[Path | None] = field(default_factory=set)

    def take_found(self) -> Instructions:
        """Return what was read since this was asked last; it counts against the budget from here on."""
        shares = _shares([len(content) for _, content, _ in self._files], BUDGET - self._spent)
        files, cut = [], []
        for (file, content, size), share in zip(self._files, shares, strict=True):
            shown = _beginning(content, share)
            text = shown.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
            if not text.strip():
                self.left_out.append((file, _TOO_LARGE))
                continue
            self._spent += len(shown)
            if len(shown) < size:
                missing = f"{(size - len(shown)) / 1024:.1f} of {size / 1024:.1f} KiB are missing because {_TOO_LARGE}"
                line = text.count("\n") + 1
                text += f"\n[{missing}: read the rest with file_read, path {file}, offset {line}]"
                cut.append((file, missing))
            files.append((file, text))
        found = Instructions(tuple(files), tuple(self.left_out), tuple(cut))
        self._files, self.left_out = [], []
        return found

    def take_folder(self, folder: Path) -> None:
        """A folder's instruction file, and the person's local ones beside it."""
        first = next((folder / name for name in PER_FOLDER if is_file(folder / name)), None)
        for file in (first, *(folder / name for name in LOCAL if is_file(folder / name))):
            if file is not None:
                self.take(file, self.root)

    def take(self, file: Path, within: Path, *, depth: int = 0) -> None:
        """A file and what it imports, all of which must lie in the folder `within`."""
        real: Path | None
        try:
            real = file.resolve(strict=True)
        except (OSError, RuntimeError):  # before Python 3.13 a loop of symlinks is a RuntimeError
            real = None
        if real in self._seen:
            return
        self._seen.add(real)
        if why := _why_not(real, within, self.home):
            self.left_out.append((file, why))
            return
        try:
            content = read_small_file(file, real=real, is_cut=True)
            size = max(len(content), file.stat().st_size)
        except OSError as error:
            self.left_out.append((file, f"it cannot be read ({error.strerror})"))
            return
        if b"\0" in content:
            self.left_out.append((file, "it is not text"))
            return
        text = content.decode("utf-8-sig", errors="replace")
        if not text.strip():
            return
        self._files.append((file, content, size))
        for imported in _imports(text, file.parent, self.home):
            if depth == DEEPEST_IMPORT:
                self.left_out.append((imported, f"imports lead deeper than {DEEPEST_IMPORT} files"))
            else:
                self.take(imported, within, depth=depth + 1)


def find_instructions(cwd: Path, root: Path, user_files: Sequence[Path], home: Path | None = None) -> Instructions:
    """The user's files, then those of each folder from the project's root down to `cwd`."""
    reader = InstructionReader(root=root, home=home)
    for file in user_files:
        if is_file(file):
            reader.take(file, Path(file.anchor))
    for folder in (*reversed(cwd.parents), cwd):
        if folder.is_relative_to(root):
            reader.take_folder(folder)
    return reader.take_found()


def nested_instructions(
    folders: Iterable[Path], cwd: Path, root: Path, told: Iterable[str], *, home: Path | None = None
) -> Instructions:
    """The files of folders below `cwd` and on the way to them, outermost first, but for the paths `told` before.

    Those count against the budget as they are now.
    """
    reader = InstructionReader(root=root, home=home)
    for path in map(Path, told):
        reader.take(path, Path(path.anchor))
    reader.take_found()
    ways = {way for folder in folders for way in (folder, *folder.parents)}
    for way in sorted(way for way in ways if way != cwd and way.is_relative_to(cwd)):
        reader.take_folder(way)
    return reader.take_found()


def instruction_paths(bodies: Iterable[Body]) -> list[str]:
    """The instruction files that the model was given, in these entries."""
    begins = f"<system-reminder>{_HEADING}"
    texts = (
        body.text if isinstance(body, User) else body.carried[body.carried.find(f"\n{begins}") + 1 :]
        for body in bodies
        if isinstance(body, Compaction) or (isinstance(body, User) and body.is_reminder)
    )
    texts = (text for text in texts if text.startswith(begins))
    return list(dict.fromkeys(path for text in texts for path in _TOLD.findall(text)))


def _shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Return the size that fits of each file: all of the small ones, and the same size of each large one."""
    shares, left = [0] * len(sizes), budget
    for done, number in enumerate(sorted(range(len(sizes)), key=lambda number: sizes[number])):
        shares[number] = min(sizes[number], left // (len(sizes) - done))
        left -= shares[number]
    return shares


def _beginning(content: bytes, most: int) -> bytes:
    """As many whole lines as fit, at least of a file whose first line does."""
    if len(content) <= most:
        return content
    return content[: content.rfind(b"\n", 0, most) + 1 or most]


def _imports(text: str, folder: Path, home: Path | None) -> Iterator[Path]:
    """The files that a text names as `@path`, outside of code. A name that is no file is no import."""
    for name in _IMPORT.findall(_CODE.sub("", text)):
        file = home / name[2:] if name.startswith("~/") and home else Path(normpath(folder / name))
        if is_file(file):
            yield file


def _why_not(real: Path | None, within: Path, home: Path | None) -> str:
    if real is None:
        return "it cannot be read"
    if not real.is_relative_to(within.resolve()):
        return "it leads out of the project"
    return "it leads to a file that may hold secrets" if is_secret(real, home) else ""
