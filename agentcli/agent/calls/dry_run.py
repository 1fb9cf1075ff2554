"""Runs a command as a dry run, and decides which of its changes are applied."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace as copied
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.calls.dry_run_review import (
    PLAN,
    Review,
    counted,
    dry_run_output,
    ending_of,
    hunks_of,
    short_command,
    shown_change,
    summary_of,
)
from agentcli.agent.calls.model import Call
from agentcli.agent.calls.recording import recorded
from agentcli.agent.events import ChangesApproval, CommandApproval, Denial, Notice
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.decide import Verdict, decide, suggested_rules
from agentcli.agent.permissions.effects import call_effects
from agentcli.agent.permissions.facts import CallFacts, judge
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rule, rule_about_edits, speaks_of_edits
from agentcli.conversation.entries import CallAllowed, CallKept, CallTried
from agentcli.errors import ToolError
from agentcli.tools.command import Grants
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary, DryRun
from agentcli.tools.summary import call_title
from agentcli.tools.tool import Attempt, Tool, ToolContext, ToolOutput

_NOBODY = "nobody can be asked"
_DENIED, _ASKED, _OTHER, _LOSING, _OBEYED = range(5)  # the order of groups of changes
_STAYS = "A command that is tried cannot go to the background: Esc stops it, or ask for it as a job."


class DryRunRequest(Struct, frozen=True):
    """A call whose dry run is due. With `is_requested` the person asked for it, and decides about every change.

    `grant` makes a rule of an answer hold; it is given the answer and the rules that were offered. The `obstacle` that
    an earlier dry run met is out of the way while it runs.
    """

    judged: CallFacts
    is_requested: bool
    grant: Callable[[Approve, tuple[str, ...]], Any]
    obstacle: Obstacle | None = None


class Obstacle(Struct, frozen=True):
    """The hindrance of a dry run, and what a yes does about it: a `host` or a `path` is opened."""

    why: str
    then: str
    effects: tuple[str, ...] = ()
    grave: tuple[str, ...] = ()
    host: str = ""
    path: Path | None = None
    is_server: bool = False


async def make_dry_run(
    call: Call,
    request: DryRunRequest,
    arguments: Any,
    context: ToolContext,
    *,
    hold: Callable[[Sequence[str]], AbstractAsyncContextManager[None]],
) -> ToolOutput:
    """The command's output, and which of its changes were kept, while `hold` locks them. Raises `ToolError`."""
    call.turn.store(CallTried(call.use.id))
    call.report.is_trial = request.obstacle is None or not request.obstacle.host
    attempt = await _attempt(call, request, arguments, context)
    trial, review, kept = attempt.trial, Review(attempt=attempt), ApplyOutcome()
    try:
        obstacle = None if request.is_requested or request.obstacle else _obstacle(call, request, attempt)
        if obstacle is not None and await _may_go_on(call, request, obstacle):
            await trial.discard()
            if obstacle.host or obstacle.path:
                return await make_dry_run(call, replace(request, obstacle=obstacle), arguments, context, hold=hold)
            call.report.is_trial = False
            given = replace(arguments, background=True) if obstacle.is_server else arguments
            async with recorded(call, None):
                return await request.judged.tool.output(given, context)
        if trial.too_much:
            if call.turn.state.mode != "plan":
                call.turn.denials.append(Denial(call.use, "dropped"))
            remark = f"It ran on a stand-in of the workspace, and {trial.too_much}: nothing of it was kept."
            return replace(dry_run_output(attempt, remark, "dropped"), is_error=call.turn.state.mode != "plan")
        if not trial.changes:
            return dry_run_output(attempt, "", "changed nothing")
        await _settle(call, request, review)
        if review.names:
            if not review.is_answered:
                call.turn.store(CallAllowed(call.use.id))
            await call.turn.settle()
            call.report.is_trial = False
            paths = [path for name in review.names for path in trial.paths_of(name)]
            async with hold(review.names), recorded(call, paths) as note:
                kept = await trial.apply(review.names, hunks=review.parts, note=note)
            call.turn.store(CallKept(call.use.id, kept.names))
            await call.turn.settle()  # before nobody else knows it any more
    finally:
        await trial.discard()
    if review.is_denied:
        call.turn.denials.append(Denial(call.use, "dropped"))
    call.report.answer = review.answer(kept)
    told = dry_run_output(attempt, review.remark(kept), summary_of(kept, trial.changes))
    structured = {
        **(told.structured if isinstance(told.structured, dict) else {}),
        "changes": [{"name": change.name, "kind": change.kind, "what": change.what} for change in trial.changes],
        "kept": list(kept.names),
        **({"kept_hunks": {name: list(taken) for name, taken in review.parts.items()}} if review.parts else {}),
    }
    is_error = told.is_error or (not kept.names and (review.is_answered or review.is_denied)) or bool(kept.conflicts)
    return replace(told, structured=structured, is_error=is_error)


