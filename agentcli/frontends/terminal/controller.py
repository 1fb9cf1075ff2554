"""The session at a terminal: what is typed goes in, events come out; the same with a live screen and without one."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from agentcli.agent.commands.command import AsDiff, AsPrompt, Command, Commands, Outcome, Picked, Topic
from agentcli.agent.events import (
    ApprovalRequested,
    ApprovalSettled,
    Approve,
    Done,
    EntryStored,
    Event,
    GoOn,
    Interrupt,
    ModeChanged,
    Prompt,
    ProviderSwitched,
    RunQueued,
    Steer,
    ToolFinished,
    TurnFailed,
    UsageReported,
)
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.conversation.entries import Entry, SystemEvent, User, kept
from agentcli.errors import NoKey, UsageError, UserError
from agentcli.frontends.ending_jobs import ended_jobs, named, running_jobs
from agentcli.frontends.session_opener import SessionOpener, open_after
from agentcli.frontends.terminal.output.live import Live
from agentcli.frontends.terminal.output.status_bar import Status
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.llm.messages import Block, Text


class NothingChosen(UserError):
    """The person left a picker: the command that asked ends, and nothing needs to be said."""


log = logging.getLogger(__name__)

JOB_CHECK_S = 2.0  # while there are jobs, which end by themselves

AddBlocks = Callable[[tuple[Block, ...]], tuple[Block, ...]]


def unchanged(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return blocks


class TerminalOpener(SessionOpener, Protocol):
    """What opens sessions and knows the settings; given by whoever starts the terminal."""

    async def first(self, terminal: TerminalActions) -> Session:
        """The session that the command line means; asks which model when none is set up. Raises `UserError`."""
        ...

    def known_models(self) -> Sequence[tuple[str, str]]:
        """The models of the table as `provider/model`, with a word on each."""
        ...

    async def ask_key(self, terminal: TerminalActions, provider: str = "") -> str:
        """Let the person give a key of a provider, or of one they choose; a sentence on it, empty without one."""
        ...

    def forget_key(self, provider: str) -> str:
        """Remove a key that was kept or typed; a sentence on it. Raises `UserError`."""
        ...

    def window(self, model: str) -> int:
        """The size of a model's context window, in tokens."""
        ...

    @property
    def project(self) -> str:
        """The name of the folder that the project is in."""
        ...

    def introduction(self) -> tuple[str, Sequence[str]]:
        """The program with where it runs, and the instruction files it has read there."""
        ...

    def branch(self) -> str:
        """The branch that is checked out where the session runs, or an empty string."""
        ...


class TerminalActions(Protocol):
    """What differs between a live screen and a plain one."""

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None: ...

    async def choose_setting(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None, can_keep: bool
    ) -> Picked | None:
        """None where there is no picker. Raises `NothingChosen` when the person leaves it."""
        ...

    async def ask_secret(self, question: str) -> str | None:
        """Something typed that is neither shown nor kept; None when nothing was."""
        ...

    async def run_outside(self, arguments: Sequence[str]) -> int:
        """Run a program that has the terminal to itself; gives its exit code."""
        ...

    def run_own(self, command: str, *, to_model: bool) -> None:
        """Run a shell command of the person's own in the session; returns at once."""
        ...

    def put_into_input(self, text: str) -> None: ...

    def give_back(self, prompts: Sequence[Sequence[Block]]) -> None:
        """Prompts that the model never got are the person's again; a command's are what was typed for it."""
        ...

    def ask_approval(self, request: ApprovalRequested) -> None:
        """Ask the person; the answer is submitted to the session when it comes."""
        ...

    def forget_approval(self, call_id: str) -> None:
        """The call has ended otherwise."""
        ...

    def session_opened(self) -> None:
        """Another session is shown from now on; what the one before asked is no longer open."""
        ...

    def changed(self) -> None:
        """Something to be seen has changed."""
        ...

    def turn_ended(self, why: str) -> None: ...

    def status_changed(self) -> None: ...

    def idle(self) -> None:
        """A command is done, and nothing runs."""
        ...

    def leave(self) -> None: ...


