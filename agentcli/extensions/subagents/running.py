"""Runs subagents: each is a session of its own that answers one task, heard through its parent's events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from msgspec.structs import replace

from agentcli.agent import events
from agentcli.agent.accounting.budgets import in_words
from agentcli.agent.calls.model import NOBODY_LEFT, Ask, Call, Decide
from agentcli.agent.interfaces import SessionInfo, SessionStore, subagents_owner
from agentcli.agent.ops import Approve, Interrupt, Op, Prompt
from agentcli.agent.permissions.decide import Verdict
from agentcli.agent.session import Session
from agentcli.conversation.entries import Assistant, Entry, User
from agentcli.errors import ToolError, UsageError, UserError, did_you_mean
from agentcli.extensions.subagents.definitions import DEFAULT, AgentDefinition, Agents
from agentcli.llm.messages import Text, Usage
from agentcli.tools.builtin.arguments import CreateSubagent
from agentcli.tools.tool import ToolOutput

MAX_RUNNING = 4  # at a time; the others wait
_MAX_EARLIER = 20


@dataclass(kw_only=True)
class AgentRun:
    """A subagent of this session, also one that has ended. `doing` is what it does now, in a line."""

    id: str
    definition: AgentDefinition
    given: CreateSubagent
    call: Call = field(repr=False)
    session: Session | None = field(default=None, repr=False)
    session_id: str = ""
    end: events.SubagentEnd | None = None
    doing: str = ""
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = 0.0

    @property
    def spent(self) -> str:
        """Its rounds, its tokens and its price, in words."""
        rounds = f"{self.turns} round{'s' * (self.turns != 1)}"
        cost = f" · {in_words('usd', self.cost_usd)}" if self.cost_usd else ""
        return f"{rounds} · {self.usage.context_tokens:,} tokens{cost}"


MakeSession = Callable[[AgentRun], Awaitable[Session]]


class Subagents:
    """The subagents of the session `parent`. Those in the background add to `reports`, which start its next turn."""

    def __init__(self, agents: Agents, store: SessionStore, parent: Session, make: MakeSession) -> None:
        self.definitions = agents.definitions
        self.runs: list[AgentRun] = []
        self.reports: list[str] = []
        self._store = store
        self._parent = parent
        self._make = make
        self._places = asyncio.Semaphore(MAX_RUNNING)
        self._background: dict[str, asyncio.Task[None]] = {}

    async def answer(self, call: Call, given: CreateSubagent) -> ToolOutput:
        """Let a subagent do a task, and give its answer. Raises `ToolError`."""
        if not given.task.strip():
            raise ToolError("The task is empty: say all that the subagent needs to know.", kind="invalid_parameters")
        if (definition := self.definitions.get(given.agent or DEFAULT)) is None:
            near, all = did_you_mean(given.agent, self.definitions), ", ".join(self.definitions)
            raise ToolError(f"There is no agent {given.agent!r}{near}; there is {all}.", kind="not_found")
        run = AgentRun(id=f"{definition.name}-{len(self.runs) + 1}", definition=definition, given=given, call=call)
        self.runs.append(run)
        if not given.background:
            return await self._answer_of(run)
        task = asyncio.create_task(self._report(run))
        self._background[run.id] = task
        task.add_done_callback(lambda done: self._background.pop(run.id, None))
        return ToolOutput(f"{run.id} works in the background; its report comes by itself.", summary=run.id)

    async def _report(self, run: AgentRun) -> None:
        try:
            output = str((await self._answer_of(run)).content)
        except ToolError as error:
            output = str(error)
        self.reports.append(f"<system-reminder>The subagent {run.id} reports:\n{output}</system-reminder>")
        self._parent.deliver_reports()

    async def _answer_of(self, run: AgentRun) -> ToolOutput:
        """Run a subagent once one of the places is free. Raises `ToolError`."""
        turn = run.call.turn
        try:
            async with self._places:
                try:
                    run.session = child = await self._make(run)
                except UserError as error:
                    raise ToolError(str(error), kind="validation_error") from error
                run.session_id = child.id
                child.runtime.calls.ask = self._asks(run) if turn.session.ask is not None else None
                about = (run.definition.name, run.given.task, child.id, child.state.model.name)
                turn.emit(events.SubagentStarted(run.id, run.call.use.id, *about, agent_id=run.id))
                try:
                    end = await self._heard(run, child)
                finally:
                    try:
                        await _closed(child)
                    finally:
                        turn.emit(_ended(run, child))
        except ToolError:
            run.end = run.end or "failed"
            raise
        finally:
            run.end = run.end or "stopped"  # perhaps before it began
        turn.denials.extend(end.denials)
        return _output(run, end, _answer_texts(child))

    async def _heard(self, run: AgentRun, child: Session) -> events.Done | events.TurnFailed:
        """Ask the subagent and pass its events on until its turn ends."""
        async with aclosing(child.subscribe()) as heard:
            child.submit(Prompt((Text(run.given.task),)))
            async for event in heard:
                match event:
                    case events.Done() | events.TurnFailed():
                        run.turns = event.turns
                        run.end = "failed" if isinstance(event, events.TurnFailed) else _ENDS.get(event.reason, "done")
                        return event
                    case events.ToolStarted(title=title):
                        run.doing = title
                    case events.UsageReported():
                        run.usage, run.cost_usd = child.state.meter.total.usage, child.state.meter.total.whole_usd
                        run.turns += 1
                    case _:
                        pass
                run.call.turn.emit(event)
        raise AssertionError("a subscription does not end by itself")

    def _asks(self, run: AgentRun) -> Ask:
        """Let the parent's person answer a question of the subagent, under an id of its own."""

        async def ask(request: events.AnyQuestion, decide: Decide | None) -> Approve | Verdict:
            if (outer := run.call.turn.session.ask) is None:
                return Approve(request.id, False, comment=NOBODY_LEFT)
            asked = replace(request, id=f"{run.id}/{request.id}", title=f"{run.id}: {request.title}", agent_id=run.id)
            try:
                answer = await outer(asked, decide)
            except asyncio.CancelledError:  # it is stopped while it waits
                run.call.turn.emit(events.ApprovalSettled(asked.id, agent_id=run.id))
                raise
            if isinstance(answer, Approve) and answer.stops and not answer.allowed and run.session is not None:
                run.session.submit(Interrupt())  # the person stops all of it
            return answer

        return ask

    def stop(self, id: str) -> None:
        """End one that runs; its parent gets what it has. Raises `UsageError`."""
        running = {run.id: run.session for run in self.runs if run.session is not None}
        if id not in running:
            raise UsageError(f"No subagent {id!r} runs{did_you_mean(id, running)}.")
        running[id].submit(Interrupt())

    async def earlier(self) -> Sequence[SessionInfo]:
        """The stored subagents of this session, the newest first."""
        return await self._store.list(user_id=subagents_owner(self._parent.id), limit=_MAX_EARLIER)

    async def transcript(self, id: str) -> Sequence[Entry]:
        """The entries of one, by its id or its session's. Raises `UserError`."""
        run = next((run for run in self.runs if run.id == id), None)
        if run is not None and run.session is not None:
            return run.session.state.conversation.path
        owner = subagents_owner(self._parent.id)
        _, entries = await self._store.load(run.session_id if run else id, user_id=owner)
        return entries

    def submit(self, op: Op) -> None:
        """Ask all that run now for something."""
        for run in self.runs:
            if run.session is not None:
                run.session.submit(op)

    def take_reports(self) -> list[str]:
        reports, self.reports = self.reports, []
        return reports

    async def finished_one(self) -> None:
        """Wait until one of those in the background has reported, if there are any."""
        if self._background and not self.reports:
            await asyncio.wait(self._background.values(), return_when="FIRST_COMPLETED")

    async def aclose(self) -> None:
        """End those that run in the background."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _closed(child: Session) -> None:
    """Close the subagent's session, also while its parent is being cancelled; the cancellation goes on afterwards."""
    closing, is_cancelled = asyncio.ensure_future(child.close()), False
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            is_cancelled = True
    closing.result()
    if is_cancelled:
        raise asyncio.CancelledError


