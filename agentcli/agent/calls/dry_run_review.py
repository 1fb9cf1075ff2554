"""Reviews a dry run: asks about its obstacles and its changes, and describes which changes were applied."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field, structs

from agentcli.agent.calls.model import NOBODY_LEFT, Call
from agentcli.agent.calls.report import Mask
from agentcli.agent.events import ChangesApproval, CommandApproval, Denial, Notice
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.agent.permissions.call_effects import call_effects, command_effects
from agentcli.agent.permissions.matches import EDITORS, restricts_edits, rule_about
from agentcli.agent.permissions.modes import Mode, PolicyDecision
from agentcli.agent.permissions.rules import Rule, Rules
from agentcli.conversation.history import counted, listed_names
from agentcli.errors import Declined
from agentcli.safety.commands.records import UNKNOWN
from agentcli.safety.paths.judge import PatternBase
from agentcli.tools.command import ApplyOutcome, ChangeSummary, DryRun, DryRunAccess, count_changes
from agentcli.tools.observation import STANDARD_CHARS, as_shown, call_title, cut_line
from agentcli.tools.text.diff import diff_hunks
from agentcli.tools.tool import DryRunReport, ToolOutput

PLAN_REASON = "plan mode discards all changes"
_MAX_COMMAND_CHARS = 60
_MAX_NAMES = 20
_MAX_OUTPUT_LINES = 10
# Groups of changes, in the order of their decisions. The first two are those that a deny or an ask rule covers.
_DENIED, _ASKED, _OTHER, _LOSING, _AUTO_EXECUTED = range(5)


class Obstacle(Struct, frozen=True, kw_only=True):
    """A reason why a dry run shows less than the real run would, and the way around it that a yes allows."""

    why: str  # after "the dry run": "could not reach example.org"
    then: str  # what agentcli will do after a yes: "start it as a job"
    opens: DryRunAccess = ""
    host: str = ""  # a yes opens this host, or the `paths`, to a second dry run
    paths: tuple[Path, ...] = ()
    is_grave: bool = False  # a person must not overlook what a yes opens
    is_server: bool = False  # the command is a server, which a yes starts as a background job


async def ask_about_obstacle(call: Call, permitted: PermittedCall, obstacle: Obstacle, report: DryRunReport) -> bool:
    """Ask the person if agentcli may do `obstacle.then`, which removes an obstacle to a dry run; return True for a yes.

    Raises `Declined` if they refuse to open files: without these the command failed halfway, so nothing is applied.
    """
    use, turn, opens = call.use, call.turn, obstacle.opens
    if permitted.dry_run == "on_request" and (end := last_lines(report.result.output, call.report.mask)):
        turn.emit(Notice(f"The dry run printed:\n{end}"))
    if turn.state.mode == "bypassPermissions":
        return not opens  # yes, but only a person may give access to a host or a path
    if turn.session.ask is None or turn.state.mode in ("plan", "dontAsk"):
        # Nobody is asked, so a remark tells the model. Missing access and a limit are in the output already.
        if not (opens or report.dry_run.exceeded_limit):
            call.report.remarks.append(f"[The dry run {obstacle.why}.]")
        return False
    facts, why, then = permitted.policy.facts, f"the dry run {obstacle.why}", obstacle.then
    if permitted.dry_run == "always" and facts.command is not None:  # nobody was asked, so no reason to ask is shown
        effects = command_effects(facts, facts.command)
    else:  # the person chose "dry run first" when asked, so the reason to ask still matters
        effects = call_effects(facts, permitted.decision)
    if not opens:
        lines, grave = (f"{why}; {then}?", *effects.lines), effects.grave
    else:  # what follows is another dry run, which changes nothing, so only what it opens can be grave
        lines = (*effects.lines, why)
        grave = (why,) if obstacle.is_grave else ()
    question = CommandApproval(
        use.id,
        call_title(use.name, use.input),
        call=use,
        reason=f"{why}; if you approve, agentcli will {then}" + ("; if not, it is discarded" if obstacle.paths else ""),
        preview=str(use.input.get("command", "")),
        rules=() if opens or obstacle.is_server else permitted.policy.offered_rules,
        effects=lines,
        grave=grave,
        opens=opens,
    )
    answer = await permitted.policy.ask(question, None)
    if not isinstance(answer, Approve):  # the turn was stopped
        return False
    # Refusing to open files is a denial, unless the answer only means that nobody was left to ask.
    if obstacle.paths and not answer.allowed and answer.comment != NOBODY_LEFT:
        turn.denials.append(Denial(use))
        declined = Declined(answer.comment, f"to {then}, so the dry run was discarded and nothing was applied")
        declined.partial = str(report.output().content)
        raise declined
    if answer.comment:
        call.report.remarks.append(f"[The user said: {answer.comment}]")
    return answer.allowed


class Review(Struct, kw_only=True):
    """The decision on the changes of a dry run."""

    report: DryRunReport
    approved: list[str] = field(default_factory=list)  # the names of the changes to apply
    chosen_hunks: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by name, for changes to apply in part
    rejected_hunks: str = ""  # the text of the hunks that the person rejected
    is_answered: bool = False  # the person has decided about changes
    comment: str = ""
    discard_reason: str = ""  # the reason why changes were discarded without a question
    is_denied: bool = False  # changes were discarded without a question, other than by plan mode, which always does so

    def add_decision(self, decision: PolicyDecision, changes: Sequence[ChangeSummary]) -> None:
        """Approve or discard changes by a decision of the rules or the mode."""
        if decision.outcome == "allow":
            self.approved += [change.name for change in changes]
        else:
            self.discard_reason = decision.reason
            self.is_denied |= decision.reason != PLAN_REASON

    def add_answer(self, question: ChangesApproval, hunks: Sequence[int] | None, comment: str) -> None:
        """Approve what the person chose: `hunks` are indices into the hunks of all changes in a row; None means all."""
        self.is_answered = True
        self.comment = "; ".join(filter(None, (self.comment, comment)))
        offset = 0  # the number of the change's first hunk in the question
        for change in question.changes:
            numbers = range(change.hunks)
            chosen = tuple(number for number in numbers if hunks is None or offset + number in hunks)
            if chosen:
                self.approved.append(change.name)
            if 0 < len(chosen) < change.hunks:
                self.chosen_hunks[change.name] = chosen
                self.rejected_hunks += "".join(question.hunks[offset + n] for n in numbers if n not in chosen)
            offset += change.hunks

    def _remark(self, applied: ApplyOutcome) -> str:
        """Return a text that tells the model which changes are in the workspace now."""
        attempted = {*applied.names, *(conflict.name for conflict in applied.conflicts)}
        discarded = [change.name for change in self.report.dry_run.changes if change.name not in attempted]
        if not (discarded or applied.conflicts or self.comment or self.chosen_hunks):
            return ""  # all changes were applied, as the model expects
        why, discarded_names = self.discard_reason, listed_names(discarded, _MAX_NAMES)
        in_full = [name for name in applied.names if name not in self.chosen_hunks]
        in_part = [self._partial_change(name) for name in applied.names if name in self.chosen_hunks]
        parts = [
            f"Applied: {listed_names(in_full, _MAX_NAMES)}." if in_full else "",
            f"Partly applied: {listed_names(in_part, _MAX_NAMES)}." if in_part else "",
            f"Discarded, so not changed: {discarded_names}{f' ({why})' if why else ''}." if discarded else "",
            *(f"Not applied: {conflict.name} ({conflict.why})." for conflict in applied.conflicts),
        ]
        if not attempted:
            fate = "the user discarded its changes" if self.is_answered else f"its changes were discarded: {why}"
            parts = [f"It was a dry run, and {fate}. No file was changed: {discarded_names}."]
        if self.comment:
            parts.append(f"The user said: {self.comment}")
        if rejected := self.rejected_hunks.rstrip():
            parts.append(f"The user rejected these hunks, so they are not in the workspace:\n{rejected}")
        return " ".join(filter(None, parts))

    def output(self, applied: ApplyOutcome) -> ToolOutput:
        """Return the result of a command that made changes, which says for each change whether it was applied."""
        changes, applied_count = self.report.dry_run.changes, len(applied.names)
        applied_changes = [change for change in changes if change.name in applied.names]
        outcome = "" if applied_count == len(changes) else "only applied: " if applied_count else "discarded: "
        summary = outcome + count_changes(applied_changes or changes)
        if applied.conflicts:  # the first one is enough for one line; it says more than "discarded"
            failure = f"not applied: {applied.conflicts[0].name} ({applied.conflicts[0].why})"
            summary = f"{summary}; {failure}" if applied_count else failure
        output = dry_run_output(self.report, self._remark(applied), summary)
        structured = {
            **(output.structured if isinstance(output.structured, dict) else {}),
            "changes": [{"name": change.name, "kind": change.kind, "what": change.what} for change in changes],
            "kept": list(applied.names),
        }
        if self.chosen_hunks:
            structured["kept_hunks"] = {name: list(chosen) for name, chosen in self.chosen_hunks.items()}
        # Plan mode always discards changes, so that alone is not an error.
        was_rejected = not applied_count and (self.is_answered or self.is_denied)
        is_error = output.is_error or was_rejected or bool(applied.conflicts)
        return structs.replace(output, structured=structured, is_error=is_error)

    def answer(self, applied: ApplyOutcome) -> str:
        """Describe the person's answer; empty if nobody was asked."""
        if not self.is_answered:
            return ""
        count, total = len(applied.names), len(self.report.dry_run.changes)
        if count:
            words = "applied" if count == total else f"applied {count} of {total}"
        else:
            words = "not applied" if applied.conflicts else "discarded"
        words += "".join(f" · {self._partial_change(name)}" for name in applied.names if name in self.chosen_hunks)
        return f"{words} · “{self.comment}”" if self.comment else words

    def _partial_change(self, name: str) -> str:
        hunks = next(change.hunks for change in self.report.dry_run.changes if change.name == name)
        return f"{name} ({len(self.chosen_hunks[name])} of {hunks} hunks)"


