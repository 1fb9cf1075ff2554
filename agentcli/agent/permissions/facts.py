"""Reads what a call is about, once: its command, the files that it names and where they lead, its address."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct

from agentcli.agent.permissions.rules import PathGround, Rule, is_literal, matches_path
from agentcli.errors import ToolError
from agentcli.safety.addresses.judge import UrlVerdict
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Places
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


class Target(Struct, frozen=True):
    """A path as it was given, and where it really leads. What `is_outside` may be of a kind that weighs more."""

    given: str
    real: Path
    access: Access
    kind: Kind
    is_outside: bool = False

    @property
    def why(self) -> str:
        return f"{self.given} {WHY[self.kind]}" if self.kind != "plain" else ""


def ground_of(workspace: Workspace) -> PathGround:
    return PathGround(workspace.real_cwd, workspace.sandbox.roots[0], workspace.home)


def targets_of(tool: Tool, arguments: Any, workspace: Workspace) -> tuple[Target, ...]:
    """The files a call of a file tool is about. Raises `ToolError` for a path that leads nowhere: a loop of links."""
    access: Access = "write" if tool.effect == "edit" else "read"
    names = tool.file_arguments or ("path",)
    given = (getattr(arguments, name, None) for name in names)
    return tuple(look_at(path, access, workspace) for path in given if isinstance(path, str))


def look_at(given: str, access: Access, workspace: Workspace) -> Target:
    """Raises `ToolError` (invalid_parameters)."""
    real = workspace.real_path(given)
    return Target(given, real, access, _kind(given, real, access, workspace), _is_outside(real, workspace))


def look_at_real(real: Path, access: Access, workspace: Workspace) -> Target:
    """As `look_at` for a path whose links are followed already."""
    kind = _kind(str(real), real, access, workspace)
    return Target(workspace.shown(real), real, access, kind, _is_outside(real, workspace))


def _is_outside(real: Path, workspace: Workspace) -> bool:
    return not any(real.is_relative_to(root) for root in workspace.sandbox.roots)


def is_kept_from_edits(target: Target, workspace: Workspace) -> bool:
    """True if the sandbox keeps a file from edits that nobody is asked about. What a project reviews is not kept."""
    if target.kind == "protected" and not target.is_outside:
        return not is_reviewed(_below_root(target, workspace)) or workspace.sandbox.is_write_protected(target.real)
    return target.access == "write" and target.is_outside


def has_secrets(target: Target, workspace: Workspace) -> bool:
    """Return True if a file may hold a secret: one that is about to be made holds none, whatever its name says."""
    if target.kind != "secret" or target.access == "read" or target.is_outside:
        return target.kind == "secret"
    by_place = is_secret(target.real.parent, workspace.home) or is_protected(_below_root(target, workspace))
    only_by_name = is_secret(PurePath(target.real.name), None) and not by_place
    return not only_by_name or _is_there(target.real, workspace)


def _is_there(real: Path, workspace: Workspace) -> bool:
    """Also where the system does not tell."""
    try:
        return workspace.sandbox.status(real) is not None
    except OSError:
        return True


def _below_root(target: Target, workspace: Workspace) -> PurePath:
    root = next(root for root in workspace.sandbox.roots if target.real.is_relative_to(root))
    return target.real.relative_to(root)


def _kind(given: str, real: Path, access: Access, workspace: Workspace) -> Kind:
    """By where the path leads first; by its name where that says more."""
    roots, home, cwd = workspace.sandbox.roots, workspace.home, workspace.cwd
    if not workspace.sandbox.knows(real, access):
        by_place = judge_path(str(real), access=access, cwd=cwd, roots=roots, home=home)
        if by_place != "plain":
            return by_place
    by_name = judge_path(parse_name(given), access=access, cwd=cwd, roots=roots, home=home)
    if by_name in ("odd", "secret", "protected"):
        return by_name
    if access == "write" and workspace.sandbox.is_write_protected(real):
        return "protected"
    if access == "write" and _has_other_names(real, workspace):
        return "linked"
    return "plain"


def _has_other_names(real: Path, workspace: Workspace) -> bool:
    try:
        status = workspace.sandbox.status(real)
    except OSError:
        return False
    return status is not None and status.kind == "file" and status.links > 1


def is_covered(rule: Rule, target: Target, ground: PathGround) -> bool:
    """Return True if a grant speaks of a target. What is more than a plain file has to be meant by the rule itself."""
    if not rule.pattern:
        return target.kind == "plain"
    if not matches_path(rule.pattern, target.real, ground):
        return False
    name = PurePath(rule.pattern.lstrip("/"))
    match target.kind:
        case "plain" | "outside":
            return True
        case "secret":
            return is_literal(rule.pattern) or is_secret(PurePath(str(name).replace("*", ".x")), ground.home)
        case "protected":
            return is_literal(rule.pattern) or is_protected(PurePath(str(name).replace("*", ".x")))
        case _:
            return is_literal(rule.pattern)


def is_refused(pattern: str, target: Target, workspace: Workspace) -> bool:
    """Return True if a denial speaks of a target: by where it leads, or by how it is written."""
    ground = ground_of(workspace)
    names = [target.real]
    try:
        names.append(workspace.lexical_path(target.given))
    except ToolError:
        pass
    patterns = (pattern, f"**/{pattern}", f"/{pattern}")  # generous: `/etc/x` may be meant as it is written
    return any(matches_path(one, name, ground) for one in patterns for name in names)


class Need(Struct, frozen=True):
    """An exception the sandbox makes for as long as an allowed call runs."""

    path: Path
    access: Access


class CallFacts(Struct, frozen=True):
    """The facts of a call. Rules, modes, the person and the sandbox all work from this record.

    `command` is set for a shell command, `targets` are the files of a file tool, `host` and `address` belong to a web
    tool. `needs` are files that the sandbox keeps from calls: outside the workspace, secret, protected. `can_try`: a
    command whose text does not tell may run on a stand-in of the workspace first.
    """

    tool: Tool
    arguments: Any
    workspace: Workspace
    command: CommandAnalysis | None = None
    targets: tuple[Target, ...] = ()
    host: str = ""
    address: UrlVerdict | None = None
    needs: tuple[Need, ...] = ()
    can_try: bool = False

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
    def hosts(self) -> tuple[str, ...]:
        """The hosts that a command names."""
        return known(self.command.effects.hosts) if self.command is not None else ()


def judge(tool: Tool, arguments: Any, workspace: Workspace) -> CallFacts:
    """Read a call. Raises `ToolError` for a path that leads nowhere."""
    match tool.effect:
        case "command" if isinstance(getattr(arguments, "command", None), str):
            command = analysis_of(arguments, workspace)
            return CallFacts(tool, arguments, workspace, command, needs=_needs_of_command(command, workspace))
        case "read" | "edit":
            targets = targets_of(tool, arguments, workspace)
            needs = tuple(Need(target.real, target.access) for target in targets if target.kind != "plain")
            return CallFacts(tool, arguments, workspace, targets=targets, needs=needs)
        case "web":
            url = getattr(arguments, "url", None)
            address = workspace.web.judge(url) if url is not None and workspace.web is not None else None
            host = host_of(url) if isinstance(url, str) else ""
            return CallFacts(tool, arguments, workspace, host=host, address=address)
        case _:
            return CallFacts(tool, arguments, workspace)


def analysis_of(arguments: Any, workspace: Workspace) -> CommandAnalysis:
    """Judge a command from the folder in which it would start."""
    return analyse(arguments.command, places=places_of(workspace, cwd=getattr(arguments, "cwd", None)))


def places_of(workspace: Workspace, *, cwd: str | None = None) -> Places:
    """The places that a command is judged by."""
    start = workspace.real_path(cwd) if cwd else (workspace.shell_cwd or workspace.real_cwd)

    def is_readable(path: Path) -> bool:
        try:
            workspace.sandbox.validate_path(path, "read")
        except ToolError:
            return False
        return True

    sandbox = workspace.sandbox
    return Places(start, sandbox.roots, workspace.home, is_readable, program_of_git=sandbox.program_of_git)


def _needs_of_command(command: CommandAnalysis, workspace: Workspace) -> tuple[Need, ...]:
    effects = command.effects
    reads = [Need(real_or_given(path, workspace), "read") for path in known(effects.reads)]
    writes = [Need(real_or_given(path, workspace), "write") for path in known((*effects.writes, *effects.deletes))]
    return tuple(need for need in dict.fromkeys((*reads, *writes)) if _is_kept_from_commands(need, workspace))


def _is_kept_from_commands(need: Need, workspace: Workspace) -> bool:
    kind = look_at_real(need.path, need.access, workspace).kind
    return kind in ("secret", "protected") or (kind == "outside" and need.access == "write")


def real_or_given(path: str, workspace: Workspace) -> Path:
    """Return the path that a path leads to; the path itself if it leads nowhere."""
    try:
        return workspace.real_path(path)
    except ToolError:
        return Path(path)


def known(things: tuple[str, ...]) -> tuple[str, ...]:
    """The things that can be told from a command's text."""
    return tuple(thing for thing in things if thing != UNKNOWN)


def host_of(url: str) -> str:
    """The host of an address, as the fetch would understand it; empty for what is no address."""
    try:
        return parse_url(url).host
    except BadUrl:
        return ""
