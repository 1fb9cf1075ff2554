"""Decides if a program may look at a path, and recognizes paths whose loss ruins the system."""

from __future__ import annotations

import fnmatch
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentcli.safety.commands.arguments import names
from agentcli.safety.commands.reader.syntax import Field, State, normal
from agentcli.safety.commands.records import Places


def is_system_path(field: Field, state: State, *, of_home: bool = True) -> bool:
    """True for the root, a folder the system stands on, a home, or everything inside one of them.

    With `of_home` false the home itself counts, but not everything inside it.
    """
    paths = state.paths(field) if field.text else []
    home = normal(state.home) if state.home is not None else "/"
    return any(_is_system_path(normal(path), field.is_glob, home, of_home=of_home) for path in paths)


def _is_system_path(path: str, is_glob: bool, home: str, *, of_home: bool) -> bool:
    parts, home_parts = _parts(path), _parts(home)
    places = {*names("paths", "system"), *("/" + "/".join(home_parts[:count]) for count in range(len(home_parts) + 1))}
    if not is_glob:
        return path in places
    while parts and is_open(parts[-1]):
        parts = parts[:-1]
    if not of_home and parts == home_parts:
        return path == home
    return any(_finds_path(parts, _parts(place)) for place in places)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _finds_path(globs: Sequence[str], parts: Sequence[str]) -> bool:
    return len(globs) == len(parts) and all(map(finds, globs, parts))


def is_open(glob: str) -> bool:
    """True if a glob finds most names, or most hidden ones: `*`, `.*`, `[!.]*`, `[a-z]*`, `.??*`."""
    if "*" not in glob:
        return False
    return any(sum(finds(glob, f"{dot}{letter}xyz") for letter in string.ascii_lowercase) > 13 for dot in ("", "."))


def finds(glob: str, name: str) -> bool:
    """True if a glob of one part finds a name. A hidden name is found only by a literal dot."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    plain = re.sub(r"\[\[:\w+:\]\]", "?", re.sub(r"\*+", "*", glob))
    return fnmatch.fnmatchcase(name, plain.replace("[^", "[!"))


_PUBLIC, _STREAMS, _FOLDERS, _SECRETS = (names("paths", kind) for kind in ("public", "streams", "folders", "secrets"))
WILD = re.compile(r"[*?\[]")  # for the shell, git and ripgrep
# All files of a kind: `*.ts`, `src/*.{ts,tsx}`.
_OF_KINDS = re.compile(r"(?:[\w/*-]*/)?\*\.(\w+|\{\w+(?:,\w+)*\})")
_SEEN_WHOLE = ("content", "lines")


class ReadCheck:
    """Checks the paths of one command and remembers them. `reads` are absolute."""

    def __init__(self, places: Places, state: State) -> None:
        self.places = places
        self.state = state
        self.reads: list[str] = []

    def problem(self, fields: Iterable[Field], kind: str) -> str:
        """The reason why a path may not be looked at, or an empty string. `kind` is as in `Options.operands`."""
        return next((why for field in fields if (why := self._problem(field, kind))), "")

    def outside_problem(self, fields: Iterable[Field]) -> str:
        """The reason why paths that a command names need a person: one is outside the workspace, or holds secrets."""
        for field in fields:
            for path in self.state.paths(field) or self.state.likely_paths(field):
                known = self._above_glob(path) if field.is_glob else path
                if normal(known) not in _STREAMS and path not in _PUBLIC and not self.places.is_readable(Path(known)):
                    return f"{field.text} may hold secrets or is outside the workspace"
        return ""

    def within(self, folder: Field) -> ReadCheck | None:
        """The same check from another folder; None if that may not be entered."""
        if not folder.is_known or folder.is_glob or self.problem([folder], "names"):
            return None
        return ReadCheck(self.places, self.state.entering(folder))

    def _problem(self, field: Field, kind: str) -> str:
        if kind == "text" and not field.is_glob:
            return ""
        if not field.is_known:
            return "a path depends on what only the shell knows"
        if field.text in ("", "-"):
            return ""
        paths = self.state.paths(field)
        if not paths:
            return "it is not certain in which folder it runs"
        for path in paths:
            self.reads.append(normal(path))
            is_fine = self._glob_is_fine(path, kind) if field.is_glob else self._is_fine(path, kind)
            if not is_fine:
                return f"{field.text} may hold secrets or is outside the workspace"
        return ""

    def _is_fine(self, path: str, kind: str) -> bool:
        if kind in ("content", "lines", "search", "sizes") and path in _PUBLIC:
            return True
        if kind in ("lines", "sizes") and path in _FOLDERS:
            return True
        if self.places.is_readable(Path(path)):
            return True
        return kind == "facts" and not path.endswith("..") and self.places.is_readable(Path(path).parent)

    def filter_problem(self, fields: Iterable[Field]) -> str:
        """The reason why a search may not be narrowed to files of these names, as with `grep --include` and `rg -g`."""
        for field in fields:
            places = self.state.places or ("/",)
            is_fine = all(self._kind_is_fine(field.text, place, "filter") for place in places)
            if not field.is_known or not (is_fine or field.text.startswith("!")):
                return f"{field.text} looks for secrets"
        return ""

    def _above_glob(self, path: str) -> str:
        """The folder above the first part with wildcards."""
        found = WILD.search(path)
        return path[: found.start()].rpartition("/")[0] or "/" if found else path

    def _glob_is_fine(self, path: str, kind: str) -> bool:
        folder = self._above_glob(path)
        parts = path[len(folder) :].split("/")
        if ".." in parts or not self.places.is_readable(Path(folder)):
            return False
        if any(part.startswith(".") and WILD.search(part) for part in parts):
            return False  # `.*` finds the parent folder
        return kind not in (*_SEEN_WHOLE, "search") or self._kind_is_fine(parts[-1], path.rpartition("/")[0], kind)

    def _kind_is_fine(self, glob: str, folder: str, kind: str) -> bool:
        """True for a glob of files whose ending is not one of secrets. A search skips single files that hold some."""
        if not (found := _OF_KINDS.fullmatch(glob)):
            return kind == "search" and not glob.strip("*")  # no more than a search through the folder
        endings = [f".{ending}" for ending in found[1].strip("{}").split(",")]
        finds = [f"{name}{ending}" for ending in endings for name in ("", "x")]
        finds += [name for name in _SECRETS if kind in _SEEN_WHOLE and name.endswith(tuple(endings))]
        return all(self.places.is_readable(Path(folder, name)) for name in finds)
