"""Permits or denies a call: if approval is needed, asks the person, with a list of its effects."""

import asyncio
from dataclasses import replace as copied
from typing import Any

from msgspec import Struct, structs

from agentcli.agent.calls.model import NOBODY_LEFT, Call, Decide, fire
from agentcli.agent.events import AnyQuestion, CallApproval, CommandApproval, Denial, EditApproval, Notice
from agentcli.agent.interfaces import HookAnswer
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.call_effects import MAX_SHOWN, call_effects
from agentcli.agent.permissions.decide import CHANGES_A_FILE, decide, decide_with_exposure, suggested_rules
from agentcli.agent.permissions.facts import CallFacts, DryRunUse, can_dry_run, find_facts
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.agent.permissions.rules import Rules, check_rule, parse_rules
from agentcli.agent.questions import check_offered
from agentcli.conversation.entries import CallDenied
from agentcli.conversation.history import listed_names
from agentcli.errors import Declined, StorageError, ToolError, UsageError
from agentcli.tools.command import NO_GRANTS, Grants
from agentcli.tools.observation import call_title
from agentcli.tools.text.diff import diff_hunks
from agentcli.tools.tool import RunTerms, Tool, ToolContext


class CallPolicy(Struct, frozen=True):
    """The decisions on one call. Each uses the current rules and mode, which may change while a question waits."""

    call: Call
    facts: CallFacts
    hooks: HookAnswer

    def decide(self) -> PolicyDecision:
        """Decide about the call. Hooks may turn "ask" into "allow" and the reverse; skills may deny the call."""
        state, hooks, skills = self.call.turn.state, self.hooks, self.call.turn.session.delegates.skills
        decision = decide_with_exposure(self.facts, state.mode, state.rules)
        if hooks.decision == "allow" and decision.outcome in ("ask", "dry_run"):
            # Inside the sandbox, because only a person can let a command run outside.
            decision = structs.replace(decision, outcome="allow", reason=hooks.reason, runs_outside=False)
        if hooks.decision == "ask" and decision.outcome in ("allow", "dry_run"):
            decision = structs.replace(decision, outcome="ask", reason=hooks.reason or "a hook requires approval")
        return decision if skills is None else skills.narrowed(self.facts.tool.name, decision)

    @property
    def offered_rules(self) -> tuple[str, ...]:
        """The rules that would allow the call, narrowest first."""
        return suggested_rules(self.facts, self.call.turn.state.mode, self.call.turn.state.rules)

    async def ask(self, question: AnyQuestion, decide_now: Decide | None) -> Approve | PolicyDecision:
        """Ask the person, and add the rule of a lasting yes.

        Returns the answer, or the decision of `decide_now` if the rules or the mode change while the question waits.
        Raises `ToolError` for a yes to something that was not offered.
        """
        answer = await self.call.ask(question, decide_now)
        if isinstance(answer, Approve) and answer.allowed and answer.hunks != ():  # approving no hunk means no
            try:
                check_offered(question, answer)
                if answer.input is not None and (decide_now is None or self.call.input_change is not None):
                    raise UsageError("Its input cannot change after a dry run, or twice.")
            except UsageError as error:
                raise ToolError(f"The approval is invalid: {error}", kind="permission_denied") from error
            if answer.input is None:
                await self.grant(answer, question.rules)
        return answer

    async def grant(self, answer: Approve, offered: tuple[str, ...]) -> None:
        """Add the rule of a "session" or "always" yes, and store an "always" one. Problems are only reported."""
        if answer.scope not in ("session", "always") or answer.mode:  # a new mode allows later calls without a rule
            return
        turn, state, text = self.call.turn, self.call.turn.state, answer.rule or next(iter(offered), "")
        if not text:
            turn.emit(Notice("No rule covers this call. It was allowed only this once."))
            return
        grants = turn.session.services.grants if answer.scope == "always" else None
        try:
            granted = parse_rules(text, "session" if grants is None else "granted")
            for rule in granted:
                check_rule(rule, turn.session.tools)
        except UsageError as error:
            turn.emit(Notice(f"{error} The call was allowed only this once."))
            return
        state.rules.allow += granted
        if decide(self.facts, state.mode, Rules(granted, state.rules.deny, state.rules.ask)).outcome != "allow":
            turn.emit(
                Notice(f"Rule added: allow {text}. It does not cover this call, which was allowed only this once.")
            )
        if grants is not None:
            try:
                for rule in granted:
                    await asyncio.to_thread(grants.add, str(rule))
            except StorageError as error:
                turn.emit(Notice(f"{error} The rule {text} applies only to this session."))


