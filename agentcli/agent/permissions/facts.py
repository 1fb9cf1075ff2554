"""Reads what a call is about, once: its command, the paths that it names and where they lead, its address."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.safety.addresses.judge import UrlVerdict
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places
from agentcli.safety.commands.records import Verdict as CommandVerdict
from agentcli.safety.paths.judge import (
    PathFacts,
    PathGround,
    PathKind,
    is_protected,
    is_reviewed,
    is_secret,
    judge_path,
)
from agentcli.tools.command import Access
from agentcli.tools.path_names import parse_name
from agentcli.tools.sandbox import PathStatus
from agentcli.tools.tool import Tool, Workspace


class PathLookup:
    """Looks at the paths of one call, at each once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._looks: dict[tuple[Path, Access], PathStatus] = {}
        self._facts: dict[tuple[str, Access], PathFacts] = {}

    @cached_property
    def ground(self) -> PathGround:
        workspace = self.workspace
        return PathGround(workspace.real_cwd, self.roots[0], workspace.home)

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        return self.workspace.facts.roots

    def is_readable(self, path: Path) -> bool:
        """True if the sandbox lets everybody read an absolute path."""
        try:
            return self._look(path, "read").is_usable
        except ToolError:
            return False

    def _look(self, path: Path, access: Access) -> PathStatus:
        if (status := self._looks.get((path, access))) is None:
            status = self._looks[path, access] = self.workspace.look(path, access)
        return status

    def find(self, given: str, access: Access) -> PathFacts:
        """Return the facts of a path. Raises `ToolError` (invalid_parameters) for one that leads nowhere."""
        if (known := self._facts.get((given, access))) is None:
            named = self.workspace.lexical_path(given)
            known = self._facts[given, access] = self._judged(given, named, self._look(named, access), access)
        return known

    def find_real(self, given: str, access: Access) -> PathFacts:
        """Return the facts of a path that needs no resolving, or that cannot be resolved: it stands for itself."""
        path = Path(given)
        try:
            status = self._look(path, access)
        except ToolError:  # a loop of links
            status = PathStatus(real=path, place="inside")
        return self._judged(given, path, status, access)

    def find_each(self, paths: tuple[str, ...], access: Access) -> list[PathFacts]:
        """Return the facts of the paths of a command that are known; a loop of links stands for itself."""
        found = []
        for path in known(paths):
            try:
                found.append(self.find(path, access))
            except ToolError:
                found.append(self.find_real(path, access))
        return found

    def _judged(self, given: str, named: Path, status: PathStatus, access: Access) -> PathFacts:
        real, kind = status.real, self._kind(given, status, access)
        root = next((root for root in self.roots if real.is_relative_to(root)), None)
        holds_secrets, is_kept = kind == "secret", access == "write" and root is None
        if root is not None and access == "write" and kind in ("secret", "protected"):
            below = real.relative_to(root)
            if kind == "protected":
                is_kept = not is_reviewed(below) or status.is_auto_executed
            elif is_secret(PurePath(real.name), None) and not is_secret(real.parent, self.workspace.home):
                holds_secrets = is_protected(below) or status.kind is not None or bool(status.errno)
        return PathFacts(
            given, named, real, access, kind, is_outside=root is None, holds_secrets=holds_secrets, is_kept=is_kept
        )

    def _kind(self, given: str, status: PathStatus, access: Access) -> PathKind:
        """Return the kind of a path, judged by where it leads, and by its name where the name is more telling."""
        real, home, cwd, roots = status.real, self.workspace.home, self.workspace.cwd, self.roots
        if status.place != "granted":
            by_place = judge_path(str(real), access=access, cwd=cwd, roots=roots, home=home)
            if by_place != "plain":
                return by_place
        if status.place == "granted" or given != str(real):
            by_name = judge_path(parse_name(given), access=access, cwd=cwd, roots=roots, home=home)
            if by_name in ("odd", "secret", "protected"):
                return by_name
        if status.is_auto_executed:
            return "protected"
        return "linked" if access == "write" and status.kind == "file" and status.links > 1 else "plain"

    def opened_by(self, effects: Effects, search: GlobSearch) -> Iterator[PathFacts]:
        """The files of a command; a glob stands for itself and for the first files that it finds."""
        workspace = self.workspace
        opened: list[tuple[str, Access]] = [(path, "read") for path in known(effects.reads)]
        opened += [(path, "write") for path in known((*effects.writes, *effects.deletes))]
        for path in effects.names:
            # A message may end with the name of a file.
            if not re.search(r"\s", workspace.shown(Path(path))) or os.path.lexists(path):
                opened.append((path, "read" if is_secret(PurePath(path), workspace.home) else "write"))
        for path, access in opened:
            for each in (path, *search.found_by(path)):
                yield from self.find_each((each,), access)

    def shown(self, paths: tuple[str, ...]) -> list[str]:
        """Return the paths of a command that are known as the person reads them."""
        shown = [self.workspace.shown(Path(os.path.normpath(path))) for path in known(paths)]
        return ["this folder" if path == "." else path for path in shown]


class Need(Struct, frozen=True):
    """An exception the sandbox makes for as long as an allowed call runs."""

    path: Path
    access: Access
    kind: PathKind