async def review_changes(call: Call, permitted: PermittedCall, report: DryRunReport) -> Review:
    """Let rules and the mode decide about groups of changes, and ask about the rest."""
    turn, review = call.turn, Review(report=report)
    mode = None if permitted.dry_run == "on_request" else turn.state.mode  # who requests a dry run wants to decide
    base = permitted.policy.facts.paths.base
    # `rule` is the deny or ask rule that covers the group; None if only the mode decides.
    for order, rule, changes in await asyncio.to_thread(_groups, report.dry_run, turn.state.rules, base, mode):
        decision = None
        if rule is not None and order == _DENIED:
            decision = PolicyDecision(outcome="deny", reason=f"{rule.phrase} denies it")
        elif mode is not None:
            decision = _decision_of_mode(mode, changes, rule)
        if decision is None and turn.session.ask is None:
            decision = PolicyDecision(outcome="deny", reason="no one can approve them")
        if decision is None:
            await _ask_about_changes(call, permitted, review, changes, ask_rule=rule)
        else:
            review.add_decision(decision, changes)
    return review


Group = tuple[int, Rule | None, list[ChangeSummary]]


def _groups(dry_run: DryRun, rules: Rules, base: PatternBase, mode: Mode | None) -> list[Group]:
    """Return the groups of changes that are decided about together, each with its deny or ask rule, if any."""
    # These modes apply changes without a question, unless work is lost: such changes form a group of their own.
    applies_unasked = mode in ("acceptEdits", "auto", "bypassPermissions")
    found: dict[tuple[int, Rule | None], list[ChangeSummary]] = {}
    for change in dry_run.changes:
        paths = dry_run.paths_of(change.name) if restricts_edits(rules) else []  # only such rules need the paths
        if (rule := rule_about(paths, rules.deny, base, tools=EDITORS)) is not None:
            order = _DENIED
        elif (rule := rule_about(paths, rules.ask, base, tools=EDITORS)) is not None:
            order = _ASKED
        elif change.is_auto_executed:  # other programs execute it, such as a git hook
            order = _AUTO_EXECUTED
        else:
            order = _LOSING if applies_unasked and change.permanent_loss else _OTHER
        found.setdefault((order, rule), []).append(change)
    return [(order, rule, found[order, rule]) for order, rule in sorted(found, key=lambda key: key[0])]


