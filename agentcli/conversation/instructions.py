"""The beginning of a conversation: the system text, reminders about the environment, and instruction files.

Instruction files (AGENTS.md and the like) are untrusted data of a project, and marked with their paths.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from os.path import normpath
from pathlib import Path

from msgspec import Struct, field

from agentcli.conversation.entries import Body, Compaction, User, reminder
from agentcli.conversation.history import listed_names
from agentcli.conversation.rule_files import RuleFile, RuleFileFinder, read_project_file, split_frontmatter
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import is_file, read_small_file
from agentcli.tools.workspace import display_name

BUDGET = 32 * 1024  # bytes of all instruction files together
PER_FOLDER = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md")  # only the first that exists is read
LOCAL = ("AGENTS.local.md", "CLAUDE.local.md")  # files of the person's own, which are read in addition
_KINDS = {"AGENTS": "agents", "CLAUDE": "claude", "GEMINI": "gemini"}  # in `instructions.off`, by start of a file name
MAX_IMPORT_DEPTH = 5
MAX_NAMES = 40  # of the working directory's files

_MAX_LINE_BYTES = 8_192  # twice the longest path
_BRANCH = lazy_pattern(r"[^\s<>\x00-\x20\x7f-\xa0]{1,255}")  # other names are not shown, because some look like mark-up

_TOO_LARGE = "instruction files together exceed 32 KiB"
_HEADING = "Instruction files of the user and the project; nearer ones win, the user's own words win over all."
_OFFER = "Further rules of the project. Before you do what a description is about, read its file with file_read:"
_CODE = lazy_pattern(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|(`+)[^`].*?\2", re.MULTILINE | re.DOTALL)
_IMPORT = lazy_pattern(r"(?<![\w@.])@([\w./~-]*[\w/])")  # the group is the path
_SHOWN = lazy_pattern(r'^<instructions path="(.*)">$', re.MULTILINE)  # the path of a file in a reminder


class Instructions(Struct, frozen=True):
    """The instructions that the model gets at the same time."""

    files: tuple[tuple[Path, str], ...] = ()  # outermost first, each with its text
    offered: tuple[RuleFile, ...] = ()  # rules that the model may read
    notices: tuple[str, ...] = ()  # for the person: files left out or cut, and files with bad frontmatter

    def to_reminder(self) -> User | None:
        parts = [f'<instructions path="{path}">\n{text.strip()}\n</instructions>' for path, text in self.files]
        if self.offered:
            parts += [_OFFER, *(f"- {rule.path}: {rule.description}" for rule in self.offered)]
        return reminder("\n".join([_HEADING, *parts])) if parts else None


class InstructionReader(Struct, kw_only=True):
    """Reads instruction files, and the rule files that `finder` finds, within one budget; each text only once.

    Large files get equal shares. A project's file may be a link or import others by `@path`, but only to files inside
    the project that hold no secrets.
    """

    finder: RuleFileFinder
    # The files, rules and notices since the last `collect`:
    _files: list[tuple[Path, bytes, int]] = field(default_factory=list)  # a file, its beginning and its size in bytes
    _offered: list[RuleFile] = field(default_factory=list)
    _notices: list[str] = field(default_factory=list)
    _spent: int = 0  # bytes of the files that `collect` has returned
    _seen: set[Path | str] = field(default_factory=set)  # the real paths and the texts of all files read so far

    def collect(self) -> Instructions:
        """Return the files that were read since the last call, and take their size off the budget."""
        shares = _shares([len(content) for _, content, _ in self._files], BUDGET - self._spent)
        files = []
        for (file, content, size), share in zip(self._files, shares, strict=True):
            shown = _beginning(content, share)
            text = shown.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
            if not text.strip():
                self._leave_out(file, _TOO_LARGE)
                continue
            self._spent += len(shown)
            if len(shown) < size:
                missing = f"{(size - len(shown)) / 1024:.1f} of {size / 1024:.1f} KiB are missing because {_TOO_LARGE}"
                line = text.count("\n") + 1
                text += f"\n[{missing}: read the rest with file_read, path {file}, offset {line}]"
                self._notices.append(f"The model gets only the beginning of {file}: {missing}.")
            files.append((file, text))
        found = Instructions(tuple(files), tuple(self._offered), tuple(self._notices))
        self._files, self._offered, self._notices = [], [], []
        return found

    def read_folder(self, folder: Path) -> None:
        """Read a folder's instruction file, its rule files that always apply, and the person's local files."""
        shared, local = (self._existing(folder, names) for names in (PER_FOLDER, LOCAL))
        rules = self.finder.rule_files_in(folder)
        self._offered += [rule for rule in rules if rule.applies == "request"]
        for rule in rules:
            if rule.problem:
                why = f"cannot be read, so the rule always applies: {rule.problem}"
                self._notices.append(f"The frontmatter of {rule.path} {why}.")
        for file in (*shared[:1], *(rule.path for rule in rules if rule.applies == "always"), *local):
            self.read(file, self.finder.root)

    def _existing(self, folder: Path, names: Sequence[str]) -> list[Path]:
        wanted = [name for name in names if _KINDS[name.partition(".")[0]] not in self.finder.disabled]
        return [folder / name for name in wanted if is_file(folder / name)]

    def _leave_out(self, file: Path, why: str) -> None:
        self._notices.append(f"{file} was left out: {why}.")

    def read(self, file: Path, within: Path, *, depth: int = 0) -> None:
        """Read a file and its imports, which must all be in the folder `within`."""
        real = Path(os.path.realpath(file))
        if real in self._seen:
            return
        self._seen.add(real)
        content, problem = read_project_file(file, within, self.finder.home)
        if problem:
            self._leave_out(file, problem)
            return
        text = content.decode("utf-8-sig", errors="replace")
        if not (body := _without_frontmatter(text)) or body in self._seen:  # empty, or a copy of another tool's file
            return
        self._seen.add(body)
        self._files.append((file, content, max(len(content), file.stat().st_size)))
        for imported in _imports(text, file.parent, self.finder.home):
            if depth == MAX_IMPORT_DEPTH:
                self._leave_out(imported, f"imports lead deeper than {MAX_IMPORT_DEPTH} files")
            else:
                self.read(imported, within, depth=depth + 1)


def find_instructions(cwd: Path, user_files: Sequence[Path], *, finder: RuleFileFinder) -> Instructions:
    """Return the user's files, then those of each folder from the project's root down to `cwd`."""
    reader = InstructionReader(finder=finder)
    for file in user_files:
        if is_file(file):
            reader.read(file, Path(file.anchor))  # the user's files may import any file
    for folder in (*reversed(cwd.parents), cwd):
        if folder.is_relative_to(finder.root):
            reader.read_folder(folder)
    return reader.collect()


def nested_instructions(
    folders: Iterable[Path], files: Iterable[Path], cwd: Path, *, finder: RuleFileFinder, known: Iterable[str]
) -> Instructions:
    """Return the instruction files between `cwd` and `folders`, outermost first, and the rule files for `files`.

    The `known` paths, which the model has seen, are left out, but take their current size off the budget.
    """
    reader = InstructionReader(finder=finder)
    for path in map(Path, known):
        reader.read(path, Path(path.anchor))
    reader.collect()  # spends their part of the budget
    with_parents = {each for folder in folders for each in (folder, *folder.parents)}
    for folder in sorted(folder for folder in with_parents if folder != cwd and folder.is_relative_to(cwd)):
        reader.read_folder(folder)
    for rule in dict.fromkeys(rule for file in files for rule in finder.rule_files_for(file)):
        reader.read(rule.path, finder.root)
    return reader.collect()


def instruction_paths(bodies: Iterable[Body]) -> list[str]:
    """Return the paths of the instruction files that the model already has, from these entries."""
    start = f"<system-reminder>{_HEADING}"

    def reminder_in(body: Body) -> str:
        if isinstance(body, Compaction):  # the text that it carries may end with the reminder
            return f"\n{body.carried}".partition(f"\n{start}")[2]
        if isinstance(body, User) and body.is_reminder and body.text.startswith(start):
            return body.text
        return ""

    return list(dict.fromkeys(path for body in bodies for path in _SHOWN.findall(reminder_in(body))))


def _without_frontmatter(text: str) -> str:
    """Return a file's text without its frontmatter, which is all that differs in copies for several tools."""
    try:
        return split_frontmatter(text.replace("\r\n", "\n"))[1].strip()
    except ValueError:
        return text.strip()