class CallFacts(Struct, frozen=True):
    """The facts of a call. Rules, modes, the person and the sandbox all work from this record.

    `command` is set for a shell command, `files` are those of a file tool, `address` and `hosts` belong to a web tool;
    `hosts` are also those that a command names. `paths` looks at further paths. `can_try`: a command whose text does
    not tell may run on a stand-in of the workspace first.
    """

    tool: Tool
    arguments: Any
    paths: PathLookup
    command: CommandAnalysis | None = None
    files: tuple[PathFacts, ...] = ()
    hosts: tuple[str, ...] = ()
    address: UrlVerdict | None = None
    can_try: bool = False

    @property
    def workspace(self) -> Workspace:
        return self.paths.workspace

    @property
    def verdict(self) -> CommandVerdict | None:
        """The judgement on a command. Where nothing can be tried, what would be tried asks."""
        found = self.command.verdict if self.command is not None else None
        return "ask" if found == "try" and not self.can_try else found

    @property
    def text(self) -> str:
        """The command as it was given."""
        return str(self.arguments.command)

    @property
    def reads_outside(self) -> tuple[str, ...]:
        """The paths outside the workspace that a command reads."""
        reads = self.command.effects.reads if self.command is not None else ()
        return tuple(path.given for path in self.paths.find_each(reads, "read") if path.kind == "outside")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The files that the sandbox keeps from the call: outside the workspace, secret, auto-executed."""
        if self.command is None:
            return tuple(Need(path.real, path.access, path.kind) for path in self.files if path.kind != "plain")
        effects = self.command.effects
        written = self.paths.find_each((*effects.writes, *effects.deletes), "write")
        needs = (
            Need(path.real, path.access, path.kind)
            for path in (*self.paths.find_each(effects.reads, "read"), *written)
            if path.kind in ("secret", "protected") or (path.kind == "outside" and path.access == "write")
        )
        return tuple(dict.fromkeys(needs))


def judge(tool: Tool, arguments: Any, workspace: Workspace) -> CallFacts:
    """Read a call. Raises `ToolError` for a path that leads nowhere."""
    paths = PathLookup(workspace)
    match tool.effect:
        case "command" if isinstance(getattr(arguments, "command", None), str):
            command = analyse(arguments.command, places=_places(paths, getattr(arguments, "cwd", None)))
            return CallFacts(tool, arguments, paths, command, hosts=known(command.effects.hosts))
        case "read" | "edit":
            access: Access = "write" if tool.effect == "edit" else "read"
            given = (getattr(arguments, name, None) for name in tool.file_arguments or ("path",))
            files = tuple(paths.find(path, access) for path in given if isinstance(path, str))
            return CallFacts(tool, arguments, paths, files=files)
        case "web":
            url = getattr(arguments, "url", None)
            address = workspace.web.judge(url) if url is not None and workspace.web is not None else None
            hosts = (host_of(url),) if isinstance(url, str) else ()
            return CallFacts(tool, arguments, paths, hosts=hosts, address=address)
        case _:
            return CallFacts(tool, arguments, paths)


def _places(paths: PathLookup, cwd: str | None) -> Places:
    """The places that a command is judged by."""
    workspace = paths.workspace
    start = paths.find(cwd, "read").real if cwd else (workspace.shell_cwd or workspace.real_cwd)

    def program_of_git(folder: Path) -> str:
        return workspace.look(folder, "git").git_program

    return Places(start, paths.roots, workspace.home, paths.is_readable, program_of_git=program_of_git)


def known(things: tuple[str, ...]) -> tuple[str, ...]:
    """The things that can be told from a command's text."""
    return tuple(thing for thing in things if thing != UNKNOWN)


def host_of(url: str) -> str:
    """The host of an address, as the fetch would understand it; empty for what is no address."""
    try:
        return parse_url(url).host
    except BadUrl:
        return ""


_MAX_SEARCH_S = 0.5  # for the globs of a command
_MAX_FOUND = 1_000  # files that a glob of a command finds


class GlobSearch:
    """Finds files by globs, as a shell does, for a short time; it `is_cut_off` where that is not enough.

    It `finds_hidden` files by `*` where bash's option `dotglob` is set.
    """

    def __init__(self, finds_hidden: bool) -> None:
        self.finds_hidden = finds_hidden
        self.is_cut_off = False
        self._deadline = time.monotonic() + _MAX_SEARCH_S

    def found_by(self, glob: str) -> list[str]:
        if not re.search(r"[*?\[]", glob):
            return []
        found = [*islice(self._below("/", glob.replace("[^", "[!").strip("/").split("/")), _MAX_FOUND + 1)]
        self.is_cut_off |= len(found) > _MAX_FOUND
        return found[:_MAX_FOUND]

    def _below(self, folder: str, parts: Sequence[str]) -> Iterator[str]:
        """The paths below a folder. The time counts only here: nothing is found without reading a folder."""
        if not parts:
            yield folder
            return
        part, rest = parts[0], parts[1:]
        names = [part]
        if re.search(r"[*?\[]", part):
            if time.monotonic() > self._deadline:
                self.is_cut_off = True
                return
            try:
                with os.scandir(folder) as entries:
                    all = [entry.name for entry in entries if not rest or entry.is_dir()]
            except OSError:
                return
            is_open = self.finds_hidden or part.startswith(".")
            names = [name for name in all if (is_open or not name.startswith(".")) and fnmatchcase(name, part)]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118  # as text, which is faster
            if rest or os.path.lexists(path):
                yield from self._below(path, rest)