def _decision_of_mode(mode: Mode, changes: Sequence[ChangeSummary], ask_rule: Rule | None) -> PolicyDecision | None:
    """Return a mode's decision about changes; None if the mode asks. `ask_rule` is a rule that asks about them."""
    if mode in ("plan", "dontAsk"):
        reason = PLAN_REASON if mode == "plan" else "changes that need approval are discarded"
        return PolicyDecision(outcome="deny", reason=reason)
    if ask_rule is not None and mode != "bypassPermissions":
        return None
    losses = {change.permanent_loss for change in changes}
    # The losses (see `ChangeSummary`) that each mode accepts. A change that loses a "tree" always needs a question.
    may_lose = {"acceptEdits": {""}, "auto": {"", "work"}, "bypassPermissions": {"", "work"}}.get(mode, set())
    is_allowed = losses <= may_lose and not any(change.is_auto_executed for change in changes)
    return PolicyDecision(outcome="allow", reason="") if is_allowed else None


async def _ask_about_changes(
    call: Call, permitted: PermittedCall, review: Review, changes: Sequence[ChangeSummary], *, ask_rule: Rule | None
) -> None:
    question = _question(call, permitted, review.report, changes, ask_rule=ask_rule)

    def decide() -> PolicyDecision:
        return _decision_of_mode(call.turn.state.mode, changes, ask_rule) or PolicyDecision(outcome="ask", reason="")

    answer = await permitted.policy.ask(question, decide)
    if isinstance(answer, PolicyDecision):
        review.add_decision(answer, changes)
    else:
        review.add_answer(question, answer.hunks if answer.allowed else (), answer.comment)


