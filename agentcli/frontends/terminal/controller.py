"""Runs the session behind a terminal, live or plain: typed text goes in, events come out."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import partial
from typing import Any

from agentcli.agent import events
from agentcli.agent.commands.command import AsPrompt, CommandSet, SlashCommand
from agentcli.agent.loop import is_unanswered
from agentcli.agent.ops import Approve, GoOn, Interrupt, Prompt, RunQueued, Steer
from agentcli.agent.session import Session
from agentcli.agent.state import awaited_reset
from agentcli.agent.turn_log import unanswered_messages
from agentcli.background import start_in_background
from agentcli.conversation.entries import Entry, Queued, Retracted, User
from agentcli.conversation.mentions import missing_files_notice
from agentcli.errors import NoKey, UserError
from agentcli.frontends.hosts import OpenerHost, open_replacement
from agentcli.frontends.run_end import describe_jobs, ended_jobs_notice
from agentcli.frontends.terminal.input.typed_text import TypedText, rebuild_typed_text
from agentcli.frontends.terminal.output.activity import message_text
from agentcli.frontends.terminal.output.turn_view import TurnEnd, TurnView
from agentcli.frontends.terminal.session_text import replay
from agentcli.frontends.terminal.status import NothingChosen, SessionStatus, Status, TerminalActions, TerminalOpener
from agentcli.llm.messages import Block, Text

log = logging.getLogger(__name__)
MAX_SENT = 20  # newest messages that can return to the input as they were typed


class TerminalController(OpenerHost):
    """Owns the open session. Implements `CommandHost` for slash commands."""

    def __init__(self, opener: TerminalOpener, terminal: TerminalActions, commands: CommandSet, view: TurnView) -> None:
        super().__init__(opener)
        self._opener: TerminalOpener = opener
        self._terminal, self.view, self.commands = terminal, view, commands
        self._status = SessionStatus(opener, terminal, view)
        self._session: Session | None = None
        self._opening: asyncio.Task[None] | None = None  # opens the first session
        self._pump: asyncio.Task[None] | None = None  # passes the session's events to the view
        self._tasks: set[asyncio.Task[None]] = set()  # prompts and commands being handled
        # The newest messages: for each, the blocks that were sent, with attached files, and the typed text.
        self._sent: deque[tuple[tuple[Block, ...], TypedText]] = deque(maxlen=MAX_SENT)
        self._unsent: tuple[Block, ...] = ()  # a message that came back unanswered while the input was in use
        self._can_continue = False  # True while the last turn is unfinished, so that Enter continues it
        self._submitting = asyncio.Lock()  # keeps texts in the order in which they were typed
        self._named_jobs: set[str] = set()  # ids of the jobs in earlier warnings about leaving

    @property
    def session(self) -> Session:
        assert self._session is not None, "commands run once a session is open"
        return self._session

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def has_entries(self) -> bool:
        return self._session is not None and bool(self._session.snapshot().conversation.entries)

    @property
    def is_busy(self) -> bool:
        return self._session is not None and self._session.is_busy

    @property
    def status(self) -> Status:
        return self._status.status

    def start_opening(self) -> asyncio.Task[None]:
        """Open the first session, also after a failed attempt, while the person types; return the task that does it."""

        async def open_first() -> None:
            self._show_session(await self._opener.open_first(self._terminal))

        if self._opening is None or (self._opening.done() and self._session is None):
            self._opening = asyncio.create_task(open_first())
        return self._opening

    def _show_session(self, session: Session, *, replays: bool = True) -> None:
        """Show a session instead of the previous one; print the end of its conversation if it `replays`."""
        self._session = session
        if self._pump is not None:
            self._pump.cancel()
        self._pump = asyncio.create_task(self._show_events(session.subscribe()))
        conversation = session.snapshot().conversation
        self.view.reset()
        self._terminal.session_opened()
        self._can_continue, self._unsent = is_unanswered(conversation, counts_reminders=False), ()
        self.view.activity.queue = conversation.queue.entry()
        if conversation.entries and replays:
            replay(conversation, self.view)
        # The program was killed while it waited for an approval or a usage limit: ask, or wait, again.
        if conversation.unstarted_calls or awaited_reset(conversation):
            session.submit(GoOn(if_unanswered=True))
        elif self._can_continue:
            how = "Press Enter to continue it."
            if conversation.queue.follow_ups:  # Enter sends these first
                how = "Your next message continues it; Enter in the empty input sends the queued one."
            self.view.print_line(f"The last turn is not finished. {how}", "warning")
            self.view.print_gap()
        self._status.follow(session)

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        before = self.session
        opened = await open_replacement(self._opener, before, session_id, fork=fork, take_over=take_over)
        self._show_session(opened)
        await self._close_session(before)
        return opened

    def require_idle(self) -> None:
        """Raise `UserError` while a turn, a command or a job is running, which would end with the session."""
        if self.session.is_busy or self.view.activity.calls or self.session.snapshot().workspace.running_jobs():
            raise UserError("A turn or a job is running. Wait until it ends or stop it, then repeat the command.")

    async def reload(self) -> None:
        """Reopen this session with the current settings and their slash commands. Raises `UserError`."""
        self.require_idle()
        self._show_session(await self._opener.reload(self.session), replays=False)
        self.commands.remove_added()
        self._opener.add_commands(self.commands, partial(self.view.print_line, roles="warning"))

    async def _close_session(self, session: Session) -> None:
        warning = ended_jobs_notice(session)
        await session.close()
        if warning:
            self.view.print_line(warning, "warning")

    async def close(self) -> None:
        """End prompts and commands that are being handled, close the session, and show its last events."""
        self._status.stop_timer()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None and self._session is None:  # it is still opening
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._session is not None:
            await self._close_session(self._session)
        await asyncio.sleep(0)  # lets the pump show the last events
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def _show_events(self, stream: AsyncGenerator[events.Event, None]) -> None:
        async for event in stream:
            try:
                self.view.show(event)
                self._react(event)
            except Exception as bug:  # a bug in a view must not stop the screen from updating
                log.exception("an event could not be shown: %r", event)
                self._print_bug(bug)
            self._terminal.draw_soon()

    def _react(self, event: events.Event) -> None:
        """Update everything but the transcript after an event: questions, the status line, the input."""
        also_of_subagents = events.QuestionEvent | events.ApprovalSettled | events.UsageReported
        if event.agent_id != "main" and not isinstance(event, also_of_subagents):
            return
        match event:
            case events.QuestionEvent():
                self.view.activity.clock.pause(event.id)
                self._terminal.ask_question(event)
            case events.ApprovalSettled(id):
                self._close_question(id)
            case events.ToolFinished(id, name):
                self._close_question(id)  # a question has the id of its call, which may end unanswered
                if name == "bash":  # it may have switched the branch, which the status line shows
                    self._status.refresh()
            case events.EntryStored(Entry(body=Retracted(ids))):
                self._return_prompts(ids)
            case events.TakenOver():
                self._terminal.leave()
            case events.TurnFailed(error_type=error_type, broke_off=broke_off):
                can_continue = broke_off or is_unanswered(self.session.snapshot().conversation, counts_reminders=False)
                self._end_turn("auth" if error_type == "AuthError" else "failed", can_continue=can_continue)
            case events.Done(reason=reason):
                self._end_turn("interrupted" if reason in ("interrupted", "declined") else "done", can_continue=False)
            case events.UsageReported() | events.TurnStarted() | events.Compaction():
                self._status.refresh()
            case events.ModeChanged() | events.ProviderSwitched():
                self._status.refresh()

    def _end_turn(self, end: TurnEnd, *, can_continue: bool) -> None:
        self._can_continue = can_continue
        self._status.refresh()
        self._terminal.turn_ended(end)

    def _close_question(self, id: str) -> None:
        self.view.activity.close_question(id)
        self._terminal.forget_question(id)

    def _return_prompts(self, entry_ids: Sequence[str]) -> None:
        """Put messages that were retracted without an answer back into the input, except those sent again meanwhile."""
        conversation = self.session.snapshot().conversation
        awaiting_answer = unanswered_messages(conversation).values()  # a message among these was sent again
        bodies = (entry.body for entry in conversation.entries if entry.id in entry_ids)
        messages = [body for body in bodies if isinstance(body, User) and not body.is_reminder]
        returned = [message.content for message in messages if message.content not in awaiting_answer]
        if returned and not self._terminal.return_prompts([self.find_typed_text(content) for content in returned]):
            self._unsent = tuple(block for content in returned for block in content)

    def find_typed_text(self, content: Sequence[Block]) -> TypedText:
        """Return a message as the person typed it, so that they can edit it: pastes and images are short tokens."""
        # The log does not say which part of an older message was a paste: only its images become tokens again.
        return next((typed for sent, typed in self._sent if sent == content), None) or rebuild_typed_text(content)

    def submit(self, typed: TypedText, *, queue: bool = False) -> None:
        """Run a command, or send a prompt; a prompt steers a running turn or, with `queue`, waits for its end."""
        typed = TypedText(typed.text.strip(), typed.pastes)
        if not self.is_open and typed.text != "/resume":  # /resume opens its list at once, so it is not shown as queued
            unsent = (*self.view.activity.queue.steering, (Text(typed.text),))
            self.view.activity.queue = Queued(steering=unsent)  # shown as "next"
        self.spawn(self._submit(typed, queue=queue))

    async def _submit(self, typed: TypedText, *, queue: bool) -> None:
        """Run a shell command (`!`) or a slash command, or send a prompt, once the first session is open."""
        shown, text = typed.text, typed.expand().strip()
        async with self._submitting:
            try:
                await self.start_opening()
            except UserError:
                return  # the code that started the opening reports the error
            # Only typed text can be a command: a paste that begins with ! or / is someone else's text.
            if shown.startswith("!"):
                if shell_command := text.lstrip("!").strip():
                    self.view.begin_prompt(text)
                    self.spawn(self._terminal.run_own_command(shell_command, to_model=not text.startswith("!!")))
                return
            parsed = self.commands.parse(text) if shown.startswith("/") else None
            if parsed is None:
                content = typed.insert_images(self._opener.attach(text, self.session, typed=shown))
                self._sent.append((content, typed))
                self._send(content, shown_text=shown, queue=queue)
                if notice := missing_files_notice(shown, self.session.snapshot().workspace.cwd):
                    self.view.print_line(notice, "warning")
                return
            command, argument = parsed
            self.view.begin_prompt(shown)
            if not command.is_parallel:
                await self._run_command(command, argument, queue=queue)
        if command.is_parallel:  # outside the lock: later texts do not wait for it
            await self._run_command(command, argument, queue=queue)

    async def _run_command(self, command: SlashCommand, argument: str, *, queue: bool) -> None:
        """Run a slash command, and print its output; if it gives a prompt, send that to the model."""
        self.view.activity.commands[command.name] = time.monotonic()
        self._terminal.draw_soon()
        try:
            outcome = await self.run_command(command, argument)
        finally:
            self.view.activity.commands.pop(command.name, None)
        match outcome:
            case AsPrompt(text, model, foreign_texts):  # in texts by others, `@file` attaches nothing
                content = (*self._opener.attach(text, self.session, typed=text), *foreign_texts)
                self._sent.append((content, TypedText(f"/{command.name} {argument}".rstrip())))
                self._send(content, shown_text="", queue=queue, model=model)  # the typed command is printed already
            case None:
                self.view.print_line(f"/{command.name} was interrupted.", "warning")
            case _ if outcome:
                self.view.print_outcome(outcome)
        self._status.refresh()
        self._terminal.draw_soon()
        if not self.session.is_busy:
            self._terminal.show_prompt_sign()

    def _send(self, content: tuple[Block, ...], *, shown_text: str, queue: bool, model: str = "") -> None:
        """Submit a message. If no turn runs, print `shown_text`; else the message is printed when the model gets it."""
        is_steering = self.session.is_busy and not queue and not model  # a turn keeps its model
        if shown_text and not self.session.is_busy:
            self.view.begin_prompt(shown_text)
        self._unsent = ()
        self.session.submit(Steer(content) if is_steering else Prompt(content, model))

    def handle_empty_enter(self) -> None:
        """Handle Enter in the empty input: skip slow MCP servers, send a message, or continue an unfinished turn."""
        if not self.is_open:
            return
        if self.session.is_busy:
            self.session.submit(GoOn())  # only a turn that waits for MCP servers is affected
        elif self._unsent:
            self._send(self._unsent, shown_text=message_text(self._unsent), queue=False)
        elif self.session.snapshot().conversation.queue.follow_ups:
            self.session.submit(RunQueued())
        elif self._can_continue:
            self.session.submit(GoOn(if_unanswered=True))

    def answer(self, answer: Approve) -> None:
        self.view.activity.close_question(answer.id)
        self.session.submit(answer)

    def interrupt(self) -> None:
        """Interrupt the turn, the person's own shell commands and running slash commands."""
        if self.is_open and (self.session.is_busy or self.view.activity.calls):
            self.session.submit(Interrupt(returns_prompt=True))
        self.interrupt_commands()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task of its own, and show its errors to the person."""

        async def run() -> None:
            try:
                await work
            except NothingChosen:  # the person sees that the list is closed
                self.view.print_gap()
            except UserError as error:
                self._print_error(str(error))
            except Exception as bug:  # a command's error must not vanish with its task
                log.exception("what was typed could not be done")
                self._print_bug(bug)
            self._terminal.draw_soon()

        start_in_background(run(), self._tasks)

    def _print_bug(self, bug: Exception) -> None:
        self._print_error(f"Internal error: {bug!r}. The log has details.")

    def _print_error(self, text: str) -> None:
        self.view.print_line(text, "error")
        self.view.print_gap()
        if not self.is_busy:
            self._terminal.show_prompt_sign()

    async def check_model(self, name: str) -> str:
        try:
            return self._opener.check_model(name)
        except NoKey as missing:
            if not (message := await self._ask_key(missing.provider)):
                raise
            return f"{message}\n{self._opener.check_model(name)}"

    async def log_in(self, provider: str) -> str:
        """Ask for a key; return a sentence about it. Raises `NothingChosen` if the person cancels."""
        if not (message := await self._ask_key(provider)):
            raise NothingChosen
        return message

    async def _ask_key(self, provider: str) -> str:
        with self.view.activity.hide_command_rows():
            return await self._opener.ask_key(self._terminal, provider)

    async def choose(self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None) -> int | None:
        """Let the person choose. Raises `NothingChosen` if they close the list. Without options, returns None."""
        with self.view.activity.hide_command_rows():
            chosen = await self._terminal.choose(title, options, current=current)
        if chosen is None and options:
            raise NothingChosen
        return chosen

    async def confirm(self, shown: str, question: str) -> bool | None:
        self.view.print_gap()
        self.view.print_line(shown)
        try:
            return await self.choose(question, [("Yes", ""), ("No", "nothing is changed")]) == 0
        except NothingChosen:  # closing the list is a no
            return False

    async def edit(self, text: str) -> str | None:
        return await self._terminal.edit(text)

    def open_agent(self, id: str) -> None:
        if not self._terminal.is_live:
            super().open_agent(id)  # raises `UsageError`
        self.view.opened_agent = id

    def put_into_input(self, text: str) -> None:
        self._terminal.put_into_input(text)

    def leave(self) -> None:
        """Leave the program; if jobs are running, only warn about them, and leave at the next call."""
        if not self.warn_about_jobs():
            self._terminal.leave()

    def warn_about_jobs(self) -> bool:
        """Warn about jobs that would end with the session; return False if there are none, or all were named before."""
        jobs = self.session.snapshot().workspace.running_jobs() if self.is_open else []
        if all(job.id in self._named_jobs for job in jobs):
            return False
        self._named_jobs |= {job.id for job in jobs}
        subject, them = ("A job is", "it") if len(jobs) == 1 else (f"{len(jobs)} jobs are", "them")
        self.view.print_line(f"{subject} still running: {describe_jobs(jobs)}. Leave again to stop {them}.", "warning")
        self._terminal.draw_soon()
        return True
