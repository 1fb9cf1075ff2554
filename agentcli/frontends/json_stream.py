"""Runs a session over JSON lines: requests on the input, events on the output."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from agentcli.agent import ops
from agentcli.agent.commands.command import SKILLS, SlashCommand
from agentcli.agent.events import Done, Event, Notice, TakenOver, TurnFailed
from agentcli.agent.result import INTERRUPTED_EXIT, Requirements, exit_code
from agentcli.agent.session import Session
from agentcli.agent.state import awaited_reset
from agentcli.errors import UserError
from agentcli.frontends import json_input
from agentcli.frontends.hosts import CliPrompt, CommandEnded, ScreenlessHost, TypedCommand
from agentcli.frontends.json_output import JsonOutput, init_object
from agentcli.frontends.run_end import ended_jobs_notice
from agentcli.llm.messages import Block, Text


class ControlRequested(UserError):
    """The first line of the input uses the protocol of the Agent SDKs."""

    def __init__(self, line: bytes) -> None:
        super().__init__("The first line is a control request.")
        self.line = line


class CommandFailed(UserError):
    """A command failed, and its error is already written; its line still needs an acknowledgement if it has an id."""


class Dialogue:
    """Carries out input lines in order, but interrupts and the client's answers to questions at once.

    A slash command in a message waits for the replies to earlier prompts; one in a control line only for earlier lines.
    Once `leaving` is set, the dialogue ends with the current turn.
    """

    def __init__(
        self,
        host: ScreenlessHost,
        write: Callable[[dict[str, Any]], None],
        *,
        streams: bool,
        requirements: Requirements,
        leaving: asyncio.Event,
    ) -> None:
        self.host = host
        self.write = write
        self.streams = streams  # replies are also written while they arrive
        self.requirements = requirements
        self._leaving = leaving
        self._exit_code = 0  # the exit code of the newest turn or command
        self._unmet_codes: set[int] = set()  # exit codes of requirements that a reply did not meet
        self._has_rejected = self._has_accepted = False  # a line was rejected, or accepted as a prompt or a command
        self._is_attended = True  # until the input ends: somebody can answer questions
        self.lines: asyncio.Queue[json_input.InputLine | None] = asyncio.Queue()  # None: no more lines follow
        self._tasks: set[asyncio.Task[None]] = set()
        self.parallel_tasks: set[asyncio.Task[None]] = set()  # they run alongside the input lines
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # may hold an error
        self._turn_ended = asyncio.Event()
        self.follow(host.session)

    def follow(self, session: Session) -> None:
        """Follow a session: the first one, or one that a command such as /clear has opened."""
        self.session = session
        # Turns that the session began before it was followed, and those that ended since.
        self._turns_before, self._turns_ended = session.turns_begun, 0
        self.output = self.make_output(session)
        self._showing = self.spawn(self._show_events(session.subscribe()))
        if not self._is_attended:  # nobody can answer questions of this session either
            self.end_input()

    def make_output(self, session: Session) -> JsonOutput:
        output = JsonOutput(session, self.write, streams=self.streams, requirements=self.requirements)
        self.write(self.init())
        return output

    def init(self) -> dict[str, Any]:
        commands = self.host.commands
        skills = [command.name for command in commands if command.group == SKILLS and command.name != "skills"]
        return init_object(self.host.session, [command.name for command in commands], skills=skills)

    async def run(self, cli_prompt: CliPrompt, input: json_input.InputLines | None) -> int:
        """Carry out the command line's prompt, if there is one, then all input lines; return the exit code."""
        if input is None:
            self.lines.put_nowait(None)
        else:
            self.spawn(self._read_input(input))
            conversation = self.session.snapshot().conversation
            # The last run ended before it began these calls, or while it waited for a usage limit.
            if conversation.unstarted_calls or awaited_reset(conversation):
                self.session.submit(ops.GoOn(if_unanswered=True))
        self.spawn(self._handle_lines(cli_prompt))
        self.spawn(self._wake_to_leave())
        try:
            await self._finished
        finally:
            for task in self._tasks:
                task.cancel()
        if self._leaving.is_set():
            return INTERRUPTED_EXIT
        return self._exit_code or min(self._unmet_codes, default=0)  # a failure says more than an unmet requirement

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background; an exception in it ends the dialogue."""

        def on_end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not self._finished.done():
                self._finished.set_exception(error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(on_end)
        return task

    async def _wake_to_leave(self) -> None:
        """Wake `_handle_lines` when the program is about to end: it may be waiting for a line that never comes."""
        await self._leaving.wait()
        self.lines.put_nowait(None)

    async def _show_events(self, events: AsyncGenerator[Event, None]) -> None:
        """Write a session's events; after each turn, let queued messages begin the next one."""
        async for event in events:
            if isinstance(event, TakenOver):
                self._leaving.set()
            if not isinstance(event, Done | TurnFailed):
                self.output.show(event)
                continue
            # Jobs end with the session, so those that still run are named after its last turn.
            if self._is_last_turn() and (jobs := ended_jobs_notice(self.session)):
                self.output.show(Notice(jobs))
            self.output.show(event)
            self._exit_code = exit_code(event, self.requirements)
            self._unmet_codes |= self.requirements.unmet(event)
            # When the program is about to end, queued messages get no reply any more.
            self.session.submit(ops.Interrupt() if self._leaving.is_set() else ops.RunQueued())
            self._turns_ended += 1
            self._turn_ended.set()

    def _is_last_turn(self) -> bool:
        """Return True if the session ends with the turn that just ended, which `_turns_ended` does not include yet."""
        no_other_runs = self.session.turns_begun - self._turns_before == self._turns_ended + 1
        return self._leaving.is_set() or (no_other_runs and not self._is_attended and self.lines.empty())

    async def _wait_for_turns(self) -> None:
        while self.session.turns_begun - self._turns_before > self._turns_ended:
            self._turn_ended.clear()
            await self._turn_ended.wait()

    async def _read_input(self, input: json_input.InputLines) -> None:
        """Carry out interrupts and the client's answers at once, and queue the other lines."""
        async for raw in input:
            if (line := self.parse(raw)) is None:
                continue
            # A line with a problem has the request None, and is reported at once as well.
            if isinstance(line.request, json_input.InterruptControl | json_input.Decision | ops.ClientResult | None):
                await self._handle_line(line)
            else:
                self.lines.put_nowait(line)
                await asyncio.sleep(0)  # lets `_handle_lines` begin it, so that an interrupt on the next line finds it
        self.end_input()
        self.lines.put_nowait(None)

    def parse(self, raw: bytes) -> json_input.InputLine | None:
        """Parse a line; subclasses return None for a line that they have handled. Raises `ControlRequested`."""
        if not (self._has_accepted or self._has_rejected) and json_input.control_request(raw) is not None:
            raise ControlRequested(raw)
        return json_input.parse_line(raw)

    def end_input(self) -> None:
        """Make the session deny open and later questions, because nobody can answer them any more."""
        self._is_attended = False
        self.session.submit(ops.SetAttended(False))

    async def _handle_lines(self, cli_prompt: CliPrompt) -> None:
        """Carry out the command line's prompt, then the input lines in order; some commands run alongside."""
        if cli_prompt.text or cli_prompt.piped:
            await self._submit((Text(cli_prompt.text),), cli_prompt)
        while not self.host.has_left and (line := await self.lines.get()) is not None:
            if self._leaving.is_set():
                break
            request = line.request
            typed = self.host.command_in(request.text) if isinstance(request, json_input.CommandControl) else None
            if typed and isinstance(typed.command, SlashCommand) and typed.command.is_parallel:
                self.parallel_tasks.add(self.spawn(self._handle_line(line)))
            else:
                await self._handle_line(line)
        self.end_input()
        if self.parallel_tasks:
            await asyncio.wait(self.parallel_tasks)
        await self._wait_for_turns()
        if self._has_rejected and not self._has_accepted and not self._leaving.is_set():
            # A client whose lines were all rejected is still waiting for a result.
            text = "Every line of the input was rejected, so there was no prompt."
            failed = TurnFailed(text, is_retryable=False, cost_usd=0.0)
            self.output.show(failed)
            self._exit_code = exit_code(failed, self.requirements)
        if not self._finished.done():
            self._finished.set_result(None)

    async def _handle_line(self, line: json_input.InputLine) -> None:
        error = line.problem
        has_output = False  # True if the error is in a command's output, which is already written
        try:
            if line.request is not None:
                await self.carry_out(line.request)
        except UserError as failure:
            error, has_output = str(failure), isinstance(failure, CommandFailed)
        if error and not has_output:
            self._has_rejected = True
            self.output.reject(line.raw, error)
        if line.id is not None:
            self.output.acknowledge(line.id, error)

    async def carry_out(self, request: json_input.Request) -> None:
        """Submit a prompt or a steering message, or run a command or control. Raises `UserError`."""
        match request:
            case ops.Prompt():
                self._has_accepted = True
                self.session.submit(request)
            case json_input.UserMessage(message):
                await self._submit(json_input.content_of(self.host, message))
            case json_input.SteerControl(message):
                if typed := self.host.command_of(message.blocks):
                    await self._run_control(typed)
                else:
                    self._has_accepted = True
                    self.host.session.submit(ops.Steer(json_input.content_of(self.host, message)))
            case json_input.CommandControl(text):
                await self._run_control(self.host.require_command(text))
            case _:
                await json_input.carry_out_control(self.host, request)

    async def _submit(self, content: tuple[Block, ...], cli_prompt: CliPrompt | None = None) -> None:
        """Submit a message as a prompt, or run it as a command. `cli_prompt` is given if it is the command line's."""
        self._has_accepted = True
        typed = self.host.command_of(content)
        if typed is None:
            # The command line's prompt may have piped text and name files, which `content` lacks.
            message = self.host.attach(f"{cli_prompt.text}{cli_prompt.piped}") if cli_prompt else content
            self.session.submit(ops.Prompt(message))
            return
        await self._wait_for_turns()
        if self._leaving.is_set():
            return
        started = time.monotonic()
        # The first block is the command itself.
        ended = await self._run(typed, piped=cli_prompt.piped if cli_prompt else "", more=content[1:])
        if ended.prompt is not None:  # the command expanded to a prompt, as a skill's does
            self.session.submit(ended.prompt)
        else:
            self.output.command_result(ended, started)
            self._exit_code = ended.exit_code

    async def _run_control(self, typed: TypedCommand) -> None:
        """Run a control line's command. It has no result unless it expands to a prompt. Raises `CommandFailed`."""
        self._has_accepted = True
        ended = await self._run(typed)
        if ended.prompt is not None:
            self.session.submit(ended.prompt)
        if ended.exit_code:
            raise CommandFailed(ended.output)

    async def _run(self, typed: TypedCommand, *, piped: str = "", more: Sequence[Block] = ()) -> CommandEnded:
        """Run a command. If it opens another session, the dialogue continues with that session."""
        ended = await self.host.run(typed, piped=piped, more=more)
        if self.host.session is not self.session:
            await self._wait_for_turns()
            self._showing.cancel()
            self.follow(self.host.session)
        self.output.command(ended)
        return ended
