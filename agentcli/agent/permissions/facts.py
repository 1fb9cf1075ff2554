"""Finds the facts of a call, once: its command, its URL, and the resolved paths that it names."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.errors import ToolError
from agentcli.safety.commands.records import CommandAnalysis, CommandVerdict, Effects, GitSetup, WorkspaceView, known
from agentcli.safety.paths import judge
from agentcli.safety.urls import BadUrl, UrlVerdict, parse_url
from agentcli.tools.command import Access, Grants
from agentcli.tools.sandbox import PathStatus
from agentcli.tools.tool import Tool
from agentcli.tools.workspace import Workspace, parse_name


class PathLookup:
    """Finds the facts of the paths of one call. It looks up each path only once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._look = cache(workspace.look)
        self._facts: dict[tuple[str, Access], judge.PathFacts] = {}
        self.git_warnings: list[str] = []  # lines about programs that git would run because a repository names them

    @cached_property
    def base(self) -> judge.PatternBase:
        return judge.PatternBase(self.workspace.real_cwd, self.roots[0], self.workspace.settings.home)

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        return self.workspace.facts.roots

    def is_readable(self, path: Path) -> bool:
        try:
            return self._look(path, "read").is_usable or self.is_lost_in_tmp(path)
        except ToolError:
            return False

    def is_lost_in_tmp(self, path: Path) -> bool:
        """Return True for a missing path in /tmp if each command has its own /tmp, as it does where dry runs work."""
        status = self._look(path, "read")
        is_in_tmp = status.real.is_relative_to("/tmp")  # noqa: S108  no file is created
        is_missing = (status.kind, status.errno, status.place) == (None, 0, "outside")
        return is_in_tmp and is_missing and _supports_dry_runs(self.workspace)

    def find_git_setup(self, folder: str) -> GitSetup | None:
        """Return the setup of a folder's repository, and remember a warning if it names a program for git to run."""
        if (setup := self.workspace.look(Path(folder), "remotes").git) is not None and setup.program:
            self.git_warnings.append(f"git may run what the repository chose: {setup.program}")
        return setup

    def find(self, given: str, access: Access) -> judge.PathFacts:
        """Return the facts of a path. Raises `ToolError` (invalid_parameters) if it cannot be resolved."""
        if (given, access) not in self._facts:
            named = self.workspace.lexical_path(given)
            self._facts[given, access] = self._facts_of(given, named, self._look(named, access), access)
        return self._facts[given, access]

    def find_real(self, given: str, access: Access) -> judge.PathFacts:
        """Return the facts of an absolute path. One that cannot be resolved is used as written."""
        try:
            return self.find(given, access)
        except ToolError:  # a loop of symlinks
            path = Path(given)
            return self._facts_of(given, path, PathStatus(real=path, place="inside"), access)

    def find_each(self, paths: tuple[str, ...], access: Access) -> list[judge.PathFacts]:
        return [self.find_real(path, access) for path in known(paths)]

    def _facts_of(self, given: str, named: Path, status: PathStatus, access: Access) -> judge.PathFacts:
        """Return the facts of a path that is written as `given` in the call and resolves to `status.real`."""
        real, kind, holds_secrets = status.real, self._kind(given, status, access), False
        root = next((root for root in self.roots if real.is_relative_to(root)), None)
        is_read_only = access == "write" and root is None  # the sandbox does not let calls change it
        if kind == "secret":
            # A new file in the workspace holds no secrets yet, even if its name is that of a secret file. In a secret
            # folder or at an auto-executed path, it is treated like one that does.
            is_new = access == "write" and status.kind is None and not status.errno
            in_secret_folder = judge.is_secret(real.parent, self.workspace.settings.home)
            has_only_secret_name = judge.is_secret(PurePath(real.name), None) and not in_secret_folder
            is_ordinary_place = root is not None and not judge.is_auto_executed(real.relative_to(root))
            holds_secrets = not (is_new and has_only_secret_name and is_ordinary_place)
        elif kind == "protected" and access == "write" and root is not None:
            # Calls may change what people review before it is run, unless git or a trusted command would run it.
            is_read_only = not judge.is_reviewed(real.relative_to(root)) or status.is_auto_executed
        return judge.PathFacts(
            given=given,
            named=named,
            real=real,
            access=access,
            kind=kind,
            is_outside=root is None,
            holds_secrets=holds_secrets,
            is_read_only=is_read_only,
        )

    def _kind(self, given: str, status: PathStatus, access: Access) -> judge.PathKind:
        """Return the kind of a path: that of its target, or that of its name as `given` if it is worse."""
        real, home, cwd, roots = status.real, self.workspace.settings.home, self.workspace.cwd, self.roots
        if status.place != "granted":  # the person has already opened a granted path
            by_place = judge.judge_path(str(real), access=access, cwd=cwd, roots=roots, home=home)
            if by_place == "outside" and status.place == "secret":  # of the two kinds, that is the worse
                return "secret"
            becomes_protected = by_place == "outside" and status.is_auto_executed  # which is returned below
            if by_place != "plain" and not becomes_protected:
                return by_place
        if status.place == "granted" or given != str(real):
            by_name = judge.judge_path(parse_name(given), access=access, cwd=cwd, roots=roots, home=home)
            if by_name in ("odd", "secret", "protected"):
                return by_name
        if status.is_auto_executed:
            return "protected"
        # A hard link to the same file may be outside the workspace, so writing could change a file there.
        return "linked" if access == "write" and status.kind == "file" and status.links > 1 else "plain"

    def shown(self, paths: tuple[str, ...]) -> list[str]:
        shown = [self.workspace.shown(Path(os.path.normpath(path))) for path in known(paths)]
        return ["this folder" if path == "." else path for path in shown]


