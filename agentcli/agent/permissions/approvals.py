"""Asks the person about one call, and makes of the answer what is run, what is granted and what the model is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.agent.calls.dry_run import DryRunRequest, can_dry_run
from agentcli.agent.calls.model import Call, Decide
from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, CommandApproval, EditApproval, Notice
from agentcli.agent.hooks import fire, fire_about
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.checks import check_rule
from agentcli.agent.permissions.decide import Verdict, decide, suggested_rules
from agentcli.agent.permissions.effects import call_effects
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules, parse_rules
from agentcli.agent.state import AgentState
from agentcli.errors import Declined, StorageError, ToolError, UsageError
from agentcli.llm.messages import ToolUse
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title
from agentcli.tools.text.diff import diff_hunks
from agentcli.tools.tool import Tool, ToolContext

NOBODY_LEFT = "nobody can be asked any more"  # the comment of a no that nobody said


class PermittedCall(Struct, frozen=True):
    """A call that may run: its facts and the decision, and the arguments, of which a person may have taken a part.

    `remark` is what the result says beside its own text; with a `trial` it runs on a stand-in of the workspace;
    `answer` is what the person said, in words for them.
    """

    facts: CallFacts
    arguments: Any
    verdict: Verdict
    remark: str = ""
    trial: DryRunRequest | None = None
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """A call that may not run by itself, the verdict that says why, and `decide` for the permissions of later."""

    call: ToolUse
    judged: CallFacts
    context: ToolContext
    verdict: Verdict
    decide: Decide

    @property
    def tool(self) -> Tool:
        return self.judged.tool


async def ask_person(asker: Call, question: PendingCall) -> PermittedCall:
    """Raises `ToolError` (permission_denied) when the answer is no, or nobody can give one."""
    tool, arguments, context, state = question.tool, question.judged.arguments, question.context, asker.turn.state
    preview = await tool.preview(arguments, context)  # an edit that cannot apply fails here, before anybody is asked
    if asker.turn.session.ask is None:
        raise ToolError(f"{question.verdict.reason}, and nobody can be asked.", kind="permission_denied")
    request = await _request(question, preview, state)
    hunks, verdict = hunks_of(request), question.verdict
    answer = await _ask_hooks(asker, request) or await asker.ask(request, question.decide)
    if isinstance(answer, Verdict):
        return _settled(answer, question, state.mode)
    try:
        check_offered(request, answer)
    except UsageError as error:
        raise ToolError(f"The call was not allowed: {error}", kind="permission_denied") from error
    chosen = _chosen(answer, hunks)
    if not answer.allowed and answer.comment == NOBODY_LEFT:
        raise ToolError(f"{verdict.reason}, and {NOBODY_LEFT}.", kind="permission_denied")
    if not chosen:
        raise Declined(answer.comment)
    if answer.scope == "try":
        wished = DryRunRequest(question.judged, is_requested=True, grant=partial(grant, asker, question))
        return PermittedCall(question.judged, arguments, verdict, trial=wished)
    context.workspace.exposed.update(verdict.exposes)
    if answer.scope in ("session", "always") and not answer.mode:
        await grant(asker, question, answer, request.rules)
    if tool.narrow is None or len(chosen) == max(len(hunks), 1):
        said = f"[The user allowed this and says: {answer.comment}]" if answer.comment else ""
        return PermittedCall(question.judged, arguments, verdict, said, answer=_describe_answer(answer))
    narrowed = await tool.narrow(arguments, context, chosen)
    some = f"{len(chosen)} of {len(hunks)} hunks"
    remark = _rejected(hunks, chosen, answer.comment)
    return PermittedCall(question.judged, narrowed, verdict, remark, answer=_describe_answer(answer, some))


async def _ask_hooks(call: Call, request: AnyQuestion) -> Verdict | None:
    """Return what hooks decide in the person's place; None where the person is to be asked."""
    answer = await fire_about(call, "PermissionRequest")
    if answer.decision in ("allow", "deny"):
        return Verdict(answer.decision, answer.reason or "a hook decided it")
    await fire(call.turn.session, "Notification", message=request.title, notification_type="permission_prompt")
    return None


