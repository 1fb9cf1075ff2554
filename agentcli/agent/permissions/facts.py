"""Reads what a call is about, once: its command, the paths that it names and where they lead, its address."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct

from agentcli.agent.permissions.rules import PathGround
from agentcli.errors import ToolError
from agentcli.safety.addresses.judge import UrlVerdict
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places
from agentcli.safety.commands.records import Verdict as CommandVerdict
from agentcli.safety.paths.judge import judge_path
from agentcli.safety.paths.protected import is_protected, is_reviewed
from agentcli.safety.paths.secret import is_secret
from agentcli.tools.path_names import parse_name
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Tool, Workspace

# plain: a file of the workspace. outside: not in it. secret: may hold keys. protected: what programs run or obey.
# linked: a file with several names, one of which may be outside. odd: a name that may mean something else elsewhere.
Kind = Literal["plain", "outside", "secret", "protected", "linked", "odd"]

WHY = {
    "outside": "is outside the workspace",
    "secret": "may hold secrets",
    "protected": "is an auto-executed file (git hook, editor task, shell profile …)",
    "linked": "has other names, perhaps outside the workspace",
    "odd": "is a name that may mean something else",
}


class PathFacts(Struct, frozen=True):
    """A path as it was given, from the working directory on (`named`), and where it really leads.

    What `is_outside` may be of a kind that weighs more.
    """

    given: str
    named: Path
    real: Path
    access: Access
    kind: Kind
    is_outside: bool = False

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


class PathLookup:
    """Looks at the paths of one call, at each once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._real: dict[Path, Path] = {}
        self._facts: dict[tuple[str, Access], PathFacts] = {}

    @cached_property
    def ground(self) -> PathGround:
        workspace = self.workspace
        return PathGround(workspace.real_cwd, workspace.sandbox.roots[0], workspace.home)

    def is_readable(self, path: Path) -> bool:
        """True if the sandbox lets everybody read an absolute path."""
        try:
            self._real[path] = self.workspace.sandbox.validate_path(path, "read")
        except ToolError:
            return False
        return True

    def find(self, given: str, access: Access) -> PathFacts:
        """Return the facts of a path. Raises `ToolError` (invalid_parameters) for one that leads nowhere."""
        if (known := self._facts.get((given, access))) is None:
            named = self.workspace.lexical_path(given)
            if (real := self._real.get(named)) is None:
                real = self._real[named] = self.workspace.sandbox.real_path(named)
            known = self._facts[given, access] = self._judged(given, named, real, access)
        return known

    def find_real(self, given: str, access: Access) -> PathFacts:
        """Return the facts of a path that needs no resolving, or that cannot be resolved: it stands for itself."""
        return self._judged(given, Path(given), Path(given), access)

    def find_each(self, paths: tuple[str, ...], access: Access) -> list[PathFacts]:
        """Return the facts of the paths of a command that are known; a loop of links stands for itself."""
        found = []
        for path in known(paths):
            try:
                found.append(self.find(path, access))
            except ToolError:
                found.append(self.find_real(path, access))
        return found

    def of_effects(self, effects: Effects) -> list[PathFacts]:
        """Return the facts of the paths that a command reads, and of those that it writes or deletes."""
        return [
            *self.find_each(effects.reads, "read"),
            *self.find_each((*effects.writes, *effects.deletes), "write"),
        ]

    def _judged(self, given: str, named: Path, real: Path, access: Access) -> PathFacts:
        is_outside = not any(real.is_relative_to(root) for root in self.workspace.sandbox.roots)
        return PathFacts(given, named, real, access, self._kind(given, real, access), is_outside)

    def _kind(self, given: str, real: Path, access: Access) -> Kind:
        """By where the path leads first; by its name where that says more."""
        sandbox, home, cwd = self.workspace.sandbox, self.workspace.home, self.workspace.cwd
        is_granted = sandbox.knows(real, access)
        if not is_granted:
            by_place = judge_path(str(real), access=access, cwd=cwd, roots=sandbox.roots, home=home)
            if by_place != "plain":
                return by_place
        if is_granted or given != str(real):
            by_name = judge_path(parse_name(given), access=access, cwd=cwd, roots=sandbox.roots, home=home)
            if by_name in ("odd", "secret", "protected"):
                return by_name
        if access == "write" and sandbox.is_write_protected(real):
            return "protected"
        return "linked" if access == "write" and self._has_other_names(real) else "plain"

    def _has_other_names(self, real: Path) -> bool:
        try:
            status = self.workspace.sandbox.status(real)
        except OSError:
            return False
        return status is not None and status.kind == "file" and status.links > 1

    def is_kept_from_edits(self, path: PathFacts) -> bool:
        """True if the sandbox keeps a file from edits that nobody is asked about. What a project reviews is not."""
        if path.kind == "protected" and not path.is_outside:
            is_exempt = is_reviewed(self._below_root(path)) and not self.workspace.sandbox.is_write_protected(path.real)
            return not is_exempt
        return path.access == "write" and path.is_outside

    def has_secrets(self, path: PathFacts) -> bool:
        """True if a file may hold a secret: one that is about to be made holds none, whatever its name says."""
        if path.kind != "secret" or path.access == "read" or path.is_outside:
            return path.kind == "secret"
        by_place = is_secret(path.real.parent, self.workspace.home) or is_protected(self._below_root(path))
        return by_place or not is_secret(PurePath(path.real.name), None) or self._is_there(path.real)

    def _is_there(self, real: Path) -> bool:
        """Also where the system does not tell."""
        try:
            return self.workspace.sandbox.status(real) is not None
        except OSError:
            return True

    def _below_root(self, path: PathFacts) -> PurePath:
        root = next(root for root in self.workspace.sandbox.roots if path.real.is_relative_to(root))
        return path.real.relative_to(root)

    def shown(self, paths: tuple[str, ...]) -> list[str]:
        """Return the paths of a command that are known as the person reads them."""
        shown = [self.workspace.shown(Path(os.path.normpath(path))) for path in known(paths)]
        return ["this folder" if path == "." else path for path in shown]


class Need(Struct, frozen=True):
    """An exception the sandbox makes for as long as an allowed call runs."""

    path: Path
    access: Access
    kind: Kind


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
    def needs(self) -> tuple[Need, ...]:
        """The files that the sandbox keeps from the call: outside the workspace, secret, auto-executed."""
        if self.command is None:
            return tuple(Need(path.real, path.access, path.kind) for path in self.files if path.kind != "plain")
        needs = (
            Need(path.real, path.access, path.kind)
            for path in self.paths.of_effects(self.command.effects)
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
    sandbox = workspace.sandbox
    return Places(start, sandbox.roots, workspace.home, paths.is_readable, program_of_git=sandbox.program_of_git)


def known(things: tuple[str, ...]) -> tuple[str, ...]:
    """The things that can be told from a command's text."""
    return tuple(thing for thing in things if thing != UNKNOWN)


def host_of(url: str) -> str:
    """The host of an address, as the fetch would understand it; empty for what is no address."""
    try:
        return parse_url(url).host
    except BadUrl:
        return ""
