"""Runs the session behind a terminal: what is typed goes in, events come out, with a live screen or a plain one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from agentcli.agent import events
from agentcli.agent.commands.command import AsPrompt, ChoiceIndex, CommandSet, SlashCommand
from agentcli.agent.ops import Approve, GoOn, Interrupt, Prompt, RunQueued, Steer
from agentcli.agent.session import Session
from agentcli.agent.state import awaited_reset
from agentcli.conversation.entries import Entry, Retracted, User
from agentcli.errors import NoKey, UserError
from agentcli.frontends.hosts import OpenerHost, open_after
from agentcli.frontends.run_end import ended_jobs, named, running_jobs
from agentcli.frontends.terminal.input.missing_files import missing_files
from agentcli.frontends.terminal.input.pastes import Pastes
from agentcli.frontends.terminal.output.turn_view import TurnView, replay
from agentcli.frontends.terminal.protocols import NothingChosen, TerminalActions, TerminalOpener
from agentcli.frontends.terminal.status import SessionStatus, Status
from agentcli.llm.messages import Block, Text

log = logging.getLogger(__name__)


class TerminalController(OpenerHost):
    """Owns the open session. Implements `CommandHost` for slash commands."""

    def __init__(self, opener: TerminalOpener, terminal: TerminalActions, commands: CommandSet, view: TurnView) -> None:
        super().__init__(opener)
        self._opener: TerminalOpener = opener
        self._terminal = terminal
        self.view = view
        self.commands = commands
        self._status = SessionStatus(opener, terminal)
        self._session: Session | None = None
        self._opening: asyncio.Task[Session] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._command_prompt: tuple[tuple[Block, ...], tuple[Block, ...]] = ((), ())  # the newest: as sent, as typed
        self._has_broken_off = False  # the last turn did, and may go on
        self._in_order = asyncio.Lock()  # what is typed first is taken first
        self._told_of: set[str] = set()  # jobs that would end with the session

    # Sessions

    @property
    def session(self) -> Session:
        assert self._session is not None, "commands run once a session is open"
        return self._session

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def is_busy(self) -> bool:
        return self._session is not None and self._session.is_busy

    @property
    def status(self) -> Status:
        return self._status.status

    def start_opening(self) -> asyncio.Task[Session]:
        """Open the first session while the person types."""

        async def open_first() -> Session:
            session = await self._opener.first(self._terminal)
            self._show_session(session)
            return session

        if self._opening is None or (self._opening.done() and self._session is None):
            self._opening = asyncio.create_task(open_first())
        return self._opening

    def _show_session(self, session: Session) -> None:
        self._session = session
        if self._pump is not None:
            self._pump.cancel()
        self._pump = asyncio.create_task(self._show_events(session.subscribe()))
        conversation = session.snapshot().conversation
        live, queue = self.view.live, conversation.queue
        live.clear()
        self.view.begin_anew()
        self._terminal.session_opened()
        self._has_broken_off = False
        live.steering, live.follow_ups = tuple(queue.steering), tuple(queue.follow_ups)
        if conversation.entries:
            replay(conversation, self.view)
        if conversation.asked_again or awaited_reset(conversation):
            session.submit(GoOn(is_killed=True))
        self._status.follow(session)

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        before = self.session
        opened = await open_after(self._opener, before, session_id, fork=fork, take_over=take_over)
        self._show_session(opened)
        await self._end(before)
        return opened

    async def _end(self, session: Session) -> None:
        """Close a session, and name the jobs that end with it."""
        jobs = ended_jobs(running_jobs(session))
        await session.close()
        if jobs:
            self.view.line(jobs, "warning")

    async def close(self) -> None:
        """End everything that runs and store all of it."""
        self._status.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None and self._session is None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._session is not None:
            await self._end(self._session)
        await asyncio.sleep(0)  # the pump shows the last events
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    # Events

    async def _show_events(self, stream: AsyncGenerator[events.Event, None]) -> None:
        async for event in stream:
            try:
                self.view.show(event)
                self._note(event)
            except Exception as bug:  # a bug in a view must not leave the person before a dead screen
                log.exception("an event could not be shown: %r", event)
                self._report_bug(bug)
            self._terminal.changed()

    def _note(self, event: events.Event) -> None:
        of_any_agent = events.QuestionEvent | events.ApprovalSettled | events.UsageReported
        if event.agent_id != "main" and not isinstance(event, of_any_agent):
            return
        match event:
            case events.QuestionEvent():
                self.view.live.ask(event.id)
                self._terminal.ask_question(event)
            case events.ApprovalSettled(id):
                self._settled(id)
            case events.ToolFinished():
                self._settled(event.id)
                if event.name == "bash":
                    self._status.refresh()
            case events.UsageReported() | events.TurnStarted():
                self._status.recount()
            case events.Compaction(tokens_after=tokens):
                self._status.refresh(tokens)
            case events.ModeChanged() | events.ProviderSwitched():
                self._status.refresh()
            case events.EntryStored(Entry(body=Retracted(ids))):
                self._give_back(ids)
            case events.TakenOver():
                self._terminal.leave()
            case events.TurnFailed(_, is_retryable, broke_off=broke_off):
                self._status.refresh()
                self._has_broken_off = broke_off or is_retryable
                self._terminal.turn_ended("failed")
            case events.Done(reason=reason):
                self._status.refresh()
                self._has_broken_off = False
                self._terminal.turn_ended("interrupted" if reason in ("interrupted", "declined") else "done")
            case _:
                pass

    def _settled(self, id: str) -> None:
        self.view.live.answered(id)
        self._terminal.forget_question(id)

    def _give_back(self, ids: Sequence[str]) -> None:
        sent, typed = self._command_prompt
        prompts = [
            typed if entry.body.content == sent else entry.body.content
            for entry in self.session.snapshot().conversation.entries
            if entry.id in ids and isinstance(entry.body, User) and not entry.body.is_reminder
        ]
        if prompts:
            self._terminal.give_back(prompts)

    # Typed text

    def submit(self, text: str, pastes: Pastes | None = None, *, shown: str = "", queue: bool = False) -> None:
        """Run a command, or send `text` with its `pastes`: now, to steer a turn or, with `queue`, after it."""
        self.spawn(self._submit(text, pastes or Pastes(), shown=shown or text, queue=queue))

    async def _submit(self, text: str, pastes: Pastes, *, shown: str, queue: bool) -> None:
        async with self._in_order:
            try:
                await self.start_opening()
            except UserError:
                return  # whoever started the opening tells
            # By what was typed: a paste that begins with ! or / is somebody else's text.
            if shown.startswith("!"):
                if line := text.lstrip("!").strip():
                    self.view.typed(text)
                    self.spawn(self._terminal.run_own(line, to_model=not text.startswith("!!")))
                return
            found = self._command(text, shown)
            if found is None:
                content = pastes.in_place(self._opener.attach(text, self.session, typed=shown))
                self._send(content, shown=shown, queue=queue)
                if missing := missing_files(shown, self.session.snapshot().workspace.cwd):
                    names = ", ".join(f"@{name}" for name in missing)
                    self.view.line(f"Not found: {names}. The message is sent as it is.", "warning")
                return
            command, argument = found
            self.view.typed(shown)
            if not command.is_aside:
                await self._run_command(command, argument, queue=queue)
                return
        await self._run_command(command, argument, queue=queue)

    def _command(self, text: str, shown: str) -> tuple[SlashCommand, str] | None:
        if not shown.startswith("/"):
            return None
        try:
            return self.commands.parse(text)
        except UserError:
            self._terminal.put_into_input(shown)  # a slip is mended, not typed again
            raise

    async def _run_command(self, command: SlashCommand, argument: str, *, queue: bool) -> None:
        self.view.live.commands[command.name] = time.monotonic()
        self._terminal.changed()
        try:
            outcome = await self.run_command(command, argument)
        finally:
            self.view.live.commands.pop(command.name, None)
        match outcome:
            case AsPrompt(text, model, more):
                content = (*self._opener.attach(text, self.session, typed=text), *more)
                self._command_prompt = content, (Text(f"/{command.name} {argument}".rstrip()),)
                self._send(content, shown="", queue=queue, model=model)
            case None:
                self.view.line(f"/{command.name} was interrupted.", "warning")
            case _ if outcome:
                self.view.outcome(outcome)
        self._status.recount()
        self._terminal.changed()
        if not self.session.is_busy:
            self._terminal.idle()

    def _send(self, content: tuple[Block, ...], *, shown: str, queue: bool, model: str = "") -> None:
        if self.session.is_busy and not queue and not model:
            self.session.submit(Steer(content))
            return
        if shown and not self.session.is_busy:
            self.view.typed(shown)
        self.session.submit(Prompt(content, model) if model else Prompt(content))

    def go_on(self) -> None:
        """Enter in an empty input: run what waits, go on with an answer that broke off, or without slow servers."""
        if not self.is_open:
            return
        if self.session.is_busy:
            self.session.submit(GoOn())
        elif self.session.snapshot().conversation.queue.follow_ups:
            self.session.submit(RunQueued())
        elif self._has_broken_off:
            self.session.submit(GoOn(is_killed=True))

    def answer(self, answer: Approve) -> None:
        """Pass on the person's answer to a question."""
        self.view.live.answered(answer.id)
        self.session.submit(answer)

    def interrupt(self) -> None:
        """End the turn and the person's own commands, and slash commands that run."""
        if self.is_open and (self.session.is_busy or self.view.live.calls):
            self.session.submit(Interrupt())
        self.interrupt_commands()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run beside the screen; what it raises for the person is shown."""

        async def run() -> None:
            try:
                await work
                return
            except NothingChosen:
                pass
            except UserError as error:
                self.view.line(str(error), "error")
                self.view.gap()
            except Exception as bug:  # what a command raises must not vanish with the task
                log.exception("what was typed could not be done")
                self._report_bug(bug)
                self.view.gap()
            self._terminal.changed()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_bug(self, bug: Exception) -> None:
        self.view.line(f"Internal error: {bug!r}. The log has details.", "error")

    # For commands

    async def check_model(self, name: str) -> str:
        try:
            return self._opener.check_model(name)
        except NoKey as missing:
            if not (said := await self._ask_key(missing.provider)):
                raise
            return f"{said}\n{self._opener.check_model(name)}"

    async def log_in(self, provider: str) -> str:
        if not (said := await self._ask_key(provider)):
            raise NothingChosen
        return said

    async def _ask_key(self, provider: str) -> str:
        with self.view.live.waiting_for_person():
            return await self._opener.ask_key(self._terminal, provider)

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        with self.view.live.waiting_for_person():
            chosen = await self._terminal.choose(title, options, current=current, can_keep=can_keep)
        if chosen is None and options:
            raise NothingChosen
        return chosen

    async def confirm(self, shown: str, question: str) -> bool | None:
        self.view.gap()
        self.view.line(shown)
        return await self.choose(question, [("Yes", ""), ("No", "nothing is changed")]) == 0

    def log_out(self, provider: str) -> str:
        return self._opener.forget_key(provider)

    async def edit(self, text: str) -> str | None:
        return await self._terminal.edit(text)

    def put_into_input(self, text: str) -> None:
        self._terminal.put_into_input(text)

    def leave(self) -> None:
        """Leave; with jobs running that have not been named yet, name them and wait for a second time."""
        if not self.name_jobs():
            self._terminal.leave()

    def name_jobs(self) -> bool:
        """Name jobs that would end with the session, once. False when there are none to name."""
        jobs = running_jobs(self.session) if self.is_open else []
        if all(job.id in self._told_of for job in jobs):
            return False
        self._told_of |= {job.id for job in jobs}
        what = "A job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
        self.view.line(f"{what} still running: {named(jobs)}. Leave again to end it all.", "warning")
        self._terminal.changed()
        return True
