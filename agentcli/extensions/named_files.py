"""Finds the file names in a command that its programs may be: what a person trusts with the command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from msgspec import Struct

MAX_NESTED = 4  # commands in words of commands: sh -c '…'

_INTERPRETER = re.compile(
    r"(?:python|pypy|node|nodejs|deno|bun|tsx|ts-node|ruby|perl|php|lua|Rscript|java|bash|sh|zsh|dash|ksh|fish|source)"
    r"[\d.]*(?:\.exe)?"
)
_TAKES_A_VALUE = frozenset("-r --require --import --loader --experimental-loader --env-file -W -X -cp".split())
_FOLDER_PROGRAMS = ("__main__.py", "index.js", "index.mjs", "index.cjs", "index.ts", "package.json")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*)|[^}\w][^}]*)?\})")
_OF_PROJECT = re.compile(r"\$\(\s*git rev-parse --show-toplevel[^()`]*\)|`\s*git rev-parse --show-toplevel[^()`]*`")
_OF_FOLDER = re.compile(r"\$\(\s*pwd(?:\s+-[LP]+)?\s*\)|`\s*pwd(?:\s+-[LP]+)?\s*`")
_BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
_MAX_BRACED = 64  # words that braces make of one
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_TAKES_A_MODULE = re.compile(r"-[A-Za-z]*m")
_WITH_MODULE = re.compile(r"-[A-Za-z]*?m([A-Za-z_][\w.]*)")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
# What programs read or write, not run, unless it is what the command starts.
_DATA_ENDINGS = frozenset(
    ".json .jsonl .ndjson .log .out .pid .db .sqlite .sqlite3 .csv .tsv .txt .md .rst .lock .xml .html .css .svg .png"
    " .jpg .jpeg .gif .pdf .parquet .zip .gz .tar .sock".split()
)


class NamedFile(Struct, frozen=True):
    """An absolute path or a glob that a command names.

    It `is_started` where the command or an interpreter begins with it.
    """

    path: str
    is_started: bool

    @property
    def is_data(self) -> bool:
        return not self.is_started and PurePath(self.path).suffix.lower() in _DATA_ENDINGS


def named_files(command: str, *, cwd: str, root: str, variables: Mapping[str, str] = {}) -> set[NamedFile]:
    """Return what the words of a shell command name, taken relative to `cwd`, the project's `root` and each `cd`.

    It is generous: most of these paths do not exist. What a command writes its output to is not among them.
    """
    known = {**variables, "CLAUDE_PROJECT_DIR": root, "AGENTCLI_PROJECT_DIR": root, "PWD": cwd}
    text = _OF_FOLDER.sub("${PWD}", _OF_PROJECT.sub("${AGENTCLI_PROJECT_DIR}", command))
    return set(_Reading(root, [cwd, root], known).files_in(text, MAX_NESTED))


class _Reading:
    """Reads one command. `folders` are those that names may be relative to by now."""

    def __init__(self, root: str, folders: list[str], variables: dict[str, str]) -> None:
        self._root = root
        self._folders = folders
        self._variables = variables

    def files_in(self, text: str, levels: int) -> Iterator[NamedFile]:
        is_first, is_output, is_behind, interpreter, before = True, False, False, "", ""
        for raw in _words(text):
            if raw and not raw.strip("();<>|&"):
                is_output = raw.startswith((">", "&>")) and "(" not in raw
                if not is_output and ("<" not in raw or "(" in raw):
                    is_first, interpreter, before = True, "", ""
                is_behind = raw.endswith(")")
                continue
            if is_output:
                is_output = False
                continue
            if is_first and (assigned := _ASSIGNMENT.fullmatch(raw)):
                self._variables[assigned[1]] = self._expanded(assigned[2])
                yield from self._named(assigned[2], is_started=False)
                continue
            word = self._expanded(raw)
            if is_behind and word.startswith("/"):  # $(…)/name
                yield from self._named(word.lstrip("/"), is_started=True)
            is_behind = False
            if any(space in word for space in " \t\n;|&") and levels:
                yield from self.files_in(word, levels - 1)
            if _TAKES_A_MODULE.fullmatch(before) and _MODULE.fullmatch(word):
                yield from self._module(word)
            elif interpreter.rpartition("/")[2].startswith(("python", "pypy")) and (
                found := _WITH_MODULE.fullmatch(word)
            ):
                yield from self._module(found[1])
            elif before in ("cd", "pushd"):
                self._folders += [os.path.join(folder, word) for folder in self._folders]  # noqa: PTH118  # text alone
            if not is_first or "/" in word:
                yield from self._named(word, is_started=is_first or bool(interpreter))
            elif path := self._variables.get("PATH"):
                for folder in path.split(":"):
                    yield from self._named(f"{self._expanded(folder) or '.'}/{word}", is_started=True)
            if interpreter and not word.startswith("-"):
                yield from self._started_folder(word)
                interpreter = interpreter if before in _TAKES_A_VALUE else ""
            if _INTERPRETER.fullmatch(word.rpartition("/")[2]) or word == ".":
                interpreter = word
            is_first, before = False, word

    def _expanded(self, word: str) -> str:
        """A word with variables replaced; one that is not known may well be the project's folder."""

        def value(found: re.Match[str]) -> str:
            return self._variables.get(found[1] or found[2]) or found[3] or self._root

        return _VARIABLE.sub(value, word)

    def _named(self, word: str, *, is_started: bool) -> Iterator[NamedFile]:
        """The files that one word may name, also after `--option=`, and after what only the shell knows."""
        names = {word, word.partition("=")[2]}
        if word.startswith("-"):
            names.add(word[2:])
        if re.search(r"[${`]", word):
            names.add(re.split(r"[})`]", word)[-1].lstrip("/"))
            names.update(_unbraced(word))
        for name in names - {"", "-", ".", "/"}:
            for folder in self._folders if not name.startswith(("/", "~")) else [""]:
                path = os.path.expanduser(name) if not folder else f"{folder}/{name}"  # noqa: PTH111  # text alone
                if path.startswith("/") and "\0" not in path:
                    yield NamedFile(os.path.normpath(path), is_started)

    def _started_folder(self, word: str) -> Iterator[NamedFile]:
        """The files that an interpreter begins with where it is given a folder."""
        for file in self._named(word, is_started=True):
            yield from (NamedFile(f"{file.path}/{name}", is_started=True) for name in _FOLDER_PROGRAMS)

    def _module(self, name: str) -> Iterator[NamedFile]:
        """The files of `python -m NAME`, beside those of the packages around it."""
        parts = name.split(".")
        for folder in (*self._folders, *(f"{folder}/src" for folder in self._folders)):
            for count in range(1, len(parts) + 1):
                yield NamedFile("/".join((folder, *parts[:count], "__init__.py")), is_started=True)
            yield NamedFile("/".join((folder, *parts)) + ".py", is_started=True)
            yield NamedFile("/".join((folder, *parts, "__main__.py")), is_started=True)


def _unbraced(word: str) -> list[str]:
    """Expand the braces of a word as a shell does; a range becomes a wildcard."""
    done, waiting = list[str](), [word]
    while waiting and len(done) + len(waiting) <= _MAX_BRACED:
        word = waiting.pop()
        if not (found := _BRACES.search(word)):
            done.append(word)
            continue
        parts = found[1].split(",") if "," in found[1] else ["*"]
        waiting += [word[: found.start()] + part + word[found.end() :] for part in parts]
    return done


def _words(text: str) -> list[str]:
    """The words and operators of a shell command; of one that no shell would read, what stands between spaces."""
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return re.split(r"[\s'\"();<>|&`]+", text)
