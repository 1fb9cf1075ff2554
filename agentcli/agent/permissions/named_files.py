"""Keeps grants of commands away from files that no rule names: those with secrets, and auto-executed ones.

An auto-executed file is one that programs run or obey without being asked to: git hooks, editor tasks, shell profiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import iglob
from itertools import islice
from pathlib import Path, PurePath

from agentcli.agent.permissions.judge import Judged, known
from agentcli.agent.permissions.rules import Rule
from agentcli.agent.permissions.targets import WHY, Target, ground_of, is_covered, look_at, look_at_real
from agentcli.errors import ToolError
from agentcli.safety.commands.records import CommandAnalysis, Effects
from agentcli.safety.commands.rules import covers
from agentcli.safety.paths.protected import auto_executed, is_protected
from agentcli.safety.paths.secret import is_secret
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Workspace

# A path refused to one tool is refused to those that do the same to it.
READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))

_MAX_FOUND = 1_000  # files that a glob of a command finds


def unnamed_file(judged: Judged, command: CommandAnalysis, rules: Sequence[Rule]) -> str:
    """The reason why grants that speak of a command do not hold: it opens a file that none of them names.

    Blocks: it looks where the paths lead.
    """
    mine = [rule for rule in rules if rule.pattern and rule.names(judged.tool.name) and not command.problem]
    for segment in command.segments:
        naming = [rule.pattern for rule in mine if covers(rule.pattern, segment)]
        effects = segment.effects if segment.verdict != "allow" else Effects()
        if why := _unnamed(effects, rules, naming, judged.workspace):
            return why
    return _unnamed(command.hidden, rules, (), judged.workspace)


def _unnamed(effects: Effects, rules: Sequence[Rule], patterns: Sequence[str], workspace: Workspace) -> str:
    for target in _targets(effects, workspace):
        shown = workspace.shown(Path(target.given))
        if target.kind not in ("secret", "protected"):
            if target.given in effects.writes and _holds_auto_executed(target, workspace):
                return f"{shown} holds files that programs run or obey, and no rule names them"
            continue
        tools = EDITORS if target.access == "write" else {"file_read", *EDITORS}
        by_file = (rule for rule in rules if rule.pattern and any(rule.names(tool) for tool in tools))
        is_named = any(_names(pattern, target.given, workspace.home) for pattern in patterns)
        if not is_named and not any(is_covered(rule, target, ground_of(workspace)) for rule in by_file):
            return f"{shown} {WHY[target.kind]}, and no rule names it"
    return ""


def _targets(effects: Effects, workspace: Workspace) -> Iterator[Target]:
    """The files of a command; a glob stands for itself and for the first files that it finds."""
    paths: list[tuple[str, Access]] = [(path, "read") for path in known(effects.reads)]
    paths += [(path, "write") for path in known((*effects.writes, *effects.deletes))]
    for path, access in paths:
        glob = path.replace("[^", "[!") if re.search(r"[*?\[]", path) else ""
        # Not with pathlib, whose `*` finds `.git`, as a shell's does not.
        found = islice(iglob(glob), _MAX_FOUND) if glob else ()  # noqa: PTH207
        for each in (path, *found):
            try:
                yield look_at(each, access, workspace)
            except ToolError:  # a loop of links
                yield look_at_real(Path(each), access, workspace)


def _holds_auto_executed(target: Target, workspace: Workspace) -> bool:
    """True for a folder around the home's auto-executed files, which would be opened with it."""
    home = workspace.home
    places = (home, *(home / path for path in auto_executed().home))
    return target.is_outside and any(path.is_relative_to(target.real) for path in places)


def _names(pattern: str, path: str, home: Path) -> bool:
    """True if a word of a rule about commands means a file as one that holds secrets or is auto-executed."""
    for word in re.split(r"[\s=:'\"]+", pattern):
        name = re.sub(r"^(?:~|\.)?/", "", word)
        meant = PurePath(re.sub(r"\[([*?[])\]", r"\1", name).replace("*", ".x"))
        if name and (is_secret(meant, home) or is_protected(meant)) and fnmatchcase(path, f"*/{name}"):
            return True
    return False
