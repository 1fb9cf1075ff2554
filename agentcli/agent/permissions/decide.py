"""Decides whether a call may run: by what it does, by rule, by mode, else by asking.

Where no confinement hides the workspace's secret files from commands, a command that could read them asks first, once
a session: a yes is about the files, and so counts for later commands too. A rule that means a file, such as
Read(.env), is a yes beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.permissions.command_rules import EDITORS, READERS, allowing_rules, refusing_rule, speaks_of_edits
from agentcli.agent.permissions.facts import (
    CallFacts,
    Need,
    Target,
    ground_of,
    has_secrets,
    is_covered,
    is_kept_from_edits,
    is_refused,
    look_at_real,
)
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rule, Rules, escaped, matches_host, parse_rules
from agentcli.errors import UsageError
from agentcli.safety.commands.records import CommandAnalysis, Segment
from agentcli.safety.commands.rules import rules_by_segment
from agentcli.tools.tool import Workspace, kind_argument

CHANGES_A_FILE = "it changes a file"  # the reason to ask that says no more than that it is an edit


class Verdict(Struct, frozen=True):
    """`needs` and `hosts` are opened for the call where it is allowed, by a person or by itself.

    With `try` it runs on a stand-in of the workspace, and what it changed is decided about afterwards.
    `judged` is where its paths led: the call is about those, wherever they lead once it runs. The sandbox holds
    a command that `only_reads` to that. `exposes` as in exposure.py.
    """

    decision: Literal["allow", "try", "ask", "deny"]
    reason: str
    needs: tuple[Need, ...] = ()
    hosts: tuple[str, ...] = ()
    judged: frozenset[Path] | None = None
    only_reads: bool = False
    exposes: tuple[Path, ...] = ()


def decide(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    """Decide if a call runs, is denied, or needs a person's yes. The catastrophic is refused in every mode."""
    tool = judged.tool
    if denying := _meant(rules.deny, tool.name):
        return Verdict("deny", f"{denying.told} denies it")
    if judged.command is not None:
        only_reads = judged.verdict == "allow" or mode == "plan"
        return replace(_decide_command(judged, judged.command, mode, rules), only_reads=only_reads)
    match tool.effect:
        case "read" | "edit":
            paths = frozenset(target.real for target in judged.targets)
            return replace(_decide_files(judged, mode, rules), judged=paths)
        case "web":
            return _decide_address(judged, mode, rules)
        case "foreign" | "command":
            return _decide_foreign(judged, mode, rules)
        case "agent" | "none" if kind_argument(tool):
            return _decide_kind(judged, mode, rules)
        case _ if asking := _meant(rules.ask, tool.name, lambda pattern: True):
            return _asks(mode, f"{asking.told} wants you to be asked")
        case _:
            return Verdict("allow", "it changes nothing")