class PermittedCall(Struct, frozen=True, kw_only=True):
    """A call that may run, with its decision and its arguments, which the person may have reduced to some hunks."""

    policy: CallPolicy
    arguments: Any
    decision: PolicyDecision
    dry_run: DryRunUse = "never"

    @property
    def grants(self) -> Grants:
        """The access beyond the session's own that the sandbox opens for this call."""
        return self.policy.facts.grants if self.decision.includes_grants else NO_GRANTS

    @property
    def network_phrase(self) -> str:
        """The hosts that the call's dry run could reach, in words that follow "it"."""
        hosts = dict.fromkeys((self.policy.facts.workspace.grants + self.grants).hosts)
        return f"could reach {listed_names([*hosts], MAX_SHOWN)}" if hosts else "had no network"


async def permit(
    call: Call, tool: Tool, arguments: Any, context: ToolContext, *, hooks: HookAnswer
) -> PermittedCall | None:
    """Decide about a call, ask the person if need be, and return the permitted call. Raises `ToolError` for a denial.

    Return None if the person approved a changed input. The caller then parses that input and calls this function again.
    """
    session = call.turn.session
    facts = find_facts(tool, arguments, session.workspace)
    only_reads = facts.command is not None and facts.command.verdict == "allow"  # so it needs no dry run
    if tool.runs_commands and not only_reads and await asyncio.to_thread(can_dry_run, facts):
        facts = structs.replace(facts, dry_run="always" if session.services.dry_runs else "on_request")
    policy = CallPolicy(call, facts, hooks)
    decision = policy.decide()
    answer = call.input_change  # the yes with which the person changed the input, if this is the second decision
    # That yes was to this input, so it is not asked about again unless a hook replaced it or it leaves the sandbox.
    if answer is not None and decision.outcome != "deny":
        is_persons_input = hooks.input in (None, answer.input)  # no hook has replaced it
        if is_persons_input and not decision.runs_outside:
            context.workspace.session_grants.exposed.update(decision.exposed_files)
            await policy.grant(answer, policy.offered_rules)
            if decision.outcome == "ask":
                decision = structs.replace(decision, outcome="allow")
    if decision.outcome in ("allow", "dry_run"):
        return _permitted(policy, decision, "allowed with changed input" if answer else "")
    try:
        if decision.outcome == "ask":
            return await _ask_person(policy, decision, context)
        call.turn.store(CallDenied(call.use.id, decision.reason))
        await fire(call.turn.session, "PermissionDenied", call=call.use, reason=decision.reason)
        raise ToolError(f"{decision.reason}.", kind="permission_denied")
    except ToolError as error:
        if error.kind == "permission_denied":
            call.turn.denials.append(Denial(call.use))
        raise


def _permitted(policy: CallPolicy, decision: PolicyDecision, answer: str = "") -> PermittedCall:
    """Return a call that needs no further approval, as a dry run if the decision says so."""
    policy.call.report.answer = answer
    permitted = PermittedCall(policy=policy, arguments=policy.facts.arguments_for(decision), decision=decision)
    if decision.outcome == "allow":
        return permitted
    # A dry run may write anything, because its changes are not in the workspace yet.
    return structs.replace(permitted, decision=structs.replace(decision, only_reads=False), dry_run="always")


