"""Runs slash commands for front ends, and defines what a front end needs from the program that starts it.

`SessionOpener` is that interface. `OpenerHost` is the part of a command host that all front ends share;
`ScreenlessHost` is the complete host for front ends without a screen.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from agentcli.agent.accounting import UsageCollector
from agentcli.agent.commands.command import AsDiff, AsPrompt, CommandHost, CommandSet, Outcome, SlashCommand, Topic
from agentcli.agent.events import Done, TurnFailed
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import Interrupt, Prompt, SetEffort, SetMode
from agentcli.agent.result import INTERRUPTED_EXIT
from agentcli.agent.session import Session
from agentcli.conversation.entries import Paid
from agentcli.errors import AmbiguousSession, NoSession, UsageError, UserError
from agentcli.llm.messages import Block, Text, Usage
from agentcli.llm.models import ModelInfo

log = logging.getLogger(__name__)
_ALL_ENTRIES = 1 << 40  # more than any log has: loading after this position returns no entries


class SessionOpener(Protocol):
    """Opens sessions, lists models and changes settings. Its methods raise `UserError`."""

    stored_sessions: SessionStore
    shows_claims: bool

    async def open(
        self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False
    ) -> Session: ...

    async def list(self) -> Sequence[SessionInfo]: ...

    async def list_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        """List local models, then known ones, with descriptions; `with_key` keeps only known ones that have a key."""

    @property
    def model_info(self) -> Callable[[str], ModelInfo]: ...

    def check_model(self, name: str) -> str:
        """Check that a `provider/model` can be used; return a sentence about it. Raises `NoKey` without a key."""

    def store_setting(self, key: str, value: Any) -> str: ...

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        """Return the prompt `text` with the files that its `typed` part names."""

    def describe(self, topic: Topic) -> str: ...


class UsageStore(SessionStore, Protocol):
    """A store of agentcli's own, which also sums up usage, and tells one-shots from conversations."""

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector: ...

    async def mark_one_shot(self, session_id: str, *, is_one_shot: bool) -> None: ...


class Editor(Struct, frozen=True):
    """The things that an editor adds to a session."""

    folders: tuple[Path, ...] = ()
    servers: Mapping[str, Any] = {}  # MCP servers by name
    files: Callable[[str], Any] | None = None  # returns the editor's file system for a session id


class OpenRequest(Struct, frozen=True, kw_only=True):
    """A session to open: a stored one with `id`, or else a new one. Empty `model` and `mode`: as in the settings."""

    cwd: Path
    id: str = ""
    model: str = ""
    mode: str = ""
    name: str = ""
    user_id: str = ""
    how: Literal["resume", "take_over", "fork"] = "resume"  # for a stored session; a fork opens a copy
    editor: Editor = Editor()


class OpenSession(Struct, frozen=True):
    """An open session; call `aclose` once it is closed."""

    session: Session
    opener: SessionOpener
    commands: CommandSet
    aclose: Callable[[], Awaitable[None]]


OpenForClient = Callable[[OpenRequest], Awaitable[OpenSession]]  # uses the settings of `cwd`; raises `UserError`


class OpenerHost(CommandHost):
    """The part of `CommandHost` that is the same in every front end."""

    def __init__(self, opener: SessionOpener) -> None:
        self._opener = opener
        self._running_commands: set[asyncio.Future[Outcome]] = set()

    async def run_command(self, command: SlashCommand, argument: str) -> Outcome | None:
        """Run a command; return None if `interrupt_commands` ends it. The command's exceptions are passed on."""
        task = asyncio.ensure_future(command.execute(self, argument))
        self._running_commands.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled():  # by `interrupt_commands`
                return None
            task.cancel()  # the caller was cancelled, not the command
            raise
        finally:
            self._running_commands.discard(task)

    def interrupt_commands(self) -> None:
        for task in self._running_commands:
            task.cancel()

    @property
    def stored_sessions(self) -> SessionStore:
        return self._opener.stored_sessions

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._opener.list()

    async def models(self) -> Sequence[tuple[str, str]]:
        return await self._opener.list_models()

    async def store_setting(self, key: str, value: Any) -> str:
        return await asyncio.to_thread(self._opener.store_setting, key, value)

    async def describe(self, topic: Topic) -> str:
        return await asyncio.to_thread(self._opener.describe, topic)

    async def document(self, file: str) -> str:
        from agentcli.frontends.export import documents  # takes 40 ms, and only exports need it

        return await documents.live_document(self.session, file, await self.stored_sessions.list())

    def open_agent(self, id: str) -> None:
        raise UsageError(f"Only the terminal shows a subagent live. To see what it did so far: /agents show {id}")