def _question(
    call: Call, permitted: PermittedCall, report: DryRunReport, changes: Sequence[ChangeSummary], ask_rule: Rule | None
) -> ChangesApproval:
    """Return the question about a group of changes; `ask_rule` is the rule that requires it, if any."""
    use, mask = call.use, call.report.mask
    texts = [mask.text(_change_text(change)) for change in changes]
    hunks = [_hunks_of(change, text) for change, text in zip(changes, texts, strict=True)]
    # A single hunk is the whole diff, so the summary does not repeat it.
    summaries = tuple(
        structs.replace(change, diff=text if len(parts) > 1 else "", hunks=len(parts))
        for change, text, parts in zip(changes, texts, hunks, strict=True)
    )
    result, is_auto_executed = report.result, any(change.is_auto_executed for change in changes)
    end = "it was killed" if result.exit_code is None else f"exit code {result.exit_code}"
    has_failed = result.timed_out or result.exit_code != 0
    reasons = [
        f"{ask_rule.phrase} requires approval" if ask_rule is not None else "",
        f"it {permitted.network_phrase}" if permitted.dry_run == "on_request" else "",
        "other programs execute these files automatically" if is_auto_executed else "",
        "it timed out" if result.timed_out else end if has_failed else "",
        "nothing has been applied yet",
    ]
    line, *more = str(use.input.get("command", use.name)).strip().splitlines() or [""]
    title = f"{line[:_MAX_COMMAND_CHARS]} …" if more or len(line) > _MAX_COMMAND_CHARS else line
    return ChangesApproval(
        use.id,
        f"{title}: {count_changes(changes)}",
        call=use,
        reason="; ".join(filter(None, reasons)),
        preview="\n".join(texts),
        rules=() if is_auto_executed or ask_rule else permitted.policy.offered_rules,
        hunks=tuple(hunk for parts in hunks for hunk in parts),
        changes=summaries,
        output=last_lines(result.output, mask),
        has_failed=has_failed or lacks_hosts(permitted),  # the changes may be incomplete
    )


def last_lines(output: str, mask: Mask) -> str:
    """Return the last lines of a command's output, in the form for the person."""
    lines = as_shown(mask.text(output)).strip("\n").split("\n")
    return "\n".join(cut_line(line, STANDARD_CHARS) for line in lines[-_MAX_OUTPUT_LINES:])


def lacks_hosts(permitted: PermittedCall) -> bool:
    """Return True if the command needs hosts that its text does not name, so that the dry run could reach none."""
    command = permitted.policy.facts.command
    may_reach = command is not None and command.verdict == "ask" and UNKNOWN in command.effects.hosts
    return may_reach and not permitted.grants.hosts


def _hunks_of(change: ChangeSummary, text: str) -> tuple[str, ...]:
    """Return the parts of a change that can be applied separately, each with the diff's lines that name the file."""
    parts = diff_hunks(text)
    if change.hunks == 1 or len(parts) != change.hunks:  # masking a multi-line secret may have joined hunks
        return (text,)
    file_lines = text[: text.index("\n@@ ") + 1]
    return tuple(file_lines + part for part in parts)


def _change_text(change: ChangeSummary) -> str:
    """Return a change as text: notes about it, then its diff, or a description if there is no diff."""
    if change.kind == "renamed":
        *others, equal_share = change.notes  # a rename's last note: "90 % equal"
        return "".join([f"renamed {change.name} ({equal_share})\n", *(f"  {note}\n" for note in others), change.diff])
    notes = "".join(f"  {note}\n" for note in change.notes)
    if change.diff and change.what != "repository":
        return f"{change.name}\n{notes}{change.diff}" if notes else change.diff  # the diff names its file
    if change.kind == "mode":
        return f"changed mode of {change.what} {change.name}\n{notes}{change.diff}"
    contents = ""
    is_whole_repository = change.what == "repository" and change.kind != "changed"
    if change.what in ("folder", "tree") or is_whole_repository:
        contents = f" · {counted(change.files, 'file')}" if change.files else " · empty"
        contents += f" · {_format_bytes(change.size)}" if change.size else ""
    return f"{change.kind} {change.what} {change.name}{contents}\n{notes}{change.diff}"


def _format_bytes(size: int) -> str:
    for unit, unit_size in (("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)):
        if size >= unit_size:
            return f"{size / unit_size:.1f} {unit}"
    return f"{size} bytes"


def dry_run_output(report: DryRunReport, remark: str, summary: str) -> ToolOutput:
    """Return the result of the command with a remark about its changes."""
    output, cached = report.output(), report.dry_run.cached
    notes = [f"[{remark}]"] if remark else []
    if cached:
        notes.append(
            f"[caches, kept for later dry runs and not applied to the workspace: {listed_names(cached, _MAX_NAMES)}]"
        )
    text = output.content if isinstance(output.content, str) else ""
    content, summaries = "\n".join(filter(None, (text, *notes))), filter(None, (output.summary, summary))
    return structs.replace(output, content=content, summary="; ".join(summaries))
