"""Holds rules against a shell command: which of them refuse any part of it, and which allow all of it.

Grants of commands are kept away from files that no rule names: those with secrets, and auto-executed ones. An
auto-executed file is one that programs run or obey without being asked to: git hooks, editor tasks, shell profiles.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath

from agentcli.agent.permissions.facts import (
    WHY,
    CallFacts,
    Target,
    ground_of,
    is_covered,
    is_refused,
    known,
    look_at,
    look_at_real,
    real_or_given,
)
from agentcli.agent.permissions.rules import Rule, Rules, escaped, matches_host
from agentcli.errors import ToolError
from agentcli.safety.commands.records import CommandAnalysis, Effects, Segment
from agentcli.safety.commands.rules import covers, touches
from agentcli.safety.paths.protected import auto_executed, is_protected
from agentcli.safety.paths.secret import is_secret
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Workspace


def refusing_rule(judged: CallFacts, rules: Sequence[Rule]) -> Rule | None:
    """The first restricting rule that speaks of a command: of any part of it, or of a file or host it uses."""
    assert judged.command is not None
    return next((rule for rule in rules if _touches(rule, judged, judged.command)), None)


def speaks_of_edits(rules: Rules) -> bool:
    """Return True if a rule restricts which files are changed: what a command did is held against those as well."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about_edits(paths: Sequence[Path], rules: Sequence[Rule], workspace: Workspace) -> Rule | None:
    """The first restricting rule that speaks of changing one of these real paths."""
    targets = [Target(str(path), path, "write", "plain") for path in paths]
    for rule in rules:
        if rule.pattern and rule.tool in EDITORS and any(is_refused(rule.pattern, one, workspace) for one in targets):
            return rule
    return None


def _touches(rule: Rule, judged: CallFacts, command: CommandAnalysis) -> bool:
    if rule.names(judged.tool.name):
        if not rule.pattern:
            return True
        text = " ".join(judged.text.split())
        return any(touches(rule.pattern, segment) for segment in (*command.segments, _whole(text)))
    if not rule.pattern:
        return False
    effects = command.effects | command.hidden
    if rule.tool in READERS:
        return _speaks_of(rule.pattern, effects.reads, "read", judged.workspace)
    if rule.tool in EDITORS:
        return _speaks_of(rule.pattern, (*effects.writes, *effects.deletes), "write", judged.workspace)
    return rule.tool == "web_fetch" and any(matches_host(rule.pattern, host) for host in effects.hosts)


def _whole(text: str) -> Segment:
    return Segment(text, None, "try", "", deny_forms=(text,))


def _speaks_of(pattern: str, paths: tuple[str, ...], access: Access, workspace: Workspace) -> bool:
    targets = (Target(path, real_or_given(path, workspace), access, "plain") for path in known(paths))
    return any(is_refused(pattern, target, workspace) for target in targets)


def allowing_rules(judged: CallFacts, rules: Sequence[Rule]) -> tuple[list[Rule], str]:
    """The grants that together speak of every part of a command that does not only read; none when a part is left.

    Without grants also the reason why those that speak of it do not hold, if there are any.

    Of a command that is not read no part is known to be all: only a grant of the whole tool speaks of it. No grant of
    commands opens a file with secrets or an auto-executed one: it has to be the very command, or a rule has to name the
    file.
    """
    command = judged.command
    assert command is not None
    mine = [rule for rule in rules if rule.names(judged.tool.name)]
    whole = escaped(judged.text.strip())
    exact = next((rule for rule in mine if rule.pattern == whole), None)
    if exact is not None and not command.problem:
        return [exact], ""
    found = _covering_rules(command, mine)
    why = unnamed_file(judged, command, rules) if found else ""
    return ([], why) if why else (found, "")


def _covering_rules(command: CommandAnalysis, mine: Sequence[Rule]) -> list[Rule]:
    if command.problem:
        return [rule for rule in mine if not rule.pattern][:1]
    found: list[Rule] = []
    for segment in command.segments:
        if segment.verdict == "allow":
            continue
        rule = next((rule for rule in mine if not rule.pattern or covers(rule.pattern, segment)), None)
        if rule is None:
            return []
        found.append(rule)
    return found


# A path refused to one tool is refused to those that do the same to it.
READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))

_MAX_SEARCH_S = 0.5  # for the globs of a command
_MAX_FOUND = 1_000  # files that a glob of a command finds


def unnamed_file(judged: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]) -> str:
    """The reason why grants that speak of a command do not hold: it opens a file that none of them names.

    Blocks: it looks where the paths lead.
    """
    mine = [rule for rule in rules if rule.pattern and rule.names(judged.tool.name) and not command.problem]
    search = _Search("dotglob" in judged.text)
    parts: list[tuple[Effects, list[str]]] = [(command.hidden, [])]
    for segment in command.segments:
        if segment.verdict != "allow" or search.finds_hidden:
            parts.append((segment.effects, [rule.pattern for rule in mine if covers(rule.pattern, segment)]))
    reasons = (_unnamed(effects, rules, naming, judged.workspace, search) for effects, naming in parts)
    why = next(filter(None, reasons), "")
    if not why and search.is_cut_off:
        return "its wildcards find too many files to tell if secrets are among them"
    return why


def _unnamed(
    effects: Effects, rules: Sequence[Rule], patterns: Sequence[str], workspace: Workspace, search: _Search
) -> str:
    for target in _targets(effects, workspace, search):
        shown = workspace.shown(Path(target.given))
        if target.kind not in ("secret", "protected"):
            if target.given in effects.writes and _holds_auto_executed(target, workspace):
                return f"{shown} contains auto-executed files, and no rule names them"
            continue
        tools = EDITORS if target.access == "write" else {"file_read", *EDITORS}
        by_file = (rule for rule in rules if rule.pattern and any(rule.names(tool) for tool in tools))
        is_named = any(_names(pattern, target.given, workspace.home) for pattern in patterns)
        if not is_named and not any(is_covered(rule, target, ground_of(workspace)) for rule in by_file):
            return f"{shown} {WHY[target.kind]}, and no rule names it"
    return ""


def _targets(effects: Effects, workspace: Workspace, search: _Search) -> Iterator[Target]:
    """The files of a command; a glob stands for itself and for the first files that it finds."""
    paths: list[tuple[str, Access]] = [(path, "read") for path in known(effects.reads)]
    paths += [(path, "write") for path in known((*effects.writes, *effects.deletes))]
    for path in effects.names:
        # A message may end with the name of a file.
        if not re.search(r"\s", workspace.shown(Path(path))) or os.path.lexists(path):
            paths.append((path, "read" if is_secret(PurePath(path), workspace.home) else "write"))
    for path, access in paths:
        for each in (path, *search.found_by(path)):
            try:
                yield look_at(each, access, workspace)
            except ToolError:  # a loop of links
                yield look_at_real(Path(each), access, workspace)


class _Search:
    """Finds files by globs, as a shell does, for a short time; it `is_cut_off` where that is not enough."""

    def __init__(self, finds_hidden: bool) -> None:
        self.finds_hidden = finds_hidden  # by `*`, with bash's option `dotglob`
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
