"""Runs slash commands for front ends without a screen."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from agentcli.agent.accounting.usage import UsageCollector
from agentcli.agent.commands.command import AsDiff, AsPrompt, ChoiceIndex, CommandSet, SlashCommand
from agentcli.agent.events import Done, TurnFailed
from agentcli.agent.ops import Interrupt, Prompt
from agentcli.agent.result import INTERRUPTED_EXIT
from agentcli.agent.session import Session
from agentcli.conversation.entries import Paid
from agentcli.errors import UsageError, UserError
from agentcli.frontends.session_opener import OpenerHost, SessionOpener, open_after
from agentcli.llm.messages import Block, Text, Usage

log = logging.getLogger(__name__)

NOT_OFFERED = frozenset(("clear", "resume", "fork", "quit"))  # where a client opens and closes sessions by itself


class CliPrompt(Struct, frozen=True):
    """The text of the command line, which may be a command; `piped` joins the prompt, and is alone never a command."""

    text: str
    piped: str = ""


class TypedCommand(Struct, frozen=True):
    """A command as it was typed: `name` with its slash, and either the command or the error for an unknown one."""

    name: str
    command: SlashCommand | None = None
    argument: str = ""
    error: UserError | None = None

    @property
    def is_aside(self) -> bool:
        return self.command is not None and self.command.is_aside


class CommandEnded(Struct, frozen=True):
    """The end of a command, told as a turn without requests; `prompt` is one to be submitted now."""

    name: str
    end: Done | TurnFailed
    exit_code: int = 0
    prompt: Prompt | None = None

    @property
    def output(self) -> str:
        return self.end.error if isinstance(self.end, TurnFailed) else self.end.text

    @property
    def is_error(self) -> bool:
        return self.exit_code != 0


class ScreenlessHost(OpenerHost):
    """Implements `CommandHost` for programs and pipes. Only one that `stays_open` can go on with another session."""

    def __init__(self, opener: SessionOpener, session: Session, commands: CommandSet, *, stays_open: bool) -> None:
        super().__init__(opener)
        self._stays_open = stays_open
        self._session = session
        self.commands = commands
        self.has_left = False

    def typed(self, text: str) -> TypedCommand | None:
        """The command that a text is, also one that does not exist; None for a prompt."""
        try:
            found = self.commands.parse(text)
        except UserError as error:
            return TypedCommand(text.split(None, 1)[0], error=error)
        return TypedCommand(text.split(None, 1)[0], *found) if found else None

    def command(self, text: str) -> TypedCommand:
        """The command that a control names. Raises `UsageError`."""
        if (typed := self.typed(text)) is None:
            raise UsageError(f"{text[:80]!r} is no slash command: one begins with / and its name.")
        return typed

    def command_in(self, content: Sequence[Block]) -> TypedCommand | None:
        """The command that a message is."""
        return self.typed(content[0].text) if isinstance(content[0], Text) else None

    async def run(self, typed: TypedCommand, *, piped: str = "", more: Sequence[Block] = ()) -> CommandEnded:
        """Run a command; one that stands for a prompt has `more` in it. Never raises: others use the session, too."""
        if typed.command is None:
            return _failed(typed, typed.error or UsageError(f"There is no command {typed.name}."))
        session, entries_before = self._session, len(self._session.snapshot().conversation.entries)
        try:
            outcome = await self.run_command(typed.command, typed.argument)
            if outcome is None:
                end = Done(f"{typed.name} was interrupted.", 0, Usage(), "interrupted", 0.0)
                return CommandEnded(typed.name, end, INTERRUPTED_EXIT)
            text, prompt = "", None
            if isinstance(outcome, AsPrompt):
                prompt = Prompt((*self.attach(f"{outcome.text}{piped}"), *outcome.more, *more), outcome.model)
            else:
                text = outcome.text if isinstance(outcome, AsDiff) else outcome
            collector = UsageCollector()  # of requests beside the conversation
            for entry in session.snapshot().conversation.entries[entries_before:]:
                if isinstance(entry.body, Paid):
                    collector.add("", entry)
            cost = collector.total
            return CommandEnded(typed.name, Done(text, 0, cost.usage, cost_usd=cost.whole_usd), prompt=prompt)
        except UserError as error:
            return _failed(typed, error)
        except Exception as bug:
            log.exception("%s failed", typed.name)
            return _failed(typed, UserError(f"Internal error: {bug!r}. The log has details."))

    async def meant(self, given: CliPrompt) -> Prompt | CommandEnded:
        """The prompt that is given, or that a command stands for; else how the command ended."""
        typed = self.typed(given.text)
        if typed is None:
            return Prompt(self.attach(f"{given.text}{given.piped}"))
        ended = await self.run(typed, piped=given.piped)
        return ended.prompt or ended

    def attach(self, text: str) -> tuple[Block, ...]:
        return self._opener.attach(text, self._session, typed=text)

    def interrupt(self) -> None:
        """End the turn and the commands that run."""
        self._session.submit(Interrupt())
        self.interrupt_commands()

    # For commands

    @property
    def session(self) -> Session:
        return self._session

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        before = self._session
        if not self._stays_open:
            raise UsageError(
                "This needs the terminal, or a stream that stays open; one run takes --resume ID or --fork-session."
            )
        if before.is_busy or before.snapshot().conversation.queue.follow_ups:
            raise UserError("A turn is running: interrupt it first, or wait for its end.")
        self._session = await open_after(self._opener, before, session_id, fork=fork, take_over=take_over)
        await before.close()
        return self._session

    async def check_model(self, name: str) -> str:
        return self._opener.check_model(name)

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        return None

    def put_into_input(self, text: str) -> None:
        """Nobody types here: whoever went back to a prompt has it."""

    def leave(self) -> None:
        self.has_left = True


def _failed(typed: TypedCommand, error: UserError) -> CommandEnded:
    return CommandEnded(typed.name, TurnFailed(str(error), False, type(error).__name__, cost_usd=0.0), error.exit_code)