DryRunUse = Literal["never", "on_request", "always"]


class CallFacts(Struct, frozen=True, kw_only=True):
    """The facts of a call, on which rules, modes, questions and the sandbox are based."""

    tool: Tool
    arguments: Any
    paths: PathLookup  # looks up further paths
    command: CommandAnalysis | None = None
    files: tuple[judge.PathFacts, ...] = ()  # of a file tool
    hosts: tuple[str, ...] = ()  # of a web tool or a command
    address: UrlVerdict | None = None
    dry_run: DryRunUse = "never"  # when a command makes a dry run first because its text does not show its effects

    @property
    def workspace(self) -> Workspace:
        return self.paths.workspace

    @property
    def verdict(self) -> CommandVerdict | None:
        """The decision on a command, with "ask" in place of "try" if dry runs are not possible."""
        found = self.command.verdict if self.command is not None else None
        return "ask" if found == "try" and self.dry_run != "always" else found

    @property
    def command_text(self) -> str:
        return str(self.arguments.command)

    def arguments_for(self, decision: PolicyDecision) -> Any:
        return replace(self.arguments, unconfined=True) if decision.runs_outside else self.arguments

    @property
    def why_runs_outside(self) -> str:
        """The reason why a command must run outside the sandbox; empty if none, or if its call asks for that itself."""
        sandbox = self.workspace.facts
        asks_to_leave = getattr(self.arguments, "unconfined", None)  # None: the tool's calls never leave the sandbox
        if asks_to_leave in (None, True) or not sandbox.confines or sandbox.profile == "danger-full-access":
            return ""
        for remote in self.command.effects.remotes if self.command is not None else ():
            if remote.startswith("ssh://"):
                return "git reaches its remote by ssh, which works only outside the sandbox"
            if not any(Path(remote).is_relative_to(root) for root in self.paths.roots):
                return "git reaches its remote in a folder, which works only outside the sandbox"
        for file in self.blocked_files:
            # The sandbox can open a file that is there. To open a folder for a new one would open all files in it.
            is_new = file.kind == "outside" and not os.path.lexists(file.real)
            if is_new and str(file.real.parent) != "/tmp":  # noqa: S108  commands have a /tmp of their own
                return f"it makes {self.workspace.shown(file.real)}, which works only outside the sandbox"
        return ""

    @property
    def stays_inside(self) -> bool:
        """True if neither the call's arguments nor its command's effects make it run outside the sandbox."""
        return not getattr(self.arguments, "unconfined", False) and not self.why_runs_outside

    @property
    def blocked_files(self) -> tuple[judge.PathFacts, ...]:
        """The files of the call that the sandbox blocks: secret, auto-executed or outside the workspace."""
        if self.command is None:
            return tuple(path for path in self.files if path.kind != "plain")
        effects, find = self.command.effects, self.paths.find_each
        found = (*find(effects.reads, "read"), *find((*effects.writes, *effects.deletes), "write"))
        blocked = (f for f in found if f.kind in ("secret", "protected") or (f.kind, f.access) == ("outside", "write"))
        return tuple({(file.real, file.access): file for file in blocked}.values())

    @property
    def grants(self) -> Grants:
        """The blocked files and the hosts that the sandbox opens for the call once it is allowed."""
        remotes = self.command.effects.remotes if self.command is not None else ()
        folders = self.paths.find_each(tuple(remote for remote in remotes if remote.startswith("/")), "read")
        # The folder of a remote stays closed: a repository's settings name it, and may name a program to run there.
        remote_folders = {folder.real for folder in folders}
        files = [file for file in self.blocked_files if file.real not in remote_folders]
        return Grants(
            readable=tuple(file.real for file in files if file.access == "read"),
            writable=tuple(file.real for file in files if file.access == "write"),
            hosts=self.hosts if self.command is not None else (),
        )