async def _request(question: PendingCall, preview: str, state: AgentState) -> CallApproval:
    """Return the question as a front end shows it."""
    call, judged, verdict = question.call, question.judged, question.verdict
    reason = f"{verdict.reason}; a yes counts for the rest of the session" if verdict.exposes else verdict.reason
    effects = await asyncio.to_thread(call_effects, judged, msgspec.structs.replace(verdict, reason=reason))
    approval = CallApproval(
        call.id,
        call_title(call.name, call.input),
        call=call,
        reason=reason,
        preview=preview,
        rules=suggested_rules(judged, state.mode, state.rules),
        effects=effects.lines,
        grave=effects.grave,
    )
    fields = msgspec.structs.asdict(approval)
    if question.tool.effect == "command" or question.tool.attempt is not None:
        can_try = await asyncio.to_thread(can_dry_run, question.tool, judged.arguments, question.context)
        return CommandApproval(**fields, can_try=can_try)
    if question.tool.effect == "edit" or question.tool.narrow is not None:
        is_edit = question.tool.effect == "edit"
        accepts = is_edit and decide(judged, "acceptEdits", state.rules).decision == "allow"
        hunks = diff_hunks(preview) if question.tool.narrow is not None else ()
        return EditApproval(**fields, hunks=hunks, mode="acceptEdits" if accepts else "")
    return approval


def _settled(verdict: Verdict, question: PendingCall, mode: Mode) -> PermittedCall:
    """Permit or deny a call whose verdict needs no answer. Raises `ToolError` (permission_denied)."""
    if verdict.decision == "deny":
        raise ToolError(f"{verdict.reason}.", kind="permission_denied")
    held = msgspec.structs.replace(question.verdict, needs=verdict.needs, hosts=verdict.hosts)
    return PermittedCall(question.judged, question.judged.arguments, held, answer=f"allowed by {mode}")


_SCOPES = {"once": "allowed", "session": "allowed for the session", "always": "allowed always"}


def _describe_answer(answer: Approve, some: str = "") -> str:
    """The answer in words for the person; `some` says which part of a change they took."""
    scope = "" if some and answer.scope == "once" else _SCOPES.get(answer.scope, "")
    return " · ".join(part for part in (some, scope, f"“{answer.comment}”" if answer.comment else "") if part)


def hunks_of(question: AnyQuestion) -> tuple[str, ...]:
    """Return the parts of a change that can be chosen one by one."""
    return question.hunks if isinstance(question, EditApproval | ChangesApproval) else ()


def check_offered(request: AnyQuestion, answer: Approve) -> None:
    """Raises `UsageError` for a yes to what was not offered: a try, or parts that the change does not have."""
    if not answer.allowed:
        return
    if answer.scope == "try" and not (isinstance(request, CommandApproval) and request.can_try):
        raise UsageError('This call cannot be tried: its question says "can_try": false.')
    hunks = hunks_of(request)
    unknown = [number for number in answer.hunks or () if not 0 <= number < len(hunks)]
    if unknown:
        there_is = f"numbers from 0 to {len(hunks) - 1}" if hunks else "no hunk; leave hunks out"
        raise UsageError(f"There is no hunk {unknown[0]}: this question has {there_is}.")


def check_named_rule(text: str, tools: ToolRegistry) -> None:
    """Raises `UsageError` for the rule of an answer that allows nothing."""
    for rule in parse_rules(text):
        if warning := check_rule(rule, tools):
            raise UsageError(warning)


def _chosen(answer: Approve, hunks: tuple[str, ...]) -> tuple[int, ...]:
    """The hunks to be made, by index; the one index 0 for a call that is made as a whole, none for a no."""
    every = tuple(range(max(len(hunks), 1)))
    if not answer.allowed or answer.hunks == ():
        return ()
    return every if answer.hunks is None or not hunks else tuple(n for n in every if n in answer.hunks)


def _rejected(hunks: tuple[str, ...], chosen: tuple[int, ...], comment: str) -> str:
    left_out = "".join(hunk for number, hunk in enumerate(hunks) if number not in chosen)
    said = f"\nThey say: {comment}" if comment else ""
    return f"[The user made only the change above and rejected this part of it:]\n{left_out.rstrip()}{said}"


async def grant(asker: Call, question: PendingCall, answer: Approve, offered: tuple[str, ...]) -> None:
    """Add the rule to the session's, and for good where that was meant. What goes wrong is told; the call runs."""
    state, emit, session = asker.turn.state, asker.turn.emit, asker.turn.session
    text = answer.rule or next(iter(offered), "")
    if not text:
        emit(Notice("No rule covers this call: it is allowed this once."))
        return
    grants = session.services.grants
    is_for_good = answer.scope == "always" and grants is not None
    try:
        granted = parse_rules(text, "granted" if is_for_good else "session")
        for rule in granted:
            check_rule(rule, session.tools)
    except UsageError as error:
        emit(Notice(f"{error} The call is allowed this once."))
        return
    state.rules.allow += granted
    alone = Rules(granted, state.rules.deny, state.rules.ask)
    if decide(question.judged, state.mode, alone).decision != "allow":
        emit(Notice(f"{text} is allowed from now on; it does not cover this call, which is allowed this once."))
    if is_for_good and grants is not None:
        try:
            for rule in granted:
                await asyncio.to_thread(grants.add, str(rule))
        except StorageError as error:
            emit(Notice(f"{error} {text} is allowed for this session."))