def _decide_files(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    tool, targets, needs, workspace = judged.tool, judged.targets, judged.needs, judged.workspace
    kin = {tool.name} | (EDITORS if tool.effect == "edit" else READERS)

    def speaks(pattern: str) -> bool:
        return any(is_refused(pattern, target, workspace) for target in targets)

    for rule in rules.deny:
        if rule.pattern and any(rule.names(name) for name in kin) and speaks(rule.pattern):
            return Verdict("deny", f"{rule.told} denies it")
    if mode == "plan" and tool.effect == "edit":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if asking := _meant(
        rules.ask, tool.name, lambda one: any(is_refused(one, target, workspace) for target in targets)
    ):
        return _asks(mode, f"{asking.told} wants you to be asked", needs)
    if tool.effect == "edit" and workspace.sandbox.profile == "read-only":
        return Verdict("deny", "the sandbox is read-only: nothing may be changed")
    ground = ground_of(workspace)
    for rule in rules.allow:
        if rule.names(tool.name) and all(is_covered(rule, target, ground) for target in targets):
            return Verdict("allow", f"the rule {rule} allows it", needs)
    if mode == "bypassPermissions":
        return _bypassed(targets, needs, workspace)
    if special := next((target for target in targets if target.kind != "plain"), None):
        return _asks(mode, special.why, needs)
    if tool.effect == "read":
        return Verdict("allow", "it only looks")
    if mode in ("acceptEdits", "auto"):
        return Verdict("allow", "edits inside the workspace are accepted")
    return _asks(mode, CHANGES_A_FILE, needs)


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


def _as_rule(path: str) -> str:
    """A path as rules write it: `//x` is absolute, `~/x` at home, `./x` in the working directory."""
    if path.startswith("/"):
        return f"/{path}"
    return path if path.startswith("~/") else f"./{path.removeprefix('./')}"


def _asks(mode: Mode, why: str, needs: tuple[Need, ...] = (), hosts: tuple[str, ...] = ()) -> Verdict:
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed", needs, hosts)
    return Verdict("deny" if mode == "dontAsk" else "ask", why, needs, hosts)


def _decide_command(judged: CallFacts, command: CommandAnalysis, mode: Mode, rules: Rules) -> Verdict:
    tool, needs, hosts, sandbox = judged.tool, judged.needs, judged.hosts, judged.workspace.sandbox
    if judged.verdict == "block":
        return Verdict("deny", f"refused in every mode: {command.reason}")
    if refusing := refusing_rule(judged, rules.deny):
        return Verdict("deny", f"{refusing.told} denies it")
    cannot_ask: Literal["ask", "deny"] = "deny" if mode in ("bypassPermissions", "dontAsk", "plan") else "ask"
    if command.hidden_catastrophe:
        return Verdict(cannot_ask, f"a part of it would be refused: {command.hidden_catastrophe}", needs, hosts)
    if command.unjudged:
        return Verdict(cannot_ask, command.unjudged, needs, hosts)
    if command.unreadable and (denying := _meant(rules.deny, tool.name, lambda pattern: True)):
        why = f"{command.unreadable}, so it cannot be read against deny rules such as {denying}"
        return Verdict(cannot_ask, why, needs, hosts)
    if asking := refusing_rule(judged, rules.ask):
        return _asks(mode, f"{asking.told} wants you to be asked", needs, hosts)
    if getattr(judged.arguments, "unconfined", False) and sandbox.profile != "danger-full-access":
        return Verdict(
            cannot_ask, "it wants to run OUTSIDE the sandbox, which only a person's yes to this very call opens"
        )
    granting, not_granted = allowing_rules(judged, rules.allow)
    is_held = sandbox.confines and sandbox.profile != "danger-full-access"
    if mode == "bypassPermissions" and command.deletes_unseen and not granting and not is_held:
        return Verdict("ask", command.deletes_unseen, needs, hosts)
    opened = [need for need in needs if str(need.path) not in command.scratch]
    may_be_tried = judged.verdict == "try" and not opened and not hosts
    if mode == "bypassPermissions" and not granting:
        if may_be_tried and (command.problem or speaks_of_edits(rules)):
            return Verdict("try", command.problem or command.reason)
        return Verdict("allow", "permissions are bypassed")  # the sandbox opens nothing that nobody granted
    if judged.verdict == "allow":
        if sandbox.confines or sandbox.profile == "danger-full-access":
            return Verdict("allow", "the command only reads inside the workspace")
        return _asks(mode, "no sandbox holds commands here, so every one is asked about")
    if mode == "plan":
        if may_be_tried:
            return Verdict("try", "plan mode keeps none of its changes")
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if granting:
        return Verdict("allow", f"the rule {' and '.join(dict.fromkeys(map(str, granting)))} allows it", needs, hosts)
    is_read = not may_be_tried or not (command.problem or speaks_of_edits(rules))
    if mode == "auto" and sandbox.confines and not needs and not hosts and is_read:
        return Verdict("allow", "it stays inside the sandbox")
    if may_be_tried:
        return Verdict("try", command.reason)
    return _asks(mode, not_granted or command.reason, needs, hosts)


def _decide_address(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    name, address = judged.tool.name, judged.address

    def speaks(pattern: str) -> bool:
        return matches_host(pattern, judged.host)

    if denying := _meant(rules.deny, name, speaks):
        return Verdict("deny", f"{denying.told} denies it")
    if address is not None and address.verdict == "block":
        return Verdict("deny", f"the address is never fetched: {address.reason}")
    if asking := _meant(rules.ask, name, speaks):
        return _asks(mode, f"{asking.told} wants you to be asked")
    if granting := _meant(rules.allow, name, speaks):
        return Verdict("allow", f"the rule {granting} allows it")
    if address is not None and address.verdict == "ask":
        return _asks(mode, address.reason)
    return Verdict("allow", "it only looks something up")


def _decide_foreign(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    """Decide about a tool whose effects nobody here knows: an MCP server's, or one that a library brought."""
    name = judged.tool.name
    if mode == "plan":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if asking := _meant(rules.ask, name, lambda pattern: True):
        return _asks(mode, f"{asking.told} wants you to be asked")
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed")
    if granting := _meant(rules.allow, name):
        return Verdict("allow", f"the rule {granting} allows it")
    told = f"a tool of the MCP server {judged.tool.server}" if judged.tool.server else name
    return _asks(mode, f"what {told} does is not known here")


def _decide_kind(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    """Decide about a subagent or a skill, whose calls are judged by themselves. Rules may name which one is meant."""
    name = judged.tool.name
    speaks = partial(fnmatchcase, getattr(judged.arguments, kind_argument(judged.tool), ""))
    if denying := _meant(rules.deny, name, speaks):
        return Verdict("deny", f"{denying.told} denies it")
    if asking := _meant(rules.ask, name, speaks):
        return _asks(mode, f"{asking.told} wants you to be asked")
    return Verdict("allow", "its calls are judged one by one")


def _meant(of: Iterable[Rule], tool: str, speaks: Callable[[str], bool] = lambda pattern: False) -> Rule | None:
    """Return the first rule that speaks of a call of a tool: of every call, or of this one by its pattern."""
    return next((rule for rule in of if rule.names(tool) and (not rule.pattern or speaks(rule.pattern))), None)


_MOST_SHOWN = 3
_WILD = re.compile(r"[*?\[{]")


def decide_with_exposure(judged: CallFacts, mode: Mode, rules: Rules) -> Verdict:
    """The decision, or one that asks about the secret files in `exposes` as well."""
    verdict, workspace = decide(judged, mode, rules), judged.workspace
    if judged.tool.effect != "command" or verdict.decision == "deny" or mode == "bypassPermissions":
        return verdict
    found = workspace.sandbox.exposed_secrets("read-only" if verdict.only_reads else None)
    exposed = [path for path in found if path not in workspace.exposed and not _is_meant(path, rules, workspace)]
    command = judged.command
    if not exposed or (verdict.only_reads and command is not None and not _may_read(command, exposed)):
        return verdict
    shown = [workspace.shown(path) for path in exposed]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    why = (
        f"this sandbox cannot hide {', '.join(shown[:_MOST_SHOWN])}{more} from commands"
        f" (to allow it always: the rule Read({shown[0]}))"
    )
    return msgspec.structs.replace(
        verdict,
        decision="deny" if mode == "dontAsk" else "ask",
        reason=f"{verdict.reason}; {why}" if verdict.decision == "ask" else why,
        exposes=tuple(exposed),
    )


def _is_meant(path: Path, rules: Rules, workspace: Workspace) -> bool:
    target, ground = look_at_real(path, "read", workspace), ground_of(workspace)
    return any(rule.names("file_read") and rule.pattern and is_covered(rule, target, ground) for rule in rules.allow)


def _may_read(analysis: CommandAnalysis, secrets: Sequence[Path]) -> bool:
    return any(_segment_may_read(segment, secrets) for segment in analysis.segments)


def _segment_may_read(segment: Segment, secrets: Sequence[Path]) -> bool:
    """False for a command that shows no contents, and for one whose every path is known and holds none of them."""
    from agentcli.safety.commands.programs import showing  # with the judge, which is imported for the first command

    words = segment.words
    if words and showing.shows_names_only(words):
        return False
    if not segment.effects.reads:
        return not (words and showing.filters_input(words))
    if words and not showing.names_what_it_reads(words):
        return True
    places = [_above_globs(path) for path in segment.effects.reads]
    return any(secret.is_relative_to(place) for secret in secrets for place in places)


def _above_globs(path: str) -> Path:
    found = _WILD.search(path)
    return Path(path[: found.start()].rpartition("/")[0] or "/") if found else Path(path)


_AND = " and "


def suggested_rules(judged: CallFacts, mode: Mode, rules: Rules) -> tuple[str, ...]:
    """Rules that would have let this call through, narrowest first, each as `parse_rules` reads it.

    A command of several parts takes several rules, which stand together in one text.
    """
    return tuple(text for text in dict.fromkeys(_candidates(judged)) if _lets_through(text, judged, mode, rules))


def _lets_through(text: str, judged: CallFacts, mode: Mode, rules: Rules) -> bool:
    try:
        more = parse_rules(text)
    except UsageError:
        return False
    with_them = Rules([*rules.allow, *more], rules.deny, rules.ask)
    return decide(judged, mode, with_them).decision == "allow"


def _candidates(judged: CallFacts) -> Iterator[str]:
    name = judged.tool.name
    match judged.tool.effect:
        case "command" if judged.command is not None:
            if (command := judged.text.strip()) and not judged.command.problem:
                yield str(Rule(name, escaped(command)))
            yield from _of_parts(name, judged.command)
        case "read" | "edit":
            yield from _paths(judged)
        case "web":
            if judged.host:
                yield f"{name}(domain:{judged.host})"
            yield name
        case _:
            yield name


def _of_parts(tool: str, command: CommandAnalysis) -> Iterator[str]:
    """For each part that does not only read its narrowest rule, then the next wider ones."""
    parts = rules_by_segment(command)
    if not parts:
        return
    for step in range(max(map(len, parts))):
        chosen = dict.fromkeys(str(Rule(tool, choices[min(step, len(choices) - 1)])) for choices in parts)
        yield _AND.join(chosen)


def _paths(judged: CallFacts) -> Iterator[str]:
    """The very file, its folder, every file."""
    tool = judged.tool
    for target in judged.targets:
        shown = judged.workspace.shown(target.real)
        name = f"/{shown}" if shown.startswith("/") else shown
        yield str(Rule(tool.name, escaped(name if "/" in name else f"./{name}")))
        folder = str(PurePosixPath(name).parent)
        if folder not in (".", "/", "//"):
            yield str(Rule(tool.name, f"{escaped(folder)}/**"))
    yield tool.name