def find_facts(tool: Tool, arguments: Any, workspace: Workspace) -> CallFacts:
    """Find the facts of a call. Raises `ToolError` for a path that cannot be resolved."""
    paths = PathLookup(workspace)
    match tool.effect:
        case "command" if isinstance(getattr(arguments, "command", None), str):
            cwd = getattr(arguments, "cwd", None)
            start = paths.find(cwd, "read").real if cwd else (workspace.shell_cwd or workspace.real_cwd)
            view = WorkspaceView(
                cwd=start,
                roots=paths.roots,
                home=workspace.settings.home,
                is_readable=paths.is_readable,
                program_of_git=lambda folder: getattr(workspace.look(folder, "git").git, "program", ""),
                git_setup=paths.find_git_setup,
            )
            from agentcli.safety.commands.walk import analyse  # takes 10 ms, so only when there is a command

            command = analyse(arguments.command, workspace=view)
            hosts = known(command.effects.hosts)
            return CallFacts(tool=tool, arguments=arguments, paths=paths, command=command, hosts=hosts)
        case "read" | "edit":
            access: Access = "write" if tool.effect == "edit" else "read"
            given = (getattr(arguments, name, None) for name in tool.file_arguments or ("path",))
            files = tuple(paths.find(path, access) for path in given if isinstance(path, str))
            if gone := next((file for file in files if access == "read" and paths.is_lost_in_tmp(file.named)), None):
                raise ToolError(f"{gone.given} is gone: /tmp is new and empty for each command.", kind="not_found")
            return CallFacts(tool=tool, arguments=arguments, paths=paths, files=files)
        case "web":
            url = getattr(arguments, "url", None)
            web = workspace.resources.web
            address = web.judge(url) if url is not None and web is not None else None
            hosts = ()
            if isinstance(url, str):
                with suppress(BadUrl):
                    hosts = (parse_url(url).host,)  # that a fetch would contact
            return CallFacts(tool=tool, arguments=arguments, paths=paths, hosts=hosts, address=address)
        case _:
            return CallFacts(tool=tool, arguments=arguments, paths=paths)


def can_dry_run(facts: CallFacts) -> bool:
    """Return True for a foreground command in the sandbox if this machine has overlays. Blocks at the first call."""
    is_in_foreground = not getattr(facts.arguments, "background", False)
    return facts.tool.runs_commands and is_in_foreground and facts.stays_inside and _supports_dry_runs(facts.workspace)


def _supports_dry_runs(workspace: Workspace) -> bool:
    try:
        return not workspace.facts.dry_run_problem
    except (ToolError, OSError):
        return False


_MAX_FOUND = 1_000  # files for each glob
_MAX_WILDCARD_PARTS = 3  # parts of a path with wildcards; with more, too many folders would have to be read


class GlobSearch:
    """Finds files by globs like a shell, but not too many."""

    def __init__(self, finds_hidden: bool) -> None:
        self.finds_hidden = finds_hidden  # wildcards match hidden files, as under bash's `dotglob`
        self.is_cut_off = False  # a glob matches too many files, or has too many wildcards

    def find_files(self, pattern: str) -> list[str]:
        """Return the first files that an absolute glob matches; none for a path without wildcards."""
        pattern = pattern.replace("[^", "[!")  # bash accepts both, Python only [!
        wildcard_parts = sum(map(glob.has_magic, pattern.split("/")))
        if not 0 < wildcard_parts <= _MAX_WILDCARD_PARTS:
            self.is_cut_off |= wildcard_parts > 0
            return []
        found = [*islice(glob.iglob(pattern, include_hidden=self.finds_hidden), _MAX_FOUND + 1)]  # noqa: PTH207
        self.is_cut_off |= len(found) > _MAX_FOUND
        return found


def opened_files(facts: CallFacts, effects: Effects, search: GlobSearch) -> Iterator[judge.PathFacts]:
    """Yield the files that a part of a command opens. A glob yields itself and the first files that it matches."""
    workspace, paths = facts.workspace, facts.paths
    opened: list[tuple[str, Access]] = [(path, "read") for path in known(effects.reads)]
    opened += [(path, "write") for path in known((*effects.writes, *effects.deletes))]
    for path in effects.names:
        # A word with spaces may be a commit message, so the file must exist. Its use by the command is not known:
        # reading is the danger with a secret file, writing with any other.
        if not re.search(r"\s", workspace.shown(Path(path))) or os.path.lexists(path):
            opened.append((path, "read" if judge.is_secret(PurePath(path), workspace.settings.home) else "write"))
    for path, access in opened:
        for name in (path, *search.find_files(path)):
            yield from paths.find_each((name,), access)
