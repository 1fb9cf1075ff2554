"""Reads what a call is about, once: its command, the files it names, its address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from agentcli.agent.permissions.targets import Target, look_at_real, targets_of
from agentcli.errors import ToolError
from agentcli.safety.addresses.judge import UrlVerdict
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Places
from agentcli.safety.commands.records import Verdict as CommandVerdict
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Tool, Workspace


class Need(Struct, frozen=True):
    """An exception the sandbox makes for as long as an allowed call runs."""

    path: Path
    access: Access


class Judged(Struct, frozen=True):
    """What a call is about. Rules, modes, the person and the sandbox all work from this record.

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


def judge(tool: Tool, arguments: Any, workspace: Workspace) -> Judged:
    """Read a call. Raises `ToolError` for a path that leads nowhere."""
    match tool.effect:
        case "command" if isinstance(getattr(arguments, "command", None), str):
            command = analysis_of(arguments, workspace)
            return Judged(tool, arguments, workspace, command, needs=_needs_of_command(command, workspace))
        case "read" | "edit":
            targets = targets_of(tool, arguments, workspace)
            needs = tuple(Need(target.real, target.access) for target in targets if target.kind != "plain")
            return Judged(tool, arguments, workspace, targets=targets, needs=needs)
        case "web":
            url = getattr(arguments, "url", None)
            address = workspace.web.judge(url) if url is not None and workspace.web is not None else None
            host = host_of(url) if isinstance(url, str) else ""
            return Judged(tool, arguments, workspace, host=host, address=address)
        case _:
            return Judged(tool, arguments, workspace)


def analysis_of(arguments: Any, workspace: Workspace) -> CommandAnalysis:
    """What a command does, judged from where it would start."""
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
    """Where a path leads; the path itself if it leads nowhere."""
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
