"""Pins the workspace files that trusted commands run: a changed file is not run until the person agrees."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from itertools import islice
from pathlib import Path, PurePath

from msgspec import Struct

from agentcli.errors import ConfigError
from agentcli.tools.tool import Ask

MAX_BYTES = 50_000_000  # for a larger program, its inode, size and time of change are pinned, not its contents
MISSING = ""  # the digest of a file that is not there
_MAX_MATCHES = 200  # of a glob
_MAX_BRACE_WORDS = 64  # to which the braces in one word are expanded
RUN, REFUSE = "Trust it and run it", "Do not run it"


class ProgramPins:
    """The files that the trusted commands of one configuration run, with their digests.

    Files in the working directory, in the project (`root`) and in `added` folders are pinned. `load_trusted` returns
    the digests that were stored with the trust in the project, by path; `store_trusted` stores more of them. Files of
    the person's own commands (all commands if `load_trusted` is None) are pinned as they are when the command is added.
    """

    def __init__(
        self,
        *,
        cwd: Path,
        root: Path,
        added: Sequence[Path] = (),
        load_trusted: Callable[[], Mapping[str, str]] | None,
        store_trusted: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._cwd, self._root = str(cwd), str(root)
        self._load_trusted, self._store_trusted = load_trusted, store_trusted
        self._folders = dict.fromkeys((self._cwd, self._root, *map(str, added)))
        # By command: all files that it names, the pinned digests by path, and those that `changed_files` found last.
        self._files: dict[str, set[NamedFile]] = {}
        self._pinned: dict[str, dict[str, str]] = {}
        self._last_digests: dict[str, dict[str, str]] = {}
        self._project_commands: set[str] = set()  # commands of the project's files

    def add(self, command: str, *, is_of_project: bool = False, variables: Mapping[str, str] = {}) -> None:
        """Pin a command's files: a project's by the digests stored with its trust, others by the current ones."""
        is_newly_of_project = is_of_project and command not in self._project_commands
        if command in self._files and not is_newly_of_project:
            return
        self._files[command] = named_files(command, cwd=self._cwd, root=self._root, variables=variables)
        if is_of_project:
            self._project_commands.add(command)
        if is_of_project and self._load_trusted is not None:
            patterns = [file.path for file in self._files_in_folders(command)]  # paths, and globs among them
            trusted = self._load_trusted().items()
            self._pinned[command] = {
                path: digest for path, digest in trusted if any(_matches(path, pattern) for pattern in patterns)
            }
        else:
            self._pinned[command] = self.current_digests(command)

    def add_folders(self, folders: Sequence[Path]) -> None:
        """Pin the files in these folders, too, as they are now."""
        if all(str(folder) in self._folders for folder in folders):
            return
        files_before = {command: self._files_in_folders(command) for command in self._files}
        self._folders |= dict.fromkeys(map(str, folders))
        for command, files in files_before.items():
            pinned_before = {file.path for file in _with_glob_matches(files)}
            current = self.current_digests(command).items()
            # The pins of files in the earlier folders stay as they are: these files may have changed since.
            self._pinned[command] |= {path: digest for path, digest in current if path not in pinned_before}

    def _files_in_folders(self, command: str) -> list[NamedFile]:
        starts = tuple(f"{folder.rstrip('/')}/" for folder in self._folders)
        return [file for file in self._files[command] if file.path.startswith(starts)]

    def current_digests(self, command: str) -> dict[str, str]:
        """Return the digests of the files that a command runs, as they are now, by path."""
        pinned = self._pinned.get(command, {})
        paths = [file.path for file in _with_glob_matches(self._files_in_folders(command)) if _is_program(file, pinned)]
        return {path: digest for path in paths if (digest := file_digest(path)) != MISSING}

    def changed_files(self, command: str) -> Sequence[Path]:
        """Return the files of a command that are not as they were when it was trusted."""
        current, pinned = self.current_digests(command), self._pinned[command]
        paths = sorted(current.keys() | pinned.keys())
        changed = [path for path in paths if current.get(path, MISSING) != pinned.get(path, MISSING)]
        if changed and command in self._project_commands and self._load_trusted is not None:
            trusted = self._load_trusted()  # the person may have trusted the project again meanwhile
            trusted_again = [path for path in changed if trusted.get(path) == current.get(path, MISSING)]
            pinned.update({path: trusted[path] for path in trusted_again})
            changed = [path for path in changed if path not in trusted_again]
        self._last_digests[command] = current
        return [Path(path) for path in changed]

    def accept_changes(self, command: str) -> None:
        """Trust the files of a command as the last call of `changed_files` found them. Raises `ConfigError`."""
        accepted = self._last_digests[command]
        deleted = {path: MISSING for path in self._pinned[command] if path not in accepted}
        for each in self._files:  # the command itself, and others that run the same files
            paths = [file.path for file in _with_glob_matches(self._files_in_folders(each))]
            pins = self._pinned[each] | {path: accepted[path] for path in paths if path in accepted}
            self._pinned[each] = {path: digest for path, digest in pins.items() if path not in deleted}
        if command in self._project_commands and self._load_trusted is not None:
            self._store_trusted({**deleted, **accepted})

    def digests_to_trust(self) -> dict[str, str]:
        """Return the current digests of the project's files, to store with the trust; `MISSING` for missing files."""
        digests = {file.path: MISSING for command in self._project_commands for file in self._files_in_folders(command)}
        for command in self._project_commands:
            digests |= self.current_digests(command)
        return digests

    def program_files(self) -> list[Path]:
        """Return the real paths of all files that the commands run, which the sandbox protects from commands."""
        programs = {
            os.path.realpath(file.path)
            for command in self._files
            for file in _with_glob_matches(self._files_in_folders(command))
            if _is_program(file, self._pinned[command])
        }
        return [Path(path) for path in sorted(programs) if os.path.isfile(path)]  # noqa: PTH113