class TerminalController:
    """Implements `CommandHost`; keeps the session, shows its events, takes what the person typed."""

    def __init__(
        self, opener: TerminalOpener, terminal: TerminalActions, commands: Commands, view: TurnView, live: Live
    ) -> None:
        self._opener = opener
        self._terminal = terminal
        self._view = view
        self._live = live
        self.commands = commands
        self.status = Status()
        self._session: Session | None = None
        self._opening: asyncio.Task[Session] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._context_tokens = 0
        self._said_by_commands: dict[tuple[Block, ...], tuple[Block, ...]] = {}  # the newest one, as it was typed
        self.has_broken_off = False  # the last answer did, in the middle of its text
        self._in_order = asyncio.Lock()  # what is typed first is taken first
        self._commands: set[asyncio.Task[Outcome]] = set()
        self._job_timer: asyncio.TimerHandle | None = None
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
    def stored_sessions(self) -> SessionStore:
        return self._opener.stored_sessions

    def start_opening(self) -> asyncio.Task[Session]:
        """Open the first session while the person types."""
        if self._opening is None or (self._opening.done() and self._session is None):
            self._opening = asyncio.create_task(self._open_first())
        return self._opening

    async def _open_first(self) -> Session:
        session = await self._opener.first(self._terminal)
        self._take(session)
        return session

    def _take(self, session: Session) -> None:
        self._session = session
        if self._pump is not None:
            self._pump.cancel()
        self._pump = asyncio.create_task(self._show_events(session.subscribe()))
        state = session.state
        self._live.clear()
        self._view.begin_anew()
        self._terminal.session_opened()
        self.has_broken_off = False
        self._live.steering, self._live.follow_ups = tuple(state.steering), tuple(state.follow_ups)
        self._context_tokens = _last_context(session)
        if state.entries:
            self._view.replay(state.entries)
        self.refresh_status()

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._opener.list()

    async def open_session(self, session_id: str | None, *, fork: bool = False) -> Session:
        before = self._session
        if before is not None and session_id is not None and before.id.startswith(session_id) and not fork:
            raise UsageError("That is this conversation.")
        opened = await open_after(self._opener, self.session, session_id, fork=fork)
        self._take(opened)
        if before is not None:
            await self._end(before)
        return opened

    async def _end(self, session: Session) -> None:
        """Close a session, and tell of the jobs that end with it."""
        jobs = ended_jobs(running_jobs(session))
        await session.close()
        if jobs:
            self._view.line(jobs, "warning")

    async def close(self) -> None:
        """End what runs and store all of it."""
        if self._job_timer is not None:
            self._job_timer.cancel()
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

    async def _show_events(self, events: AsyncGenerator[Event, None]) -> None:
        async for event in events:
            try:
                self._view.show(event)
                self._note(event)
            except Exception as bug:  # a bug in a view must not leave the person before a dead screen
                log.exception("an event could not be shown: %r", event)
                self._view.line(f"Internal error: {bug!r}. The log has details.", "error")
            self._terminal.changed()

    def _note(self, event: Event) -> None:
        match event:
            case ApprovalRequested():
                self._live.ask(event.id)
                self._terminal.ask_approval(event)
            case ApprovalSettled(id):
                self._live.answered(id)
                self._terminal.forget_approval(id)
            case ToolFinished():
                self._live.answered(event.id)
                self._terminal.forget_approval(event.id)
                if event.name == "bash":
                    self.refresh_status()
            case UsageReported(usage):
                self._context_tokens = usage.context_tokens
                self.refresh_status()
            case ModeChanged() | ProviderSwitched():
                self.refresh_status()
            case EntryStored(Entry(body=SystemEvent("retracted", {"ids": ids}))):
                self._give_back(ids)
            case Done():
                self.refresh_status()
                self._terminal.turn_ended("interrupted" if event.reason in ("interrupted", "declined") else "done")
                self.has_broken_off = False
            case TurnFailed():
                self.refresh_status()
                self.has_broken_off = event.broke_off
                self._terminal.turn_ended("failed")
            case _:
                pass

    def _give_back(self, ids: Sequence[str]) -> None:
        prompts = [
            self._said_by_commands.get(entry.body.content, entry.body.content)
            for entry in self.session.state.entries
            if entry.id in ids and isinstance(entry.body, User) and not entry.body.is_reminder
        ]
        if prompts:
            self._terminal.give_back(prompts)

    def go_on(self) -> None:
        """What Enter in an empty input means: run what waits, or go on with an answer that broke off."""
        if not self.is_open or self.session.is_busy:
            return
        if self.session.state.follow_ups:
            self.session.submit(RunQueued())
        elif self.has_broken_off:
            self.session.submit(GoOn())

    def answer(self, answer: Approve) -> None:
        """What the person said to a question."""
        self._live.answered(answer.id)
        self.session.submit(answer)

    # What the person typed

    def submit(self, text: str, blocks: AddBlocks = unchanged, *, shown: str = "", queue: bool = False) -> None:
        """Run a command, or say `text` to the model; while a turn runs it steers, or with `queue` waits for its end.

        `blocks` may add to what goes to the model; `shown` is what the screen shows for it. Returns at once.
        """
        self.spawn(self._submit(text, blocks, shown=shown or text, queue=queue))

    async def _submit(self, text: str, blocks: AddBlocks, *, shown: str, queue: bool) -> None:
        async with self._in_order:
            try:
                await self.start_opening()
            except UserError:
                return  # whoever started the opening tells
            # By what was typed: a paste that begins with ! or / is somebody else's text.
            if shown.startswith("!"):
                self._run_shell(text)
                return
            found = self._command(text, shown)
            if found is None:
                content = blocks(self._opener.attach(text, self.session, typed=shown))
                self._say(content, shown=shown, queue=queue)
                return
            command, argument = found
            self._view.typed(shown)
            if not command.is_aside:
                await self._run_command(command, argument, queue=queue)
                return
        await self._run_command(command, argument, queue=queue)

    def _command(self, text: str, shown: str) -> tuple[Command, str] | None:
        if not shown.startswith("/"):
            return None
        try:
            return self.commands.parse(text)
        except UserError:
            self._terminal.put_into_input(shown)  # a slip is mended, not typed again
            raise

    async def _run_command(self, command: Command, argument: str, *, queue: bool) -> None:
        task = asyncio.ensure_future(command.run(self, argument))
        self._commands.add(task)
        self._live.commands[command.name] = time.monotonic()
        self._terminal.changed()
        try:
            outcome = await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            self._view.line(f"/{command.name} was interrupted.", "warning")
            outcome = ""
        finally:
            self._commands.discard(task)
            self._live.commands.pop(command.name, None)
        if isinstance(outcome, AsPrompt):
            content = self._opener.attach(outcome.text, self.session, typed=outcome.text)
            self._said_by_commands = {content: (Text(f"/{command.name} {argument}".rstrip()),)}
            self._say(content, shown="", queue=queue, model=outcome.model)
        elif isinstance(outcome, AsDiff):
            self._view.gap()
            for file in outcome.files:
                self._view.diff(file.path, file.diff)
            if outcome.note:
                self._view.line(outcome.note)
            self._view.gap()
        elif outcome:
            self._view.gap()
            self._view.line(outcome)
            self._view.gap()
        self._context_tokens = _last_context(self.session)
        self.refresh_status()
        self._terminal.changed()
        if not self.session.is_busy:
            self._terminal.idle()

    def interrupt(self) -> None:
        """End the turn and the person's own commands, else the slash command that runs."""
        if self.is_open and (self.session.is_busy or self._live.calls):
            self.session.submit(Interrupt())
        for task in self._commands:
            task.cancel()

    def _run_shell(self, text: str) -> None:
        to_model = not text.startswith("!!")
        command = text.lstrip("!").strip()
        if command:
            self._view.typed(text)
            self._terminal.run_own(command, to_model=to_model)

    def _say(self, content: tuple[Block, ...], *, shown: str, queue: bool, model: str = "") -> None:
        session = self.session
        if not session.is_busy:
            if shown:
                self._view.typed(shown)
            session.submit(Prompt(content, model) if model else Prompt(content))
        elif queue or model:
            session.submit(Prompt(content, model) if model else Prompt(content))
        else:
            session.submit(Steer(content))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run beside the screen; what it raises for the person is shown."""

        async def run() -> None:
            try:
                await work
            except NothingChosen:
                self._terminal.changed()
            except UserError as error:
                self._view.line(str(error), "error")
                self._view.gap()
                self._terminal.changed()
            except Exception as bug:  # what a command raises must not vanish with the task
                log.exception("what was typed could not be done")
                self._view.line(f"Internal error: {bug!r}. The log has details.", "error")
                self._view.gap()
                self._terminal.changed()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What commands ask for

    async def check_model(self, name: str) -> str:
        try:
            return self._opener.check_model(name)
        except NoKey as missing:
            with self._waiting():
                said = await self._opener.ask_key(self._terminal, missing.provider)
            if not said:
                raise
            return f"{said}\n{self._opener.check_model(name)}"

    async def models(self) -> Sequence[tuple[str, str]]:
        return await self._opener.models()

    async def keep(self, key: str, value: Any) -> str:
        return await asyncio.to_thread(self._opener.keep, key, value)

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        with self._waiting():
            chosen = await self._terminal.choose(title, options)
        if chosen is None and options:
            raise NothingChosen
        return chosen

    async def choose_setting(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None, can_keep: bool = True
    ) -> Picked | None:
        with self._waiting():
            return await self._terminal.choose_setting(title, options, current=current, can_keep=can_keep)

    async def log_in(self, provider: str) -> str:
        with self._waiting():
            said = await self._opener.ask_key(self._terminal, provider)
        if not said:
            raise NothingChosen
        return said

    def log_out(self, provider: str) -> str:
        return self._opener.forget_key(provider)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """The commands that run wait for the person."""
        running, self._live.commands = self._live.commands, {}
        try:
            yield
        finally:
            self._live.commands |= running

    async def describe(self, topic: Topic) -> str:
        return await asyncio.to_thread(self._opener.describe, topic)

    def put_into_input(self, text: str) -> None:
        self._terminal.put_into_input(text)

    def leave(self) -> None:
        """Leave, unless jobs run that the person has not been told of: then it takes a second time."""
        jobs = running_jobs(self.session) if self.is_open else []
        if any(job.id not in self._told_of for job in jobs):
            self._told_of |= {job.id for job in jobs}
            what = "A job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
            self._view.line(f"{what} still running: {named(jobs)}. Leave again to end it all.", "warning")
            self._terminal.changed()
        else:
            self._terminal.leave()

    # The status line

    def refresh_status(self) -> None:
        if self._session is None:
            return
        before = self.status
        session, state = self._session, self._session.state
        self.status = Status(
            state.model,
            state.mode,
            state.effort or "",
            self._context_tokens,
            self._opener.window(state.model),
            state.meter.cost_usd,
            session.runtime.limits.max_budget_usd,
            self._opener.branch(),
            sum(job.is_running for job in session.runtime.calls.workspace.sandbox.jobs()),
            os.fsencode(session.runtime.calls.workspace.cwd).decode(errors="replace"),
            session.id,
            session.is_busy,
        )
        if self.status != before:
            self._terminal.status_changed()
        if self.status.jobs and self._job_timer is None:
            self._job_timer = asyncio.get_running_loop().call_later(JOB_CHECK_S, self._look_at_jobs)

    def _look_at_jobs(self) -> None:
        self._job_timer = None
        before = self.status.jobs
        self.refresh_status()
        if self.status.jobs != before:
            self._terminal.changed()


def _last_context(session: Session) -> int:
    """What the newest reply's request and the reply itself took."""
    usages = (getattr(entry.body, "usage", None) for entry in reversed(kept(session.state.entries)))
    return next((usage.context_tokens for usage in usages if usage is not None), 0)
