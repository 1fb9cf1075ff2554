"""Runs one conversation for its front ends, which send operations and receive events."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path

import msgspec

from agentcli.agent import ops
from agentcli.agent.calls.model import NOBODY_LEFT, fire, with_client_tools
from agentcli.agent.event_queue import Subscribers, log_activity, one_by_one
from agentcli.agent.events import AnyQuestion, ApprovalSettled, Done, Event, ModeChanged, Notice, TakenOver, TurnFailed
from agentcli.agent.loop import begin_turn, resume_turn, run_turn
from agentcli.agent.permissions.modes import parse_mode
from agentcli.agent.permissions.rules import check_rule, parse_rules
from agentcli.agent.questions import Questions
from agentcli.agent.runtime import Runtime, Turn
from agentcli.agent.state import AgentState, SessionSnapshot, prompts
from agentcli.agent.turn_log import apply_compaction, queue_event, store
from agentcli.background import start_in_background
from agentcli.conversation.entries import Body, Compaction, ContextNote, Paid, PaidReason, ResetAwaited, Rewound, User
from agentcli.conversation.mentions import typed_text
from agentcli.errors import OUT_OF_MEMORY, UsageError, UserError, is_out_of_memory
from agentcli.llm.messages import Block, Content, Text, Usage
from agentcli.llm.provider import ToolSpec
from agentcli.tools.observation import cut_middle
from agentcli.tools.tool import ToolOutput, ToolRegistry

log = logging.getLogger(__name__)
TAKEOVER_POLL_S = 0.5
SETTLE_S = 0.4  # after a mode switch, before questions are settled: the person may be cycling through the modes


class Session:
    """One conversation, driven by any number of front ends; at most one turn runs at a time.

    Each turn ends in `Done` or `TurnFailed`. Unless the session `can_ask`, calls that need approval are denied.
    """

    def __init__(self, state: AgentState, runtime: Runtime, *, can_ask: bool = False) -> None:
        self.state = state
        self.runtime = runtime
        self.loop = asyncio.get_running_loop()
        self._subscribers = Subscribers()
        self.turns_begun, self.last_event_at = 0, self.loop.time()
        self._turn: asyncio.Task[None] | None = None
        self._newest_turn: Turn | None = None
        self._model_afterwards = ""  # the model to return to after a turn with another one; "" if there is none
        self.next_tools: ToolRegistry | None = None  # with tools of the client, used from the next turn on
        self.private_folder: Path | None = None  # for files that commands must not read; None is the system's
        self._commands: set[asyncio.Task[None]] = set()  # tasks that run the person's own commands
        self._storing: set[asyncio.Task[None]] = set()  # tasks that store entries outside of turns
        self._is_closing = False
        self._questions = Questions(self.publish)
        self._takeover_watch = asyncio.create_task(self._watch_for_takeover())
        runtime.calls.ask = self._questions.ask if can_ask else None

    @property
    def id(self) -> str:
        return self.runtime.log.session_id

    @property
    def is_busy(self) -> bool:
        return self._turn is not None and not self._turn.done()

    def snapshot(self) -> SessionSnapshot:
        state = self.state
        limits = (account.limits for account in state.budgets.accounts if account.scope == "session")
        return SessionSnapshot(
            id=self.id,
            model=state.model.name,
            mode=state.mode,
            effort=state.model.effort,
            workspace=self.runtime.calls.workspace,
            conversation=state.conversation,
            cost_usd=state.meter.total.full_cost_usd,
            max_budget_usd=next(limits, {}).get("usd"),
        )

    @property
    def waiting_for_client(self) -> Collection[str]:
        """The ids of calls that still wait for a `ClientResult`, including those of a paused turn."""
        client = self.runtime.calls.delegates.client
        return {*client.waiting_ids, *(self.state.conversation.pending_calls.keys() - client.received_ids)}

    def check_rule(self, text: str) -> None:
        """Raise `UsageError` if the rule of an `Approve` matches no call of any tool."""
        for rule in parse_rules(text):
            if warning := check_rule(rule, self.runtime.calls.tools):
                raise UsageError(warning)

    @property
    def open_questions(self) -> dict[str, AnyQuestion]:
        return {id: question.event for id, question in self._questions.open.items()}

    def submit(self, op: ops.Op) -> None:
        """Submit an operation, from any thread. Its effects arrive as events."""
        if not isinstance(op, ops.Op):
            raise TypeError(f'Expected an operation, such as Prompt("…"), not {type(op).__name__}.')
        try:
            running_loop = asyncio.get_running_loop()
        except RuntimeError:  # another thread, which has no loop
            running_loop = None
        if running_loop is self.loop:
            self._handle(op)
        else:
            self.loop.call_soon_threadsafe(self._handle, op)

    def _handle(self, op: ops.Op) -> None:
        """Carry out an operation of a front end. One that does not apply now, such as a late answer, is ignored."""
        state, queue, delegates = self.state, self.state.conversation.queue, self.runtime.calls.delegates
        match op:
            case ops.Prompt() | ops.Steer():
                self._handle_message(op)
            case ops.TakeBack(position):
                if queue.remove(position):
                    self._store_queue()
            case ops.RunQueued() if queue.follow_ups and not self.is_busy:
                self._begin_turn([queue.follow_ups.popleft()], from_queue=True)
            case ops.GoOn() if self.is_busy:  # the turn may wait for servers that are still connecting
                if delegates.servers is not None:
                    delegates.servers.stop_waiting()
            case ops.GoOn(if_unanswered):
                if (turn := resume_turn(state, self.runtime, self.publish, if_unanswered=if_unanswered)) is not None:
                    self._start_turn(turn)
            case ops.Interrupt(reason, returns_prompt):
                if returns_prompt and self._newest_turn is not None:
                    self._newest_turn.log.returns_prompt = True
                if state.awaits_reset:  # otherwise the next start would continue the turn that the person ended
                    self.append(ResetAwaited(0.0))
                for task in filter(None, (self._turn, *self._commands)):
                    # Not immediately: a task that is cancelled before it begins never publishes the turn's end.
                    self.loop.call_soon(task.cancel, reason or None)
            case ops.Pause():
                delegates.client.pause(state.conversation.pending_calls)
            case ops.Approve(id):
                asked = self.open_questions.get(id)
                if self._questions.answer(id, op):
                    self.publish(ApprovalSettled(id))
                    self._act_on_answer(op, asked)
            case ops.SetModel(name):
                state.model.name, self._model_afterwards = name, ""
            case ops.SetMode(mode, is_step):
                self._set_mode(mode, is_step=is_step)
            case ops.SetEffort(effort):
                state.model.effort = effort
            case ops.SetAttended(is_attended):
                self.runtime.calls.ask = self._questions.ask if is_attended else None
                delegates.client.set_attended(is_attended)
                if not is_attended:
                    for id in self.open_questions:
                        self._questions.answer(id, ops.Approve(id, allowed=False, comment=NOBODY_LEFT))
            case ops.Background():
                for detach in self.runtime.calls.history.detachable:
                    detach.set()
                if delegates.subagents is not None:
                    delegates.subagents.submit(op)
            case ops.RunCommand():
                start_in_background(self._run_own_command(op), self._commands)
            case ops.CommandRan():  # the front end has run it already; it is only stored
                self._track_storing(asyncio.create_task(self._run_own_command(op)))
            case ops.ClientResult(id, content, is_error, structured):
                if not delegates.client.answer(id, ToolOutput(content, structured, is_error=is_error)):
                    from agentcli.agent.calls.once import continue_with

                    self._track_storing(asyncio.create_task(continue_with(self, op)))

    def _handle_message(self, op: ops.Prompt | ops.Steer) -> None:
        """Begin a turn with a message; while one runs, queue a prompt for its end, or let the next request have it."""
        if (web := self.runtime.calls.workspace.resources.web) is not None:
            web.note_typed(typed_text(op.blocks))  # addresses that the person typed may be fetched without a question
        queue = self.state.conversation.queue
        waiting, model = queue.steering, ""
        if isinstance(op, ops.Prompt):
            waiting, model = queue.follow_ups, op.model
            try:
                self.offer_tools(op.tools)
            except UserError as error:
                self.publish(Notice(str(error)) if self.is_busy else TurnFailed(str(error), False))
                return
        if not self.is_busy:
            self._begin_turn([op.blocks], model=model)
            return
        waiting.append(op.blocks)
        self._store_queue()
        if model:
            self.publish(Notice(f"The message is queued. {model} is used only for messages that are answered at once."))

    def offer_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Offer the client's tools from the next turn on. Raises `UserError` for a name that another tool has."""
        if tools:
            self.next_tools = with_client_tools(self.next_tools or self.runtime.calls.tools, tools)

    def _set_mode(self, mode: str, *, is_step: bool = False) -> None:
        """Switch the permission mode; with `is_step`, as one step of the person who is cycling through the modes."""
        state, agents = self.state, self.runtime.calls.delegates.subagents
        before, state.mode = state.mode, parse_mode(mode)
        if not is_step:  # a mode that was only a step is not one to return to after plan mode
            state.remember_mode()
        if before == state.mode:
            return
        state.add_mode_note()
        self.publish(ModeChanged(state.mode))
        if agents is not None:
            agents.submit(ops.SetMode(mode))
        self.loop.call_later(SETTLE_S, self._questions.settle)  # the new mode may answer open questions

    def _store_queue(self) -> None:
        self.append(self.state.conversation.queue.entry())
        self.publish(queue_event(self.state))

    def append(self, *bodies: Body) -> asyncio.Task[None]:
        """Store entries outside of turns, and report a failure. The task ends with the commit, or `StorageError`."""
        _, stored = store(self.state, self.runtime, self.publish, *bodies)
        self._track_storing(stored)
        return stored

    def _track_storing(self, task: asyncio.Task[None]) -> None:
        """Make the end of the session wait for a task that stores entries, and report its failure."""

        def end(task: asyncio.Task[None]) -> None:
            self._storing.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.publish(Notice(str(error)))

        self._storing.add(task)
        task.add_done_callback(end)

    async def _run_own_command(self, op: ops.RunCommand | ops.CommandRan) -> None:
        """Run the person's command, unless the terminal has run it already, and store it with its output."""
        calls = self.runtime.calls
        if isinstance(op, ops.RunCommand):
            from agentcli.agent.calls.run import run_own_command

            output = (await run_own_command(calls, op.command, self.publish)).result.text
        else:
            output = cut_middle(await calls.services.masked(op.output))
        text = f"<bash-input>{op.command}</bash-input>\n<bash-output>{output}</bash-output>"
        note = User((Text(text),), is_reminder=True)
        if op.to_model and self.is_busy:
            self.state.notes.append(note)  # an entry now could separate a call from its result
        else:
            self.append(note if op.to_model else ContextNote(text))  # a `ContextNote` is only for the person

    def rewind(self, entry_id: str) -> str:
        """Take back a prompt and all later entries, and return its text. Costs stay recorded. Raises `UserError`."""
        if self.is_busy:
            raise UserError("A turn is running. Interrupt it first, then rewind.")
        text = dict(prompts(self.state.conversation)).get(entry_id)
        if text is None:
            raise UsageError("This conversation has no such point to rewind to.")
        self.append(Rewound(entry_id))
        self.state.add_mode_note()
        return text

    async def compact(self, focus: str = "", *, is_dry: bool = False) -> Compaction | str:
        """Compact now, unless it is a dry run. Return the compaction, or why there is none. Raises `UserError`."""
        if self.is_busy:
            raise UserError("A turn is running. Wait until it ends or interrupt it, then compact.")
        if (watch := self.runtime.context.watch) is None:
            return "compaction is off in this session"
        _, info = await self.runtime.models.resolve(self.state)
        conversation, prefix = self.state.conversation, self.runtime.prefix(info)
        compaction = await watch.compactor.compact_on_request(conversation, info, prefix, focus=focus, is_dry=is_dry)
        if isinstance(compaction, Compaction) and not is_dry:
            await apply_compaction(self.state, self.runtime, self.publish, compaction, append=self.append)
        return compaction

    def record_cost(
        self, model: str, usage: Usage, cost_usd: float | None, reason: PaidReason = "aside", *, duration_ms: int = 0
    ) -> None:
        self.state.meter.add_request(model, usage, cost_usd)
        self.append(Paid(model=model, usage=usage, cost_usd=cost_usd, reason=reason, duration_ms=duration_ms))

    def subscribe(self, *, has_deltas: bool = True) -> AsyncGenerator[Event, None]:
        """Return a generator of the events from this call on; it ends when the session is closed."""
        return one_by_one(self._subscribers.batches(has_deltas=has_deltas))

    def subscribe_batches(self) -> AsyncGenerator[list[Event], None]:
        """Like `subscribe`, but yield lists, each with all events that have arrived since the last one."""
        return self._subscribers.batches()

    async def stored(self) -> int:
        """Return the number of entries once everything submitted so far is on disk. Raises `StorageError`."""
        # Commits keep their order, so an empty one ends after all earlier appends.
        return (await self.runtime.log.append().committed).first_seq - 1

    def publish(self, event: Event) -> None:
        """Send an event to the subscribers, with the name of this session's agent."""
        agent_id = self.runtime.calls.agent_id
        if event.agent_id == "main" and agent_id != "main":
            event = msgspec.structs.replace(event, agent_id=agent_id)  # a subagent's subagents name themselves
        log_activity(event, self.id, agent_id)
        self.last_event_at = self.loop.time()
        self._subscribers.put(event)

    def _begin_turn(self, messages: Sequence[tuple[Block, ...]], *, model: str = "", from_queue: bool = False) -> None:
        """Start a turn. When this returns, its prompt is in the queue of entries to store."""
        if model:
            self._model_afterwards, self.state.model.name = self.state.model.name, model
        self._start_turn(begin_turn(self.state, self.runtime, messages, self.publish, from_queue=from_queue))

    def _start_turn(self, turn: Turn) -> None:
        if self.next_tools is not None:
            self.runtime.calls.tools, self.next_tools = self.next_tools, None
        self.turns_begun += 1
        self.runtime.calls.delegates.client.received_ids.clear()
        self._newest_turn = turn
        self._turn = asyncio.create_task(self._run_turn(turn))

    async def _run_turn(self, turn: Turn) -> None:
        """Run a turn, and start the next one if messages wait. Only this function catches all exceptions."""
        is_answered = False
        try:
            end = await run_turn(turn)
            is_answered = isinstance(end, Done) and end.reason not in ("declined", "paused")
        except asyncio.CancelledError:
            pass  # `run_turn` has emitted the last event
        except Exception as bug:  # front ends wait for the last event of a turn, even after a bug
            text = f"Internal error: {bug!r}. The log has details."
            if is_out_of_memory(bug):
                text = OUT_OF_MEMORY
            else:  # writing the log would take more memory
                log.exception("the turn failed", extra={"session_id": self.id})
            self.publish(TurnFailed(f"{text} The conversation is saved.", False))
        self.state.remember_mode()  # the mode may have been switched meanwhile
        if self.state.notes:  # reminders that came after the last request must not be lost
            self.append(*self.state.notes)
            self.state.notes.clear()
        if self._model_afterwards:
            self.state.model.name, self._model_afterwards = self._model_afterwards, ""
        queue, self._turn = self.state.conversation.queue, None  # without `_turn`, the next one may begin
        if self._is_closing:
            return
        if late := queue.take_steering():  # messages that were meant for this turn
            self._begin_turn(late, from_queue=True)
        elif is_answered and not self.deliver_reports() and queue.follow_ups:  # after a failed turn, they stay queued
            self._begin_turn([queue.follow_ups.popleft()], from_queue=True)

    def deliver_reports(self) -> bool:
        """Start a turn with reports of background subagents, if there are any. A running turn takes them itself."""
        agents = self.runtime.calls.delegates.subagents
        if agents is None or self.is_busy or self.state.conversation.pending_calls:
            return False
        if reports := agents.take_reports():
            self._begin_turn([(Text(report),) for report in reports])
        return bool(reports)

    def _act_on_answer(self, answer: ops.Approve, asked: AnyQuestion | None) -> None:
        """Stop the turn or switch the mode, if the answer to the question `asked` requests that."""
        if answer.stops and (not answer.allowed or answer.hunks == ()):  # a yes to no hunks is a no
            if self._newest_turn is not None:
                self._newest_turn.calls.is_stopped = True
            self._questions.settle(is_stopped=True)
        mode_after_plan = self.state.mode_before_plan if asked is not None and asked.kind == "plan" else ""
        if answer.allowed and (mode := answer.mode or mode_after_plan):
            self._set_mode(mode)

    async def _watch_for_takeover(self) -> None:
        """Interrupt the turn, and let the front end close, once another program asks for the session."""
        while not self.runtime.log.is_wanted():
            await asyncio.sleep(TAKEOVER_POLL_S)
        self.submit(ops.Interrupt())
        self.publish(Notice("Another agentcli took over this session. This one closes."))
        self.publish(TakenOver())

    async def answer(self, content: Content) -> Done | TurnFailed:
        events = self.subscribe(has_deltas=False)
        self.submit(ops.Prompt(content))
        return await anext(event async for event in events if isinstance(event, Done | TurnFailed))

    async def idle(self) -> None:
        while running := [task for task in (self._turn, *self._commands) if task is not None and not task.done()]:
            await asyncio.wait(running)

    async def close(self) -> None:
        """End the turn and commands, wait until all is stored, and release everything. Queued messages stay queued."""
        calls = self.runtime.calls
        self._is_closing = True
        self._takeover_watch.cancel()
        if calls.parent_call is None:  # a subagent's session is part of its parent's session
            await fire(calls, "SessionEnd", reason="other")
        self._handle(ops.Pause())  # calls that the client runs get their results in a later run
        for task in filter(None, (self._turn, *self._commands)):
            task.cancel()
        await self.idle()
        if self.runtime.context.watch is not None:
            await self.runtime.context.watch.aclose()
        while self._storing:
            await asyncio.wait(self._storing)
        if (agents := calls.delegates.subagents) is not None:
            await agents.aclose()
        if calls.parent_call is None:
            await calls.workspace.sandbox.aclose()
            await calls.recording.end()
        await self.runtime.log.close()
        self._subscribers.end()