async def why_denied(
    programs: ProgramPins, command: str, runner: str, *, ask: Ask | None, on_notice: Callable[[str], None]
) -> str:
    """Return why `runner` (a hook, a server) may not run a command; empty if it may. Asks the person about changes."""
    # Files may change while the person is asked, so they are compared again after each answer.
    while changed := await asyncio.to_thread(programs.changed_files, command):
        names = ", ".join(map(str, changed))
        verb, what = ("have", "them") if len(changed) > 1 else ("has", "it")
        why = f"{names} {verb} changed since you trusted {what}, and {runner} would run {what} outside the sandbox."
        if ask is None or await ask(why, (RUN, REFUSE)) != RUN:
            return why
        try:
            programs.accept_changes(command)
        except ConfigError as error:  # the trust could not be stored, and lasts only until this program ends
            on_notice(str(error))
    return ""


def _matches(path: str, name: str) -> bool:
    """Return True if a name, which may be a glob, matches a path."""
    return path == name or (path.count("/") == name.count("/") and fnmatchcase(path, name))


def _with_glob_matches(files: Iterable[NamedFile]) -> Iterator[NamedFile]:
    for file in files:
        yield file
        if has_magic(file.path):
            for path in islice(iglob(file.path), _MAX_MATCHES):  # noqa: PTH207  # text, which a Path would change
                yield NamedFile(path, file.is_started)


def _is_program(file: NamedFile, pinned: Mapping[str, str]) -> bool:
    """Return True for a file that is pinned or may be run. A data file may be run only if it is executable."""
    if file.path in pinned:
        return True
    try:
        status = os.stat(file.path)  # noqa: PTH116  # many paths, most of which do not exist
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and (not file.is_data or bool(status.st_mode & 0o111))