def _ended(run: AgentRun, child: Session) -> events.SubagentEnded:
    """Note how a subagent ended, and the event that tells it."""
    total = child.state.meter.total
    run.session, run.end, run.usage, run.cost_usd = None, run.end or "stopped", total.usage, total.whole_usd
    spent = (run.turns, run.usage, run.cost_usd)
    return events.SubagentEnded(run.id, run.call.use.id, run.end, *spent, _answer_texts(child), agent_id=run.id)


def _answer_texts(child: Session) -> str:
    """All that it has said on its task, the newest last."""
    parts: list[str] = []
    for body in (entry.body for entry in child.state.conversation.path):
        if isinstance(body, User) and not body.is_reminder:
            parts = []
        elif isinstance(body, Assistant):
            parts.append("".join(block.text for block in body.content if isinstance(block, Text)).strip())
    return "\n\n".join(filter(None, parts))


_ENDS: dict[str, events.SubagentEnd] = {
    "max_turns": "limit", "max_budget": "limit", "interrupted": "stopped", "declined": "stopped", "stopped": "stopped",
}  # fmt: skip
_WHY = {
    "failed": "It failed: {error}",
    "limit": "It was stopped at its limit ({reason}).",
    "stopped": "It was stopped before it had finished.",
}


def _output(run: AgentRun, end: events.Done | events.TurnFailed, said: str) -> ToolOutput:
    """The answer, or what there is of one (`said`), and what it took."""
    said = end.text if isinstance(end, events.Done) and run.end == "done" else said
    error, reason = getattr(end, "error", ""), getattr(end, "reason", "")
    why = _WHY.get(run.end or "", "").format(error=error, reason=reason)
    told = f"{run.id}: {run.spent} · session {run.session_id}"
    content = "\n\n".join(filter(None, (why, said or (why and "It had said nothing yet."), f"[{told}]")))
    structured = {"agent": run.definition.name, "session_id": run.session_id, "end": run.end, "cost_usd": run.cost_usd}
    return ToolOutput(content, structured, f"{run.end} · {run.spent}", is_error=run.end == "failed")
