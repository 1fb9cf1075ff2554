"""Decides if a call may run, by its effects, the rules and the mode; if none of them decides, the person is asked.

Where no sandbox hides the workspace's secret files from commands, a command that could read them asks first, once per
session, because a yes is about the files. An allow rule for a file, such as Read(.env), has the same effect.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import structs

from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.matches import RuleMatches, covers_path, find_matches, restricts_edits
from agentcli.agent.permissions.modes import Mode, PolicyDecision
from agentcli.agent.permissions.rules import Rule, Rules, parse_rules
from agentcli.conversation.history import listed_names
from agentcli.errors import UsageError
from agentcli.patterns import lazy_pattern
from agentcli.safety.commands.records import CommandAnalysis, escaped, rules_by_segment
from agentcli.safety.paths.judge import PathFacts
from agentcli.tools.tool import kind_argument
from agentcli.tools.workspace import Workspace

_MAY_FAIL_IN_SANDBOX = lazy_pattern(r"git (branch|checkout|clean|config|remote|switch)\b")
CHANGES_A_FILE = "it changes a file"  # the reason to ask about an ordinary edit; it adds nothing to a diff


def decide(facts: CallFacts, mode: Mode, rules: Rules) -> PolicyDecision:
    """Decide if a call runs, is denied, or needs approval. Catastrophic commands are denied in every mode."""
    tool, address, found = facts.tool, facts.address, find_matches(facts, rules)
    if facts.command is not None:
        only_reads = facts.verdict == "allow" or mode == "plan"  # the sandbox enforces this
        decision = _decide_command(facts, facts.command, mode, found, rules=rules)
        runs_outside = decision.outcome == "ask" and mode != "plan" and bool(facts.why_runs_outside)
        return structs.replace(decision, only_reads=only_reads, runs_outside=runs_outside)
    if found.deny is not None:
        return PolicyDecision(outcome="deny", reason=f"{found.deny.phrase} denies it")
    if mode == "plan" and tool.effect in ("edit", "foreign", "command"):
        return PolicyDecision(outcome="deny", reason=_PLAN)
    if address is not None and address.verdict == "block":
        return PolicyDecision(outcome="deny", reason=f"this address is blocked: {address.reason}")
    if found.ask is not None:
        return _ask_or_deny(mode, f"{found.ask.phrase} requires approval")
    if tool.effect == "edit" and facts.workspace.facts.profile == "read-only":
        return PolicyDecision(outcome="deny", reason="the sandbox is read-only, so files cannot be changed")
    if found.allow:
        return PolicyDecision(outcome="allow", reason=f"the rule {found.allow[0]} allows it")
    match tool.effect:
        case "read" | "edit":
            return _decide_files(facts, mode)
        case "web" if address is not None and address.verdict == "ask":
            return _ask_or_deny(mode, address.reason)
        case "web":
            return PolicyDecision(outcome="allow", reason="it only reads from the web")
        case "foreign" | "command":
            subject = f"a tool of the MCP server {tool.server}" if tool.server else tool.name
            return _ask_or_deny(mode, f"agentcli can't predict what {subject} does")
        case _:  # `create_subagent` and `skill` only lead to further calls; the rest leaves the project as it is
            why = "each of its calls is checked separately" if kind_argument(tool) else "it makes no changes"
            return PolicyDecision(outcome="allow", reason=why)


def _decide_files(facts: CallFacts, mode: Mode) -> PolicyDecision:
    if mode == "bypassPermissions":
        return _decide_bypassed(facts)
    special = next((path for path in facts.files if path.kind != "plain"), None)
    if special is not None:
        return _ask_or_deny(mode, special.why)
    if facts.tool.effect == "read":
        return PolicyDecision(outcome="allow", reason="it only reads")
    if mode in ("acceptEdits", "auto"):
        return PolicyDecision(outcome="allow", reason="the mode allows edits inside the workspace")
    return _ask_or_deny(mode, CHANGES_A_FILE)


def _decide_bypassed(facts: CallFacts) -> PolicyDecision:
    """Decide about files while permissions are bypassed, which opens neither secret files nor the sandbox."""
    profile = facts.workspace.facts.profile
    for path in facts.files:
        if path.holds_secrets:
            rule = Rule(facts.tool.name, _pattern_of_file(path, facts.workspace))
            return PolicyDecision(outcome="deny", reason=f"{path.why}: add a rule for it, such as {rule}")
        if profile != "danger-full-access" and path.is_read_only:
            return PolicyDecision(outcome="deny", reason=f"{path.why}, and the sandbox ({profile}) does not allow that")
    return PolicyDecision(outcome="allow", reason="permissions are bypassed")


def _pattern_of_file(path: PathFacts, workspace: Workspace) -> str:
    """Return the pattern that matches only this file: `//x` is absolute, `x` in any folder, `./x` in this one."""
    shown = workspace.shown(path.real)
    file = f"/{shown}" if shown.startswith("/") else shown
    return escaped(file if "/" in file else f"./{file}")


def _ask_or_deny(mode: Mode, why: str) -> PolicyDecision:
    """Return the decision on a call that needs approval: modes that never ask allow or deny it instead."""
    if mode == "bypassPermissions":
        return PolicyDecision(outcome="allow", reason="permissions are bypassed")
    return PolicyDecision(outcome="deny" if mode == "dontAsk" else "ask", reason=why)


_PLAN = "plan mode is read-only: describe the change instead of making it"


def _decide_command(
    facts: CallFacts, command: CommandAnalysis, mode: Mode, found: RuleMatches, *, rules: Rules
) -> PolicyDecision:
    """Decide about a command: dangers, deny and ask rules, mode, allow rules, dry runs. The first that applies wins."""
    sandbox, allow_rules = facts.workspace.facts, found.allow
    if facts.verdict == "block":
        return PolicyDecision(outcome="deny", reason=f"denied in every mode: {command.reason}")
    if found.deny is not None:
        return PolicyDecision(outcome="deny", reason=f"{found.deny.phrase} denies it")
    # The decision on a command that only the person may allow: modes that never ask, and plan mode, deny it. For less
    # serious questions there is `_ask_or_deny`, which allows them in the mode bypassPermissions.
    person_only: Literal["ask", "deny"] = "deny" if mode in ("bypassPermissions", "dontAsk", "plan") else "ask"
    if command.doubts.must_ask:
        return PolicyDecision(outcome=person_only, reason=command.doubts.must_ask)
    if command.doubts.unreadable and found.denies_some is not None:
        why = f"{command.doubts.unreadable}, so deny rules such as {found.denies_some} cannot be checked"
        return PolicyDecision(outcome=person_only, reason=why)
    if found.ask is not None:
        return _ask_or_deny(mode, f"{found.ask.phrase} requires approval")
    if getattr(facts.arguments, "unconfined", False) and sandbox.profile != "danger-full-access":
        why = "it asks to run OUTSIDE the sandbox, which requires a person's approval for each call"
        return PolicyDecision(outcome=person_only, reason=why)
    if mode not in ("bypassPermissions", "plan") and facts.why_runs_outside:
        return _ask_or_deny(mode, facts.why_runs_outside)
    # This is all that bypass mode asks about: without a sandbox, nothing limits deletions that the text does not name.
    is_confined = sandbox.confines and sandbox.profile != "danger-full-access"
    if mode == "bypassPermissions" and command.deletes_unseen and not allow_rules and not is_confined:
        return PolicyDecision(outcome="ask", reason=command.deletes_unseen)
    # A dry run can reach no host, and no file outside the workspace except in scratch folders.
    reaches_out = bool(facts.hosts) or any(str(file.real) not in command.scratch for file in facts.blocked_files)
    # These commands of git replace its settings or remove folders, which may fail in the sandbox but not in a dry run.
    # A deny form is the text of a simple command without wrappers and quotes.
    may_fail = any(_MAY_FAIL_IN_SANDBOX.match(form) for segment in command.segments for form in segment.deny_forms)
    is_safer_as_dry_run = may_fail and facts.dry_run == "always" and mode in ("auto", "bypassPermissions")
    may_dry_run = (facts.verdict == "try" or is_safer_as_dry_run) and not reaches_out
    # Only a dry run shows what else a command with a `problem` runs, and which files it changes, for rules about edits.
    needs_dry_run = may_dry_run and bool(command.problem or restricts_edits(rules) or may_fail)
    if mode == "bypassPermissions" and not allow_rules:
        if needs_dry_run:
            return PolicyDecision(outcome="dry_run", reason=command.problem or command.reason, includes_grants=False)
        # Nobody has granted access to files and hosts outside the sandbox.
        return PolicyDecision(outcome="allow", reason="permissions are bypassed", includes_grants=False)
    if facts.verdict == "allow":
        if sandbox.confines or sandbox.profile == "danger-full-access":
            return PolicyDecision(outcome="allow", reason="the command only reads inside the workspace")
        return _ask_or_deny(mode, "there is no sandbox here, so every command requires approval")
    if mode == "plan" and may_dry_run:
        return PolicyDecision(outcome="dry_run", reason="plan mode discards its changes", includes_grants=False)
    if mode == "plan":
        return PolicyDecision(outcome="deny", reason=_PLAN)
    if allow_rules:
        names = " and ".join(dict.fromkeys(map(str, allow_rules)))
        return PolicyDecision(outcome="allow", reason=f"the rule {names} allows it")
    if mode == "auto" and sandbox.confines and not (facts.blocked_files or facts.hosts or needs_dry_run):
        return PolicyDecision(outcome="allow", reason="it stays inside the sandbox")
    if may_dry_run:
        return PolicyDecision(outcome="dry_run", reason=command.reason, includes_grants=False)
    return _ask_or_deny(mode, found.why_not_allowed or command.reason)


_MAX_SHOWN = 3  # secret files in a reason


def decide_with_exposure(facts: CallFacts, mode: Mode, rules: Rules) -> PolicyDecision:
    """Decide like `decide`, but also ask about secret files that the sandbox cannot hide from a command."""
    decision, workspace = decide(facts, mode, rules), facts.workspace
    if facts.tool.effect != "command" or decision.outcome == "deny" or mode == "bypassPermissions":
        return decision
    # Landlock can hide files from commands that only read, but not from others.
    exposed = [
        path
        for path in workspace.facts.exposed_secrets("read-only" if decision.only_reads else None)
        if path not in workspace.session_grants.exposed and not _is_allowed_by_name(path, facts, rules)
    ]
    if not exposed:
        return decision
    if decision.only_reads and facts.command is not None:
        from agentcli.safety.commands.reads import may_show  # late: most sandboxes hide secret files

        if not any(may_show(segment, exposed) for segment in facts.command.segments):
            return decision
    shown = [workspace.shown(path) for path in exposed]
    how_to_allow = f"to always allow this: the rule Read({shown[0]})"
    why = f"this sandbox cannot hide {listed_names(shown, _MAX_SHOWN)} from commands ({how_to_allow})"
    return structs.replace(
        decision,
        outcome="deny" if mode == "dontAsk" else "ask",
        reason=f"{decision.reason}; {why}" if decision.outcome == "ask" else why,
        exposed_files=tuple(exposed),
    )


def _is_allowed_by_name(path: Path, facts: CallFacts, rules: Rules) -> bool:
    """Return True if an allow rule for reading, such as Read(.env), covers a secret file."""
    secret, base = facts.paths.find_real(str(path), "read"), facts.paths.base
    return any(rule.is_about("file_read") and rule.pattern and covers_path(rule, secret, base) for rule in rules.allow)


def suggested_rules(facts: CallFacts, mode: Mode, rules: Rules) -> tuple[str, ...]:
    """Return rules that would have allowed this call, narrowest first. One text may have several, joined by "and"."""
    suggested = []
    for text in dict.fromkeys(_possible_rules(facts)):
        with suppress(UsageError):  # the text of a command may not be valid in a rule
            with_grants = Rules([*rules.allow, *parse_rules(text)], rules.deny, rules.ask)
            if decide(facts, mode, with_grants).outcome == "allow":
                suggested.append(text)
    return tuple(suggested)


def _possible_rules(facts: CallFacts) -> Iterator[str]:
    """Yield rules that may allow a call, narrowest first; the last covers all calls of a tool other than `bash`."""
    name, command = facts.tool.name, facts.command
    if facts.why_runs_outside:  # no rule lets a command leave the sandbox
        return
    if command is not None:
        if (text := facts.command_text.strip()) and not command.problem:
            yield str(Rule(name, escaped(text)))
        choices = rules_by_segment(command)  # for each segment its patterns, the narrowest first
        for width in range(max(map(len, choices), default=0)):  # a segment without a wider pattern keeps its widest
            rules = (Rule(name, patterns[min(width, len(patterns) - 1)]) for patterns in choices)
            yield " and ".join(map(str, dict.fromkeys(rules)))  # such as "bash(cd docs) and bash(make)"
        return
    if facts.tool.effect in ("read", "edit"):
        for path in facts.files:
            pattern = _pattern_of_file(path, facts.workspace)
            yield str(Rule(name, pattern))
            folder = str(PurePosixPath(pattern).parent)
            if folder not in (".", "/", "//"):
                yield str(Rule(name, f"{folder}/**"))
    elif facts.tool.effect == "web":
        yield from (f"{name}(domain:{host})" for host in facts.hosts if host)
    yield name
