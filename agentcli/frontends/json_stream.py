"""Runs a session over JSON lines: requests go in, events come out."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, BinaryIO

from agentcli.agent import ops
from agentcli.agent.commands.command import SKILLS
from agentcli.agent.events import Done, Event, Notice, TakenOver, TurnFailed
from agentcli.agent.result import INTERRUPTED_EXIT, Demands, exit_code, to_json_line
from agentcli.agent.session import Session
from agentcli.agent.state import awaited_reset
from agentcli.errors import UserError
from agentcli.frontends import json_input
from agentcli.frontends.hosts import CliPrompt, CommandEnded, ScreenlessHost, TypedCommand
from agentcli.frontends.json_output import JsonOutput, init_object
from agentcli.frontends.run_end import jobs_that_end
from agentcli.llm.messages import Block, Text


class CommandFailed(UserError):
    """A command whose failure was written already; only an id of its line is still to be answered."""


class Dialogue:
    """Takes lines in order, but answers and interrupts at once. Once `leaving` is set, it waits for the turn's end.

    A message that is a command waits for the prompts before it, a command of a control line for the lines before it.
    """

    def __init__(
        self, host: ScreenlessHost, out: BinaryIO, *, partial: bool, demands: Demands, leaving: asyncio.Event
    ) -> None:
        self._host = host
        self._out = out
        self._partial = partial
        self._demands = demands
        self._leaving = leaving
        self._code = 0  # the exit code of the newest turn or command
        self._unmet: set[int] = set()  # exit codes of demands that an answer did not meet
        self._has_rejected = self._has_accepted = False  # a line was rejected, or accepted as a prompt or a command
        self._has_client = True
        self._lines: asyncio.Queue[json_input.InputLine | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asides: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn_ended = asyncio.Event()
        self._begin(host.session)

    def _begin(self, session: Session) -> None:
        """Follow a session: the first one, or the one that a command such as /clear has opened."""
        self._session = session
        self._turns_before, self._turns_ended = session.turns_begun, 0
        self._output = JsonOutput(session, self._write, partial=self._partial, demands=self._demands)
        commands = self._host.commands
        skills = [command.name for command in commands if command.group == SKILLS and command.name != "skills"]
        self._write(init_object(session, [command.name for command in commands], skills=skills))
        self._following = self._spawn(self._follow(session.subscribe()))
        if not self._has_client:
            self._end_input()

    def _write(self, value: dict[str, Any]) -> None:
        self._out.write(to_json_line(value))
        self._out.flush()

    async def run(self, first: CliPrompt, input: BinaryIO | None) -> int:
        """Answer the first prompt, if there is one, then all lines until the end; returns the last exit code."""
        if input is None:
            self._lines.put_nowait(None)
        else:
            self._spawn(self._listen(input))
            conversation = self._session.snapshot().conversation
            if conversation.unstarted_calls or awaited_reset(
                conversation
            ):  # an earlier run ended in the middle of a turn
                self._session.submit(ops.GoOn(is_killed=True))
        self._spawn(self._work(first))
        self._spawn(self._wake_to_leave())
        try:
            await self._over
        finally:
            for task in self._tasks:
                task.cancel()
        return INTERRUPTED_EXIT if self._leaving.is_set() else self._code or min(self._unmet, default=0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background; an error that it raises ends the dialogue."""

        def has_ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
                self._over.set_exception(error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(has_ended)
        return task

    async def _wake_to_leave(self) -> None:
        """Once the program is to end, wake `_work` if it waits for a line: no end of a turn would."""
        await self._leaving.wait()
        self._lines.put_nowait(None)

    # Events

    async def _follow(self, events: AsyncGenerator[Event, None]) -> None:
        async for event in events:
            if isinstance(event, TakenOver):
                self._leaving.set()
            is_end = isinstance(event, Done | TurnFailed)
            if is_end and self._is_last_turn() and (jobs := jobs_that_end(self._session)):
                self._output.show(Notice(jobs))
            self._output.show(event)
            if isinstance(event, Done | TurnFailed):
                self._code = exit_code(event, self._demands)
                self._unmet |= self._demands.unmet(event)
                # Once the program is to end, nobody can say if queued messages still count.
                self._session.submit(ops.Interrupt() if self._leaving.is_set() else ops.RunQueued())
                self._turns_ended += 1
                self._turn_ended.set()

    def _is_last_turn(self) -> bool:
        """Return True if the session ends with the turn that has just ended; `_turns_ended` does not count it yet."""
        no_other_runs = self._session.turns_begun - self._turns_before == self._turns_ended + 1
        return self._leaving.is_set() or (no_other_runs and not self._has_client and self._lines.empty())

    async def _wait_for_results(self) -> None:
        while self._session.turns_begun - self._turns_before > self._turns_ended:
            self._turn_ended.clear()
            await self._turn_ended.wait()

    # Lines

    async def _listen(self, input: BinaryIO) -> None:
        """Carry out interrupts and answers at once, and queue the other lines."""
        raw_lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        json_input.read_lines(input, raw_lines)
        while (raw := await raw_lines.get()) is not None:
            line = json_input.parse_line(raw)
            # The request of a line with a problem is None: the problem is reported at once, too.
            if isinstance(line.request, json_input.InterruptControl | json_input.Decision | ops.ClientResult | None):
                await self._do(line)
            else:
                self._lines.put_nowait(line)
                await asyncio.sleep(0)  # lets it begin, so that an interrupt on the next line finds it running
        self._end_input()
        self._lines.put_nowait(None)

    def _end_input(self) -> None:
        """Tell the session that nobody answers any more: it denies open questions and later ones."""
        self._has_client = False
        self._session.submit(ops.SetAttended(False))

    async def _work(self, first: CliPrompt) -> None:
        """Answer the first prompt, then the input lines in order until they end; asides run beside them."""
        if first.text or first.piped:
            await self._submit((Text(first.text),), first)
        while not self._host.has_left and (line := await self._lines.get()) is not None:
            if self._leaving.is_set():
                break
            request = line.request
            typed = self._host.command_in(request.text) if isinstance(request, json_input.CommandControl) else None
            if typed and typed.command and typed.command.is_aside:
                self._asides.add(self._spawn(self._do(line)))
            else:
                await self._do(line)
        self._end_input()
        if self._asides:
            await asyncio.wait(self._asides)
        await self._wait_for_results()
        if self._has_rejected and not self._has_accepted and not self._leaving.is_set():
            # A client whose lines were all wrong still waits for a result.
            failed = TurnFailed("Every line of the input was rejected, so there was no prompt.", False, cost_usd=0.0)
            self._output.show(failed)
            self._code = exit_code(failed, self._demands)
        if not self._over.done():
            self._over.set_result(None)

    async def _do(self, line: json_input.InputLine) -> None:
        """Carry out a line, and answer it."""
        error = line.problem
        has_output = False  # the output of a command was written, and says what went wrong
        try:
            if line.request is not None:
                await self._carry_out(line.request)
        except UserError as failure:
            error, has_output = str(failure), isinstance(failure, CommandFailed)
        if error and not has_output:
            self._has_rejected = True
            self._output.reject(line.raw, error)
        if line.id is not None:
            self._output.acknowledge(line.id, error)

    async def _carry_out(self, request: json_input.UserMessage | json_input.Control) -> None:
        match request:
            case json_input.UserMessage(message):
                await self._submit(json_input.content_of(self._host, message))
            case json_input.SteerControl(message):
                if typed := self._host.command_of(message.blocks):
                    await self._run_control(typed)
                else:
                    self._has_accepted = True
                    self._host.session.submit(ops.Steer(json_input.content_of(self._host, message)))
            case json_input.CommandControl(text):
                await self._run_control(self._host.require_command(text))
            case _:
                await json_input.control(self._host, request)

    # Messages and commands

    async def _submit(self, content: tuple[Block, ...], first: CliPrompt | None = None) -> None:
        """Submit a message as a prompt, or run the command that it is; `first` is the command line's prompt."""
        self._has_accepted = True
        typed = self._host.command_of(content)
        if typed is None:
            self._session.submit(ops.Prompt(self._host.attach(f"{first.text}{first.piped}") if first else content))
            return
        await self._wait_for_results()
        if self._leaving.is_set():
            return
        started = time.monotonic()
        ended = await self._run(typed, piped=first.piped if first else "", more=content[1:])
        if ended.prompt is None:
            self._output.command_result(ended, started)
            self._code = ended.exit_code
        else:
            self._session.submit(ended.prompt)

    async def _run_control(self, typed: TypedCommand) -> None:
        """Run a command of a control line, which has no result unless it becomes a prompt. Raises `CommandFailed`."""
        self._has_accepted = True
        ended = await self._run(typed)
        if ended.prompt is not None:
            self._session.submit(ended.prompt)
        if ended.exit_code:
            raise CommandFailed(ended.output)

    async def _run(self, typed: TypedCommand, *, piped: str = "", more: Sequence[Block] = ()) -> CommandEnded:
        """Run a command; where it has opened another session, the dialogue goes on with that one."""
        ended = await self._host.run(typed, piped=piped, more=more)
        if self._host.session is not self._session:
            await self._wait_for_results()
            self._following.cancel()
            self._begin(self._host.session)
        self._output.command(ended)
        return ended
