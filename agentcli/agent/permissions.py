"""Decides whether a call may run: by what it does, by rule, by mode, else by asking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agentcli.agent.path_access import (
    Target,
    ground_of,
    has_secrets,
    is_covered,
    is_kept_from_edits,
    is_refused,
    look_at_real,
    targets_of,
)
from agentcli.agent.rules import Rule, Rules, escaped, matches_host
from agentcli.errors import ToolError, UsageError
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, Effects, Places, Segment
from agentcli.safety.commands.rules import covers, touches
from agentcli.safety.paths.secret import is_secret
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Tool, Workspace

Mode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
MODES: tuple[Mode, ...] = get_args(Mode)

CHANGES_A_FILE = "it changes a file"  # the reason to ask that says no more than that it is an edit
_LIKE_MODES = {"auto_edit": "acceptEdits", "yolo": "bypassPermissions"}  # other agents' names


class Need(Struct, frozen=True):
    """An exception the sandbox makes for as long as an allowed call runs."""

    path: Path
    access: Access


class Verdict(Struct, frozen=True):
    """`needs` and `hosts` are opened for the call where it is allowed, by a person or by itself.

    `judged` is where its paths led: the call is about those, wherever they lead once it runs. The sandbox holds
    a command that `only_reads` to that. `exposes` as in exposure.py.
    """

    decision: Literal["allow", "ask", "deny"]
    reason: str
    needs: tuple[Need, ...] = ()
    hosts: tuple[str, ...] = ()
    judged: frozenset[Path] | None = None
    only_reads: bool = False
    exposes: tuple[Path, ...] = ()


def parse_mode(text: str) -> Mode:
    """Raises `UsageError` naming the modes there are."""
    mode = _LIKE_MODES.get(text, text)
    if mode not in MODES:
        raise UsageError(f"No permission mode {text!r}; there is {', '.join(MODES)}.")
    return mode


def judge(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    """Whether this call runs, is refused, or needs a person's yes. The catastrophic is refused in every mode.

    Raises `ToolError` for a path that leads nowhere.
    """
    if by_name := _first(rule for rule in rules.deny if not rule.pattern and rule.names(tool.name)):
        return Verdict("deny", f"the rule {by_name} denies it")
    match tool.effect:
        case "command" if isinstance(getattr(arguments, "command", None), str):
            return _judge_command(tool, arguments, mode, rules, workspace)
        case "read" | "edit":
            targets = targets_of(tool, arguments, workspace)
            verdict = _judge_files(tool, targets, mode, rules, workspace)
            return msgspec.structs.replace(verdict, judged=frozenset(target.real for target in targets))
        case "web":
            return _judge_address(tool, arguments, mode, rules, workspace)
        case "foreign" | "command":
            return _judge_foreign(tool, mode, rules)
        case _ if asking := _first(rule for rule in rules.ask if rule.names(tool.name)):
            return _asks(mode, f"the rule {asking} wants you to be asked")
        case _:
            return Verdict("allow", "it changes nothing")


# A path refused to one tool is refused to those that do the same to it.
_READERS = frozenset(("file_read", "file_list", "grep_search"))
_EDITORS = frozenset(("file_edit", "file_write"))


def _judge_files(tool: Tool, targets: Sequence[Target], mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    needs = tuple(Need(target.real, target.access) for target in targets if target.kind != "plain")
    kin = {tool.name} | (_EDITORS if tool.effect == "edit" else _READERS)
    for rule in rules.deny:
        is_meant = rule.pattern and any(rule.names(name) for name in kin)
        if is_meant and any(is_refused(rule.pattern, target, workspace) for target in targets):
            return Verdict("deny", f"the rule {rule} denies it")
    if asking := _asked(tool, targets, rules, workspace):
        return _asks(mode, f"the rule {asking} wants you to be asked", needs)
    if tool.effect == "edit" and workspace.sandbox.profile == "read-only":
        return Verdict("deny", "the sandbox is read-only: nothing may be changed")
    if mode == "plan" and tool.effect == "edit":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    ground = ground_of(workspace)
    for rule in rules.allow:
        if rule.names(tool.name) and all(is_covered(rule, target, ground) for target in targets):
            return Verdict("allow", f"the rule {rule} allows it", needs)
    if mode == "bypassPermissions":
        return _bypassed(targets, needs, workspace)
    if special := _first(target for target in targets if target.kind != "plain"):
        return _asks(mode, special.why, needs)
    if tool.effect == "read":
        return Verdict("allow", "it only looks")
    if mode in ("acceptEdits", "auto"):
        return Verdict("allow", "edits inside the workspace are accepted")
    return _asks(mode, CHANGES_A_FILE, needs)


def _as_rule(path: str) -> str:
    """A path as rules write it: `//x` is absolute, `~/x` at home, `./x` in the working directory."""
    if path.startswith("/"):
        return f"/{path}"
    return path if path.startswith("~/") else f"./{path.removeprefix('./')}"


def _bypassed(targets: Sequence[Target], needs: tuple[Need, ...], workspace: Workspace) -> Verdict:
    """No mode is a yes to secrets, and none widens the sandbox."""
    for target in targets:
        if has_secrets(target, workspace):
            tool = "Edit" if target.access == "write" else "Read"
            return Verdict(
                "deny", f"{target.why}: it needs a rule of its own, such as {tool}({_as_rule(target.given)})"
            )
        if workspace.sandbox.profile != "danger-full-access" and is_kept_from_edits(target, workspace):
            return Verdict("deny", f"{target.why}, and the sandbox ({workspace.sandbox.profile}) keeps that")
    return Verdict("allow", "permissions are bypassed", needs)


def _asked(tool: Tool, targets: Sequence[Target], rules: Rules, workspace: Workspace) -> Rule | None:
    for rule in rules.ask:
        if rule.names(tool.name) and (
            not rule.pattern or any(is_refused(rule.pattern, target, workspace) for target in targets)
        ):
            return rule
    return None


def _asks(mode: Mode, why: str, needs: tuple[Need, ...] = (), hosts: tuple[str, ...] = ()) -> Verdict:
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed", needs, hosts)
    return Verdict("deny" if mode == "dontAsk" else "ask", why, needs, hosts)


def analysis_of(arguments: Any, workspace: Workspace) -> CommandAnalysis:
    """What a command does, judged from where it would start."""
    return analyse(arguments.command, places=places_of(workspace, cwd=getattr(arguments, "cwd", None)))


def places_of(workspace: Workspace, *, cwd: str | None = None) -> Places:
    start = workspace.real_path(cwd) if cwd else (workspace.shell_cwd or workspace.real_cwd)

    def is_readable(path: Path) -> bool:
        try:
            workspace.sandbox.validate_path(path, "read")
        except ToolError:
            return False
        return True

    sandbox = workspace.sandbox
    return Places(start, sandbox.roots, workspace.home, is_readable, program_of_git=sandbox.program_of_git)


def _judge_command(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    analysis = analysis_of(arguments, workspace)
    verdict = _judge_analysed(analysis, tool, arguments, mode, rules, workspace)
    return msgspec.structs.replace(verdict, only_reads=analysis.verdict == "harmless" or mode == "plan")


def _judge_analysed(
    analysis: CommandAnalysis, tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace
) -> Verdict:
    if analysis.verdict == "catastrophic":
        return Verdict("deny", f"refused in every mode: {analysis.reason}")
    if refusing := refusing_rule(tool, arguments.command, analysis, rules.deny, workspace):
        return Verdict("deny", f"the rule {refusing} denies it")
    needs, hosts = _needs(analysis.effects, workspace), _named(analysis.effects.hosts)
    cannot_ask: Literal["ask", "deny"] = "deny" if mode in ("bypassPermissions", "dontAsk", "plan") else "ask"
    if analysis.hidden_catastrophe:
        return Verdict(cannot_ask, f"a script in it would be refused: {analysis.hidden_catastrophe}", needs, hosts)
    if analysis.unreadable and (denying := _first(rule for rule in rules.deny if rule.names(tool.name))):
        why = f"{analysis.unreadable}, so it cannot be read against deny rules such as {denying}"
        return Verdict(cannot_ask, why, needs, hosts)
    if asking := refusing_rule(tool, arguments.command, analysis, rules.ask, workspace):
        return _asks(mode, f"the rule {asking} wants you to be asked", needs, hosts)
    if getattr(arguments, "unconfined", False) and workspace.sandbox.profile != "danger-full-access":
        return Verdict(
            cannot_ask, "it wants to run OUTSIDE the sandbox, which only a person's yes to this very call opens"
        )
    if mode == "bypassPermissions" and not allowing_rules(tool, arguments.command, analysis, rules.allow, workspace):
        return Verdict("allow", "permissions are bypassed")  # the sandbox opens nothing that nobody granted
    sandbox = workspace.sandbox
    if analysis.verdict == "harmless":
        if sandbox.confines or sandbox.profile == "danger-full-access":
            return Verdict("allow", "the command only reads inside the workspace")
        return _asks(mode, "no sandbox holds commands here, so every one is asked about")
    if mode == "plan":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if granting := allowing_rules(tool, arguments.command, analysis, rules.allow, workspace):
        return Verdict("allow", f"the rule {' and '.join(dict.fromkeys(map(str, granting)))} allows it", needs, hosts)
    if mode == "auto" and sandbox.confines and not needs and not hosts:
        return Verdict("allow", "it stays inside the sandbox")
    return _asks(mode, analysis.reason, needs, hosts)


def allowing_rules(
    tool: Tool, command: str, analysis: CommandAnalysis, rules: Sequence[Rule], workspace: Workspace
) -> list[Rule]:
    """The grants that together speak of every part of a command that is not harmless; none when a part is left.

    A grant of a program does not open files with secrets: the very command has to be granted, or the file.
    """
    mine = [rule for rule in rules if rule.names(tool.name)]
    whole = escaped(command.strip())
    if exact := _first(rule for rule in mine if rule.pattern == whole):
        return [exact]
    if analysis.problem:
        return []
    found: list[Rule] = []
    for segment in analysis.segments:
        if segment.verdict == "harmless":
            continue
        rule = _first(rule for rule in mine if not rule.pattern or covers(rule.pattern, segment))
        if rule is None:
            return []
        found.append(rule)
    if not found or _opens_secrets(analysis.effects, rules, workspace):
        return []
    return found


def _opens_secrets(effects: Effects, rules: Sequence[Rule], workspace: Workspace) -> bool:
    ground = ground_of(workspace)
    for path in _named((*effects.reads, *effects.writes, *effects.deletes)):
        if is_secret(Path(path), workspace.home):
            target = look_at_real(Path(path), "read", workspace)
            if not any(rule.names("file_read") and rule.pattern and is_covered(rule, target, ground) for rule in rules):
                return True
    return False


def refusing_rule(
    tool: Tool, command: str, analysis: CommandAnalysis, rules: Sequence[Rule], workspace: Workspace
) -> Rule | None:
    """The first rule that restricts and speaks of a command: of any part of it, or of a file or host it uses."""
    return next((rule for rule in rules if _touched(rule, tool, command, analysis, workspace)), None)


def _touched(rule: Rule, tool: Tool, command: str, analysis: CommandAnalysis, workspace: Workspace) -> bool:
    if rule.names(tool.name):
        if not rule.pattern:
            return True
        text = " ".join(command.split())
        return any(touches(rule.pattern, segment) for segment in (*analysis.segments, _whole(text)))
    if not rule.pattern:
        return False
    effects = analysis.effects | analysis.hidden
    if rule.tool in _READERS:
        return _speaks_of(rule.pattern, effects.reads, "read", workspace)
    if rule.tool in _EDITORS:
        return _speaks_of(rule.pattern, (*effects.writes, *effects.deletes), "write", workspace)
    return rule.tool == "web_fetch" and any(matches_host(rule.pattern, host) for host in effects.hosts)


def _whole(text: str) -> Segment:
    return Segment(text, None, "unknown", "", deny_forms=(text,))


def _speaks_of(pattern: str, paths: Sequence[str], access: Access, workspace: Workspace) -> bool:
    return any(
        is_refused(pattern, Target(path, _real(path, workspace), access, "plain"), workspace) for path in _named(paths)
    )


def _real(path: str, workspace: Workspace) -> Path:
    try:
        return workspace.real_path(path)
    except ToolError:
        return Path(path)


def _needs(effects: Effects, workspace: Workspace) -> tuple[Need, ...]:
    """The files a command names that the sandbox keeps from commands: outside, secret, protected."""
    reads = [Need(_real(path, workspace), "read") for path in _named(effects.reads)]
    writes = [Need(_real(path, workspace), "write") for path in _named((*effects.writes, *effects.deletes))]
    return tuple(need for need in dict.fromkeys((*reads, *writes)) if _is_kept_from_commands(need, workspace))


def _is_kept_from_commands(need: Need, workspace: Workspace) -> bool:
    kind = look_at_real(need.path, need.access, workspace).kind
    return kind in ("secret", "protected") or (kind == "outside" and need.access == "write")


def _named(things: Sequence[str]) -> tuple[str, ...]:
    """Without those that cannot be told from the text."""
    return tuple(thing for thing in things if thing != UNKNOWN)


def _judge_address(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    url = getattr(arguments, "url", None)
    host = host_of(url) if isinstance(url, str) else ""
    for rule in rules.deny:
        if rule.pattern and rule.names(tool.name) and matches_host(rule.pattern, host):
            return Verdict("deny", f"the rule {rule} denies it")
    found = workspace.web.judge(url) if url is not None and workspace.web is not None else None
    if found is not None and found.verdict == "block":
        return Verdict("deny", f"the address is never fetched: {found.reason}")
    for rule in rules.ask:
        if rule.names(tool.name) and (not rule.pattern or matches_host(rule.pattern, host)):
            return _asks(mode, f"the rule {rule} wants you to be asked")
    for rule in rules.allow:
        if rule.names(tool.name) and (not rule.pattern or matches_host(rule.pattern, host)):
            return Verdict("allow", f"the rule {rule} allows it")
    if found is not None and found.verdict == "ask":
        return _asks(mode, found.reason)
    return Verdict("allow", "it only looks something up")


def _judge_foreign(tool: Tool, mode: Mode, rules: Rules) -> Verdict:
    """A tool whose effects nobody here knows: an MCP server's, or one that a library brought without saying."""
    for rule in rules.ask:
        if rule.names(tool.name):
            return _asks(mode, f"the rule {rule} wants you to be asked")
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed")
    if mode == "plan":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if granting := _first(rule for rule in rules.allow if not rule.pattern and rule.names(tool.name)):
        return Verdict("allow", f"the rule {granting} allows it")
    return _asks(mode, f"what {tool.name} does is not known here")


def host_of(url: str) -> str:
    """The host of an address, as the fetch would understand it; empty for what is no address."""
    try:
        return parse_url(url).host
    except BadUrl:
        return ""


def _first(found: Iterable[Any]) -> Any:
    return next(iter(found), None)