async def _ask_person(policy: CallPolicy, decision: PolicyDecision, context: ToolContext) -> PermittedCall | None:
    """Ask about a call, and return None if the person changed its input. Raises `ToolError` for a no."""
    call, turn = policy.call, policy.call.turn
    context = copied(context, terms=RunTerms(grants=policy.facts.grants))
    preview = await _preview(policy, context)
    if turn.session.ask is None:
        raise ToolError(f"{decision.reason}, and no one can approve it.", kind="permission_denied")
    question = await asyncio.to_thread(_question, policy, decision, preview)
    hook = await fire(turn.session, "PermissionRequest", call=call.use)
    if hook.decision not in ("allow", "deny"):
        await fire(turn.session, "Notification", message=question.title, notification_type="permission_prompt")
        answer = await policy.ask(question, policy.decide)  # a `PolicyDecision` if a mode, rule or stop came first
        decided_by = f"mode {turn.state.mode}"
    else:
        decided_by = "a hook"
        reason, only_reads = hook.reason or "a hook decided", decision.only_reads
        # Hooks open nothing outside the sandbox: only a person can.
        answer = PolicyDecision(outcome=hook.decision, reason=reason, includes_grants=False, only_reads=only_reads)
    if isinstance(answer, PolicyDecision):
        if answer.outcome == "deny":
            raise ToolError(f"{answer.reason}.", kind="permission_denied")
        return _permitted(policy, answer, f"allowed by {decided_by}")
    if not answer.allowed and answer.comment == NOBODY_LEFT:
        raise ToolError(f"{decision.reason}, and {NOBODY_LEFT}.", kind="permission_denied")
    if not answer.allowed or answer.hunks == ():  # a yes to no hunks is a no
        raise Declined(answer.comment)
    if answer.input is not None:
        call.change_input(answer, answer.input)
        return None
    permitted = PermittedCall(policy=policy, arguments=policy.facts.arguments_for(decision), decision=decision)
    if answer.scope == "try":
        return structs.replace(permitted, dry_run="on_request")
    context.workspace.session_grants.exposed.update(decision.exposed_files)
    return await _with_answer(permitted, answer, question.hunks, context)


async def _preview(policy: CallPolicy, context: ToolContext) -> str:
    """Return a call's preview, which may use its grants before the approval, because only the person sees it."""
    tool, arguments, blocked_files = policy.facts.tool, policy.facts.arguments, policy.facts.blocked_files
    try:
        preview = await tool.preview(arguments, context)
    except ToolError:
        if not blocked_files:  # an edit that cannot be applied fails now, before the person is asked
            raise
        preview = tool.arguments_text(arguments)  # the error might quote a file that the model may not read yet
    if not blocked_files:
        return preview
    await policy.call.turn.session.services.load_secrets()  # the files may hold some
    return policy.call.report.mask.text(preview)


async def _with_answer(
    permitted: PermittedCall, answer: Approve, hunks: tuple[str, ...], context: ToolContext
) -> PermittedCall:
    """Return a call that the person allowed, with their comment. `narrow` reduces an edit to the hunks they chose."""
    narrow, report, comment = permitted.policy.facts.tool.narrow, permitted.policy.call.report, answer.comment
    quoted = f"“{comment}”" if comment else ""
    scope = {"once": "allowed", "session": "allowed for this session", "always": "always allowed"}.get(answer.scope, "")
    chosen = [number for number in range(len(hunks)) if answer.hunks is None or number in answer.hunks]
    if narrow is None or len(chosen) == len(hunks):
        report.answer = " · ".join(filter(None, (scope, quoted)))
        report.remarks += [f"[The user allowed this call and said: {comment}]"] if comment else []
        return permitted
    arguments = await narrow(permitted.arguments, context, chosen)
    lasting_scope = "" if answer.scope == "once" else scope
    rejected = "".join(hunk for number, hunk in enumerate(hunks) if number not in chosen).rstrip()
    said = f"\nThey said: {comment}" if comment else ""
    report.remarks.append(f"[The user applied only the change above and rejected these hunks:]\n{rejected}{said}")
    report.answer = " · ".join(filter(None, (f"{len(chosen)} of {len(hunks)} hunks", lasting_scope, quoted)))
    return structs.replace(permitted, arguments=arguments)


def _question(policy: CallPolicy, decision: PolicyDecision, preview: str) -> CallApproval:
    """Return the question in the form for front ends. Blocks: it looks up a command's paths on the disk."""
    use, facts = policy.call.use, policy.facts
    reason = f"{decision.reason}; your approval lasts for this session" if decision.exposed_files else decision.reason
    effects = call_effects(facts, structs.replace(decision, reason=reason))
    approval = CallApproval(
        use.id,
        call_title(use.name, use.input),
        call=use,
        reason=reason,
        preview=preview,
        rules=policy.offered_rules,
        effects=effects.lines,
        grave=effects.grave,
    )
    if facts.tool.effect == "command":
        return CommandApproval(**structs.asdict(approval), can_try=can_dry_run(facts))
    if facts.tool.effect == "edit" or facts.tool.narrow is not None:
        hunks = diff_hunks(preview) if facts.tool.narrow is not None and not facts.blocked_files else ()
        mode = "acceptEdits" if decision.reason == CHANGES_A_FILE else ""  # the mode that would not have asked
        return EditApproval(**structs.asdict(approval), hunks=hunks, mode=mode)
    return approval