async def _attempt(call: Call, request: DryRunRequest, arguments: Any, context: ToolContext) -> Attempt:
    """Run it, with a host or a path open for no longer than that."""
    tool = request.judged.tool
    host, path = (request.obstacle.host, request.obstacle.path) if request.obstacle else ("", None)
    assert tool.attempt is not None
    opened = Grants(readable=(path,) if path else (), hosts=(host,) if host else ())
    context = copied(context, grants=context.grants + opened)
    staying = asyncio.create_task(_stay(call, context.detach or asyncio.Event()))
    try:
        return await tool.attempt(arguments, context, not request.is_requested, bool(host))
    finally:
        staying.cancel()


async def _stay(call: Call, sign: asyncio.Event) -> None:
    """Say that a dry run stays in the foreground, each time somebody tries to send it to the background."""
    while await sign.wait():
        sign.clear()
        call.turn.emit(Notice(_STAYS))


def _obstacle(call: Call, request: DryRunRequest, attempt: Attempt) -> Obstacle | None:
    trial = attempt.trial
    if trial.too_much:
        return Obstacle(trial.too_much, "runs it in the workspace itself")
    if attempt.result.stall.startswith("listens"):
        return Obstacle(f"it {attempt.result.stall.partition(';')[0]}", "starts it as a job", is_server=True)
    if host := attempt.needed_host:
        effects = (f"reaches {host}",)
        return Obstacle(f"it could not reach {host}", "tries it again with that host", effects, effects, host)
    return next(filter(None, (_hidden(call, request, trial, path) for path in attempt.unread)), None)


def _hidden(call: Call, request: DryRunRequest, trial: DryRun, path: Path) -> Obstacle | None:
    """Offer to open what was hidden from it, as a command that names it would ask; None where none may read it."""
    if not (how := trial.hides(path)):
        return None
    judged, state = request.judged, call.turn.state
    named = replace(judged.arguments, command=f"cat {shlex.quote(str(path))}")
    reading = judge(judged.tool, named, judged.workspace)
    verdict = decide(reading, state.mode, state.rules)
    if verdict.decision == "deny" or (how == "always" and path not in (need.path for need in verdict.needs)):
        return None
    told, shown = call_effects(reading, verdict), judged.workspace.shown(path)
    return Obstacle(f"it could not read {shown}", "tries it again with that to read", told.lines, told.grave, path=path)


async def _may_go_on(call: Call, request: DryRunRequest, obstacle: Obstacle) -> bool:
    """Ask whether a command may run otherwise than it was tried."""
    use, state = call.use, call.turn.state
    if state.mode == "bypassPermissions":
        return not (obstacle.host or obstacle.path)  # the sandbox opens nothing that nobody granted
    if call.turn.session.ask is None or state.mode in ("plan", "dontAsk"):
        return False
    reason = f"tried on a stand-in of the workspace, {obstacle.why}; a yes {obstacle.then}"
    rules = (
        ()
        if obstacle.host or obstacle.path or obstacle.is_server
        else suggested_rules(request.judged, state.mode, state.rules)
    )
    question = CommandApproval(
        use.id,
        call_title(use.name, use.input),
        call=use,
        reason=reason,
        preview=str(use.input.get("command", "")),
        rules=rules,
        effects=obstacle.effects,
        grave=obstacle.grave,
    )
    answer = await call.ask(question, None)
    if not isinstance(answer, Approve) or not answer.allowed:
        return False
    if answer.scope in ("session", "always") and rules:
        await request.grant(answer, rules)
    return True


async def _settle(call: Call, request: DryRunRequest, review: Review) -> None:
    """Let rules and the mode decide, and ask about the rest; auto-executed files are asked about separately."""
    mode = None if request.is_requested else call.turn.state.mode
    for (order, rule), group in await asyncio.to_thread(_groups, call, request, review.attempt.trial, mode):
        if rule is not None and order == _DENIED:
            review.decide(Verdict("deny", f"{rule.phrase} denies it"), group)
        elif mode is not None and (verdict := _by_mode(mode, group, rule)) is not None:
            review.decide(verdict, group)
        elif call.turn.session.ask is None:
            review.decide(Verdict("deny", _NOBODY), group)
        else:
            await _ask(call, request, review, group, asking=rule)