async def open_replacement(
    opener: SessionOpener, before: Session, session_id: str | None, *, fork: bool, take_over: bool = False
) -> Session:
    """Open the session that replaces `before`; a new session or a copy inherits its mode, model and effort."""
    if session_id is not None and before.id.startswith(session_id) and not fork:  # an id may be shortened
        raise UsageError("This session is already open here.")
    chosen = before.snapshot()
    opened = await opener.open(session_id, model=chosen.model, fork=fork, take_over=take_over)
    if session_id is None or fork:
        if chosen.mode == "plan":  # set the earlier mode first, because plan mode returns to it at its end
            opened.submit(SetMode(before.state.mode_before_plan))
        opened.submit(SetMode(chosen.mode))
        opened.submit(SetEffort(chosen.effort))
    return opened


async def session_info(store: SessionStore, id: str, *, user_id: str | None = None) -> SessionInfo:
    """Return the `SessionInfo` of a stored session. Raises `NoSession`, also for names and shortened ids."""
    try:
        info, _ = await store.load(id, after=_ALL_ENTRIES, user_id=user_id)
    except AmbiguousSession as error:
        raise NoSession(id[:80]) from error
    if info.id != id:
        raise NoSession(id[:80])
    return info


def absolute_path(name: str) -> Path:
    """Return a path that a client sent. Raises `UsageError` if it is not absolute."""
    if not name.startswith("/") or "\0" in name:
        raise UsageError(f"{name[:200]!r} is not an absolute path.")
    return Path(name)


def working_folder(name: str) -> Path:
    """Return a folder that a client or a program named. Raises `UsageError` if it does not exist."""
    folder, why = absolute_path(name), "there is no such folder"
    try:
        if folder.is_dir():
            return folder
    except OSError as error:
        why = error.strerror or why
    raise UsageError(f"Could not work in {name[:200]}: {why}.")


NOT_OFFERED = frozenset(("clear", "resume", "fork", "quit"))  # to clients that open and close sessions themselves


class CliPrompt(Struct, frozen=True):
    """The prompt of the command line."""

    text: str  # may be a slash command
    piped: str = ""  # added to the text; never run as a command, even if it looks like one


class TypedCommand(Struct, frozen=True):
    """A command as it was typed: `name` includes the slash; `command` is an error if there is no such command."""

    name: str
    command: SlashCommand | UserError
    argument: str = ""


class CommandEnded(Struct, frozen=True):
    """The end of a command, in the form of a turn without requests."""

    name: str
    end: Done | TurnFailed
    exit_code: int = 0
    prompt: Prompt | None = None  # the prompt that the command expands to; the caller submits it

    @property
    def output(self) -> str:
        return self.end.error if isinstance(self.end, TurnFailed) else self.end.text