def _shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Return how many bytes of each file fit into the budget: all of the small ones, equal parts of the large ones."""
    shares = [0] * len(sizes)
    smallest_first = sorted(range(len(sizes)), key=lambda number: sizes[number])
    for done, number in enumerate(smallest_first):
        equal_part = (budget - sum(shares)) // (len(sizes) - done)
        shares[number] = min(sizes[number], equal_part)
    return shares


def _beginning(content: bytes, max_bytes: int) -> bytes:
    """Return as many complete lines as fit, or a part of the first line if it does not fit."""
    last_line_end = content.rfind(b"\n", 0, max_bytes) + 1
    return content if len(content) <= max_bytes else content[: last_line_end or max_bytes]


def _imports(text: str, folder: Path, home: Path | None) -> Iterator[Path]:
    """Yield the files that a text imports as `@path`, outside of code. Other names after an `@` are ignored."""
    for name in _IMPORT.findall(_CODE.sub("", text)):
        file = home / name[2:] if name.startswith("~/") and home else Path(normpath(folder / name))
        if is_file(file):
            yield file


def system_prompt(*, small: bool, replace: str | None = None, append: str = "") -> str:
    """Return the system text, the same for all sessions of a kind, so that they share a provider's prompt cache."""
    name = "system_prompt_small.md" if small else "system_prompt.md"
    text = replace if replace is not None else Path(__file__).with_name(name).read_text("utf-8")
    return "\n\n".join(part.strip() for part in (text, append) if part.strip())


def environment_reminder(*, cwd: Path, platform: str, date: str, branch: str) -> User:
    """Return a reminder of where and when the session runs. It is not in the system text, because it changes."""
    git = f", git branch {branch}" if branch else ""
    return reminder(f"Working directory {display_name(str(cwd))}{git}. {platform}. {date}.")


def files_reminder(cwd: Path) -> User:
    """Return a reminder that lists the working directory, for small models, which otherwise guess file names."""
    try:
        names = sorted(f"{e.name}/" if e.is_dir() else e.name for e in cwd.iterdir() if not e.name.startswith("."))
    except OSError:
        names = []
    return reminder(f"Files here: {listed_names([*map(display_name, names)], MAX_NAMES) or 'none'}.")


def git_branch(root: Path) -> str:
    """Return the checked-out branch, which is read without running git; empty if there is none."""
    git = root / ".git"
    try:
        if git.is_file():  # in a worktree or submodule, this file names the folder
            git = (root / _read_line(git).removeprefix("gitdir:").strip()).resolve()
        head = _read_line(git / "HEAD")
    except (OSError, RuntimeError, ValueError):
        return ""
    name = head.removeprefix("ref: refs/heads/") if head.startswith("ref:") else ""
    return name if _BRANCH.fullmatch(name) else ""


def _read_line(file: Path) -> str:
    return read_small_file(file, max_bytes=_MAX_LINE_BYTES).decode().strip()