def _groups(
    call: Call, request: DryRunRequest, trial: DryRun, mode: Mode | None
) -> list[tuple[tuple[int, Rule | None], list[ChangeSummary]]]:
    """The changes as they are decided about together, in that order, with the rule about files that speaks of them."""
    rules, workspace = call.turn.state.rules, request.judged.workspace
    splits = mode in ("acceptEdits", "auto", "bypassPermissions")
    found: dict[tuple[int, Rule | None], list[ChangeSummary]] = {}
    for change in trial.changes:
        paths = trial.paths_of(change.name) if speaks_of_edits(rules) else []
        order = _OBEYED if change.is_obeyed else _LOSING if splits and change.loses else _OTHER
        rule = None
        if paths and (rule := rule_about_edits(paths, rules.deny, workspace)):
            order = _DENIED
        elif paths and (rule := rule_about_edits(paths, rules.ask, workspace)):
            order = _ASKED
        found.setdefault((order, rule), []).append(change)
    return sorted(found.items(), key=lambda item: item[0][0])


def _by_mode(mode: Mode, changes: Sequence[ChangeSummary], asking: Rule | None = None) -> Verdict | None:
    """The decision of a mode about changes, or about those of which a rule wants you `asking`; None if it asks."""
    if mode in ("plan", "dontAsk"):
        return Verdict("deny", PLAN if mode == "plan" else "what would ask is dropped")
    if asking is not None and mode != "bypassPermissions":
        return None
    loses = {change.loses for change in changes}
    keeps = {"acceptEdits": loses == {""}, "auto": "tree" not in loses, "bypassPermissions": "tree" not in loses}
    if keeps.get(mode) and not any(change.is_obeyed for change in changes):
        return Verdict("allow", "")
    return None


async def _ask(
    call: Call, request: DryRunRequest, review: Review, changes: Sequence[ChangeSummary], *, asking: Rule | None
) -> None:
    question = _question(call, request, review.attempt, changes, asking=asking)

    def decide() -> Verdict:
        return _by_mode(call.turn.state.mode, changes, asking) or Verdict("ask", "")

    answer = await call.ask(question, decide)
    if isinstance(answer, Verdict):
        review.decide(answer, changes)
        return
    is_yes = answer.allowed and answer.hunks != ()
    review.take(question, answer.hunks if is_yes else (), answer.comment)
    if is_yes and answer.scope in ("session", "always"):
        await request.grant(answer, question.rules)


def _question(
    call: Call, request: DryRunRequest, attempt: Attempt, changes: Sequence[ChangeSummary], *, asking: Rule | None
) -> ChangesApproval:
    """The changes as hunks, one or more of each: all are kept, some, or none."""
    texts = [shown_change(change) for change in changes]
    if (mask := call.report.mask) is not None:
        texts = [mask.text(text) for text in texts]
    hunks = [hunks_of(change, text) for change, text in zip(changes, texts, strict=True)]
    bare = tuple(
        replace(change, diff=text if len(own) > 1 else "", hunks=len(own))  # else the hunk has the diff
        for change, text, own in zip(changes, texts, hunks, strict=True)
    )
    state, use = call.turn.state, call.use
    is_obeyed = changes[0].is_obeyed
    rules = () if is_obeyed or asking else suggested_rules(request.judged, state.mode, state.rules)
    ending = ending_of(attempt)
    reason = f"{ending}; nothing is in the workspace yet" if ending else "nothing is in the workspace yet"
    if is_obeyed:
        reason = f"other programs run or obey this by themselves; {reason}"
    if asking is not None:
        reason = f"{asking.phrase} wants you to be asked; {reason}"
    title = f"{short_command(str(use.input.get('command', use.name)))} made {counted(changes)}"
    every = tuple(hunk for own in hunks for hunk in own)
    preview = "\n".join(texts)
    return ChangesApproval(
        use.id, title, call=use, reason=reason, preview=preview, rules=rules, hunks=every, changes=bare
    )


def can_dry_run(tool: Tool, arguments: Any, context: ToolContext) -> bool:
    """True for what runs confined, in the foreground, where overlays work. Probes once; call it in a thread."""
    if tool.attempt is None or getattr(arguments, "background", False) or getattr(arguments, "unconfined", False):
        return False
    try:
        return not context.workspace.facts.dry_run_problem
    except (ToolError, OSError):
        return False