class ScreenlessHost(OpenerHost):
    """Implements `CommandHost` for programs and pipes. It can switch to another session only if it `stays_open`."""

    def __init__(self, opener: SessionOpener, session: Session, commands: CommandSet, *, stays_open: bool) -> None:
        super().__init__(opener)
        self._stays_open = stays_open
        self._session = session
        self.commands = commands
        self.has_left = False  # True after /quit

    def command_in(self, text: str) -> TypedCommand | None:
        """Parse a text as a slash command, which may be unknown; return None if it is a prompt."""
        try:
            found = self.commands.parse(text)
            return TypedCommand(text.split(None, 1)[0], *found) if found else None
        except UserError as error:
            return TypedCommand(text.split(None, 1)[0], error)

    def require_command(self, text: str) -> TypedCommand:
        """Parse the text of a control as a slash command. Raises `UsageError` if it is not one."""
        if (typed := self.command_in(text)) is None:
            raise UsageError(f"{text[:80]!r} is not a slash command. Commands start with /.")
        return typed

    def command_of(self, content: Sequence[Block]) -> TypedCommand | None:  # the first block has the typed text
        return self.command_in(content[0].text) if isinstance(content[0], Text) else None

    async def run(self, typed: TypedCommand, *, piped: str = "", more: Sequence[Block] = ()) -> CommandEnded:
        """Run a command; to a prompt that it expands to, add `piped` and `more`. Errors are returned, never raised."""
        if isinstance(typed.command, UserError):  # there is no such command
            return _command_failure(typed, typed.command)
        session, entries_before = self._session, len(self._session.snapshot().conversation.entries)
        try:
            outcome = await self.run_command(typed.command, typed.argument)
            if outcome is None:
                # The provider does not report the usage of an interrupted request.
                end = Done(f"{typed.name} was interrupted.", turns=0, usage=Usage(), reason="interrupted", cost_usd=0.0)
                return CommandEnded(typed.name, end, INTERRUPTED_EXIT)
            new_entries = session.snapshot().conversation.entries[entries_before:]
            # Requests that the command made outside the conversation have entries with their cost.
            spending = UsageCollector(entry for entry in new_entries if isinstance(entry.body, Paid)).total
            usage, cost_usd = spending.usage, spending.full_cost_usd
            text, prompt = "", None
            if isinstance(outcome, AsPrompt):
                prompt = Prompt((*self.attach(f"{outcome.text}{piped}"), *outcome.more, *more), outcome.model)
            else:
                text = outcome.text if isinstance(outcome, AsDiff) else outcome
            return CommandEnded(typed.name, Done(text, turns=0, usage=usage, cost_usd=cost_usd), prompt=prompt)
        except UserError as error:
            return _command_failure(typed, error)
        except Exception as bug:
            log.exception("%s failed", typed.name)
            return _command_failure(typed, UserError(f"Internal error: {bug!r}. The log has details."))

    async def resolve_prompt(self, cli_prompt: CliPrompt) -> Prompt | CommandEnded:
        """Return the command line's prompt, or the prompt that its command expands to, or the command's end."""
        typed = self.command_in(cli_prompt.text)
        if typed is None:
            return Prompt(self.attach(f"{cli_prompt.text}{cli_prompt.piped}"))
        ended = await self.run(typed, piped=cli_prompt.piped)
        return ended.prompt or ended

    def attach(self, text: str, typed: str = "") -> tuple[Block, ...]:
        """Return a prompt with the files that it names; with `typed`, only those that this part of it names."""
        return self._opener.attach(text, self._session, typed=typed or text)

    def interrupt(self) -> None:
        self._session.submit(Interrupt())
        self.interrupt_commands()

    @property
    def session(self) -> Session:
        return self._session

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        """Open the session that replaces this one. Raises `UserError` if it cannot be replaced now."""
        before = self._session
        if not self._stays_open:
            raise UsageError(
                "This works only in the terminal or in an open stream. For one run, use --resume ID or --fork-session."
            )
        if before.is_busy or before.snapshot().conversation.queue.follow_ups:
            raise UserError("A turn is running. Interrupt it first, or wait until it ends.")
        self._session = await open_replacement(self._opener, before, session_id, fork=fork, take_over=take_over)
        await before.close()
        return self._session

    async def check_model(self, name: str) -> str:
        return self._opener.check_model(name)

    def leave(self) -> None:
        self.has_left = True


def _command_failure(typed: TypedCommand, error: UserError) -> CommandEnded:
    end = TurnFailed(str(error), is_retryable=False, error_type=type(error).__name__, cost_usd=0.0)
    return CommandEnded(typed.name, end, error.exit_code)