def file_digest(path: str) -> str:
    """Return a hash of the real path and the contents of a file; `MISSING` if there is no file."""
    # The real path is part of it, because a program finds files beside itself, so a new link is a change.
    digest = hashlib.sha256(os.fsencode(os.path.realpath(path)) + b"\0")
    try:
        # Without `O_NONBLOCK`, a pipe in the file's place would block.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return MISSING
            if status.st_size > MAX_BYTES:
                digest.update(f"{status.st_ino} {status.st_size} {status.st_ctime_ns}".encode())
            else:
                digest.update(file.read(MAX_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return MISSING
    except OSError as error:
        return f"unreadable ({error.errno})"  # so that it counts as changed when it becomes readable
    return digest.hexdigest()


_INTERPRETER = re.compile(
    r"(?:python|pypy|node|nodejs|deno|bun|tsx|ts-node|ruby|perl|php|lua|Rscript|java|bash|sh|zsh|dash|ksh|fish|source)"
    r"[\d.]*(?:\.exe)?"
)
# Options of interpreters whose value is not the script.
_OPTIONS_WITH_VALUE = frozenset("-r --require --import --loader --experimental-loader --env-file -W -X -cp".split())
_FOLDER_PROGRAMS = ("__main__.py", "index.js", "index.mjs", "index.cjs", "index.ts", "package.json")
# `$NAME` (group 1), `${NAME…}` (2), `${NAME:-default}` (3).
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*)|[^}\w][^}]*)?\})")
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_MODULE_OPTION = re.compile(r"-[A-Za-z]*?m([A-Za-z_][\w.]*)")  # joined with its value: -mserver, -umserver
# Endings of data files, which commands read or write. They are programs only at the beginning of a command.
_DATA_ENDINGS = frozenset(
    ".json .jsonl .ndjson .log .out .pid .db .sqlite .sqlite3 .csv .tsv .txt .md .rst .lock .xml .html .css .svg .png"
    " .jpg .jpeg .gif .pdf .parquet .zip .gz .tar .sock".split()
)


class NamedFile(Struct, frozen=True):
    """An absolute path or glob in a command. It `is_started` if a command or an interpreter runs it."""

    path: str
    is_started: bool

    @property
    def is_data(self) -> bool:
        return not self.is_started and PurePath(self.path).suffix.lower() in _DATA_ENDINGS


def named_files(command: str, *, cwd: str, root: str, variables: Mapping[str, str] = {}) -> set[NamedFile]:
    """Return all files that the words of a command may name, except those that its output is redirected to.

    Names may be relative to `cwd`, to `root`, and to the folders that the command changes to. It is better to return
    too many files than too few: one that does not exist costs nothing, one that is missed could be changed unnoticed.
    """
    known = {**variables, "CLAUDE_PROJECT_DIR": root, "AGENTCLI_PROJECT_DIR": root, "PWD": cwd}
    return set(_CommandReader(root, [cwd, root], known).files_in(command, max_nested=4))


class _CommandReader(Struct):
    """Reads one command. Names may be relative to `folders`, which each `cd` extends."""

    root: str
    folders: list[str]
    variables: dict[str, str]

    def files_in(self, text: str, max_nested: int) -> Iterator[NamedFile]:
        """Yield the files that a text names, also in words that are commands (`sh -c '…'`), to `max_nested` levels."""
        for words in _simple_commands(text):
            is_program = True  # the word names the program that is run; the words after it are arguments
            awaits_script = False  # True between an interpreter and its script
            previous = ""
            for raw in words:
                if is_program and (assigned := _ASSIGNMENT.fullmatch(raw)):  # `NAME=value program`
                    self.variables[assigned[1]] = self._expand_variables(assigned[2])
                    yield from self._files_named_by(assigned[2], is_started=False)
                    continue
                word = self._expand_variables(raw)
                if max_nested and re.search(r"[\s;|&]", word):  # the word may be a command itself
                    yield from self.files_in(word, max_nested - 1)
                if previous in ("cd", "pushd"):
                    self.folders += [os.path.join(folder, word) for folder in self.folders]  # noqa: PTH118 - text
                if is_program:
                    yield from self._program_files(word)
                else:
                    yield from self._files_named_by(word, is_started=awaits_script)
                for option in (previous + word, word):  # `-m server` is two words, joined here; `-mserver` is one
                    if module := _MODULE_OPTION.fullmatch(option):
                        yield from self._module_files(module[1])
                if awaits_script and not word.startswith("-"):
                    yield from self._entry_points(word)
                    awaits_script = previous in _OPTIONS_WITH_VALUE  # then the word was not the script
                if _INTERPRETER.fullmatch(word.rpartition("/")[2]) or word == ".":
                    awaits_script = True
                is_program, previous = False, word

    def _expand_variables(self, word: str) -> str:
        """Replace variables; an unknown one is probably the project's folder."""
        return _VARIABLE.sub(lambda found: self.variables.get(found[1] or found[2]) or found[3] or self.root, word)

    def _program_files(self, word: str) -> Iterator[NamedFile]:
        """Yield the files that the first word of a command may name: a path, or a program in the folders of PATH."""
        if "/" in word:
            yield from self._files_named_by(word, is_started=True)
            if word.startswith("/"):  # `$(…)/name` is split so that a command `/name` begins
                yield from self._files_named_by(word.lstrip("/"), is_started=True)
                yield from self._entry_points(word.lstrip("/"))
        elif path := self.variables.get("PATH"):
            for folder in path.split(":"):
                yield from self._files_named_by(f"{self._expand_variables(folder) or '.'}/{word}", is_started=True)

    def _files_named_by(self, word: str, *, is_started: bool) -> Iterator[NamedFile]:
        """Yield the files that a word may name: as it is, by one of its parts, or after a shell has expanded it.

        They are programs if the word `is_started`, and may be data if it is an argument.
        """
        names = {word, word.partition("=")[2]}  # `x` of `--option=x`
        if word.startswith("-"):
            names.add(word[2:])  # `x` of `-Ix`
        if re.search(r"[${`]", word):  # `x` of `${DIR}/x` and of `$(command)/x`, and each choice of `{a,b}`
            names |= {re.split(r"[})`]", word)[-1].lstrip("/"), *_expand_braces(word)}
        for name in names - {"", "-", ".", "/"}:
            is_absolute = name.startswith(("/", "~"))
            paths = [os.path.expanduser(name)] if is_absolute else [f"{folder}/{name}" for folder in self.folders]  # noqa: PTH111
            for path in paths:
                if path.startswith("/") and "\0" not in path:  # `~name` without a person of this name is no path
                    yield NamedFile(os.path.normpath(path), is_started)

    def _entry_points(self, word: str) -> Iterator[NamedFile]:
        """Yield the files that an interpreter runs first if the word is a folder."""
        for file in self._files_named_by(word, is_started=True):
            yield from (NamedFile(f"{file.path}/{name}", is_started=True) for name in _FOLDER_PROGRAMS)

    def _module_files(self, name: str) -> Iterator[NamedFile]:
        """Yield the files of `python -m NAME`, which may be below `src`, and those of the packages around it."""
        parts = name.split(".")
        for folder in (*self.folders, *(f"{folder}/src" for folder in self.folders)):
            packages = ("/".join((folder, *parts[:count], "__init__.py")) for count in range(1, len(parts) + 1))
            module = "/".join((folder, *parts))
            for path in (*packages, f"{module}.py", f"{module}/__main__.py"):
                yield NamedFile(path, is_started=True)


def _expand_braces(word: str) -> list[str]:
    """Expand the braces of a word as a shell does; a range such as `{1..9}` becomes `*`. Too many words are cut off."""
    expanded, waiting = list[str](), [word]
    while waiting and len(expanded) + len(waiting) <= _MAX_BRACE_WORDS:
        word = waiting.pop()
        if not (braces := _BRACES.search(word)):
            expanded.append(word)
            continue
        choices = braces[1].split(",") if "," in braces[1] else ["*"]
        waiting += [word[: braces.start()] + choice + word[braces.end() :] for choice in choices]
    return expanded


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell script, without the files that output goes to."""
    # Lines that a backslash continues are joined first; other line ends become `;`.
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # without comments, in which a file could hide
    try:
        tokens = list(lexer)
    except ValueError:  # an open quotation mark: no shell would run it
        tokens = re.split(r"[\s'\"();<>|&`]+", text)
    words: list[str] = []
    is_output = False  # True for the word after `>`
    for token in tokens:
        is_operator = token != "" and not token.strip("();<>|&")  # an empty one was in quotation marks
        if not is_operator:
            words += [token] if token and not is_output else []
            is_output = False
        elif token.startswith((">", "&>")) and "(" not in token:
            is_output = True
        # The command ends at `;`, `|` and the like, also at `<(`, but not at `<`: the file after it is another word.
        elif "(" in token or "<" not in token:
            yield words
            words, is_output = [], False
    yield words
