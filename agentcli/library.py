"""The library's front door: an agent in a directory, asked from Python."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentcli.agent.events import ApprovalRequested, Done, Event, TurnFailed
from agentcli.agent.hooks import CallHooks, TurnHooks
from agentcli.agent.interfaces import Locks
from agentcli.agent.ops import Approve, Interrupt, Prompt
from agentcli.agent.runtime import ContextPolicy, ContextTransform, Resolve, unchanged
from agentcli.agent.session import Session
from agentcli.app import Builder, Extras
from agentcli.config import load_config
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import AgentcliError, UsageError
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm.provider import ToolSpec
from agentcli.paths import current_folder, find_paths
from agentcli.setup.session_choice import SessionChoice
from agentcli.tools.own_tools import tool
from agentcli.tools.tool import Tool

if TYPE_CHECKING:
    from agentcli.agent.accounting.metrics import UsageCollector
    from agentcli.tools.web.searching import SearchProvider

Decide = Callable[[ApprovalRequested], Awaitable[bool | str]]
PATIENCE_S = 1.0  # with a stream that nobody reads, while another prompt waits for it

log = logging.getLogger("agentcli")
log.addHandler(logging.NullHandler())  # what a program does not want to hear of does not land on its stderr


class AgentFailed(AgentcliError):
    """A prompt could not be answered; `is_retryable` says whether trying again may help."""

    def __init__(self, failure: TurnFailed) -> None:
        super().__init__(failure.error)
        self.is_retryable = failure.is_retryable


class Agent:
    """A conversation with a model that works in `cwd`.

        async with Agent("anthropic/claude-sonnet-5-5") as agent:
            print((await agent.run("What does this project do?")).text)

    `model` is `provider/model` (empty: as the command line would choose). `settings` is nested like config.toml.
    `tools` are `Tool`s, or functions as `@tool` takes them. `approve` decides what the permission mode would ask;
    without it such calls are denied. A text from it is a yes, and the answer to a question of the model's. `search` is
    what web_search asks, in place of Tavily.

    `hooks` are called around turns, `call_hooks` in order around each call; `locks` keep calls on one file apart,
    also those of other programs. `resolve` chooses the provider before each request, `context_policy` may compact the
    conversation before it in place of the built-in one, `context_transform` changes the messages of that one request.

    `usage` is given what the conversation takes; several agents may share one.

    The conversation lives as long as the agent and is not stored. Warnings go to the logger `agentcli`. Raises
    `UserError` for a wrong model, setting or tool.
    """

    def __init__(
        self,
        model: str = "",
        *,
        cwd: str | Path = ".",
        permission_mode: str = "default",
        system_prompt: str | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        hooks: TurnHooks | None = None,
        approve: Decide | None = None,
        settings: dict[str, Any] | None = None,
        search: SearchProvider | None = None,
        call_hooks: Sequence[CallHooks] = (),
        locks: Locks | None = None,
        resolve: Resolve | None = None,
        context_policy: ContextPolicy | None = None,
        context_transform: ContextTransform = unchanged,
        usage: UsageCollector | None = None,
    ) -> None:
        flags = {**(settings or {})}
        flags["permissions"] = {"mode": permission_mode, **flags.get("permissions", {})}
        paths = find_paths(os.environ.get("AGENTCLI_HOME"))
        config = load_config(paths, _folder(cwd), os.environ, flags=flags, caller="settings")
        own = tuple(one if isinstance(one, Tool) else tool(one) for one in tools)
        extras = Extras(
            system_prompt=system_prompt,
            tools=own,
            hooks=hooks,
            brings_tools=True,
            search=search,
            call_hooks=tuple(call_hooks),
            locks=locks,
            resolve=resolve,
            context_policy=context_policy,
            context_transform=context_transform,
        )
        self._builder = Builder(
            config, store=MemorySessions(), extras=extras, can_ask=approve is not None, on_notice=log.warning
        )
        for notice in config.notices:
            log.warning(notice)
        self._model = model
        self._approve = approve
        self._usage = usage
        self._session: Session | None = None
        self._choice = SessionChoice()
        self._turns = _Turns()

    async def session(self) -> Session:
        """The session itself, for operations and events. Raises `UserError`."""
        async with self._turns.beginning:
            if self._session is None:
                self._session = await self._builder.build_session(self._choice, model=self._model)
                if self._usage is not None:
                    self._session.runtime.collect = self._usage.add
            return self._session

    async def run(self, prompt: str) -> Done:
        """Answer a prompt. Raises `AgentFailed`; what was said stays part of the conversation."""
        async with aclosing(self.stream(prompt)) as events:
            async for event in events:
                if isinstance(event, TurnFailed):
                    raise AgentFailed(event)
                if isinstance(event, Done):
                    return event
        raise AssertionError("a turn ends in Done or TurnFailed")

    async def stream(self, prompt: str, *, tools: Sequence[ToolSpec] = ()) -> AsyncGenerator[Event, None]:
        """The events of answering a prompt, ending with `Done` or `TurnFailed`; to stop listening interrupts it.

        `tools` are the caller's own, from now on: each of their calls comes in a `ClientToolRequested`, and the turn
        waits until a `ClientResult` was submitted to the session. A prompt given meanwhile waits for the end of this
        one; beside a stream that nobody reads any more it raises `UsageError`.
        """
        session = await self.session()
        workspace = session.snapshot().workspace
        last: Done | TurnFailed | None = None
        async with self._turns.one(), aclosing(session.subscribe()) as events:
            with self._turns.marked():
                session.submit(Prompt(with_attachments(prompt, workspace, bare_names=False), tools=tuple(tools)))
            try:
                async for event in events:
                    if isinstance(event, Done | TurnFailed):
                        last = event
                        break
                    if isinstance(event, ApprovalRequested) and self._approve is not None:
                        session.submit(_answered(event.id, await self._approve(event)))
                    with self._turns.unread():
                        yield event
            finally:
                if last is None:
                    session.submit(Interrupt())
                    await session.idle()
        if last is not None:  # behind the turn: whoever has this needs nothing more
            yield last

    def run_sync(self, prompt: str) -> Done:
        """`run` for callers without an event loop. Nothing stays open; the next prompt goes on with the conversation.

        Raises `UsageError` within an event loop, such as a notebook's: `await agent.run(prompt)` there.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError("run_sync is for callers without an event loop: here, await agent.run(prompt).")

        async def once() -> Done:
            try:
                return await self.run(prompt)
            finally:  # a session and its locks belong to the event loop they were made in
                session, self._session, self._turns = self._session, None, _Turns()
                if session is not None:
                    if session.snapshot().conversation.entries:
                        self._choice = SessionChoice("id", session.id)
                    await session.close()
                await self._builder.aclose(for_good=False)

        return asyncio.run(once())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._builder.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _folder(cwd: str | Path) -> Path:
    """The working directory, absolute. Raises `UsageError` when it is not there."""
    folder = Path(cwd) if Path(cwd).is_absolute() else current_folder() / cwd
    try:
        if folder.is_dir():
            return folder
        why = "it is not there" if not folder.exists() else "it is no folder"
    except OSError as error:
        why = str(error.strerror)
    raise UsageError(f"Could not work in {folder}: {why}.")


_PROMPTED: ContextVar[frozenset[_Turns]] = ContextVar("_PROMPTED", default=frozenset())


class _Turns:
    """One prompt at a time: a second one waits for its turn, but not for a stream that nobody reads on.

    `beginning` is held while the session is built, of which there is only one.
    """

    def __init__(self) -> None:
        self.beginning = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._reader: asyncio.Task[Any] | None = None
        self._unread_since: float | None = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises `UsageError` where the prompt before does not end: nobody reads it, or it waits for this one."""
        if self in _PROMPTED.get():
            raise UsageError("A tool of an agent cannot prompt that agent, which waits for it: use another Agent.")
        for _ in range(3):  # a loop over a stream that was just left closes it behind our back
            await asyncio.sleep(0)
        acquiring = asyncio.ensure_future(self._lock.acquire())
        try:
            while not acquiring.done():
                if self._is_given_up():
                    raise UsageError(
                        "A stream of this agent is open and nobody reads it: read it to its end, or close it "
                        "(contextlib.aclosing), before the next prompt."
                    )
                await asyncio.wait((acquiring,), timeout=PATIENCE_S / 10)
        except BaseException:
            if not acquiring.cancel():
                self._lock.release()
            raise
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Let whatever is started meanwhile know that it belongs to a turn of this agent."""
        token = _PROMPTED.set(_PROMPTED.get() | {self})
        try:
            yield
        finally:
            _PROMPTED.reset(token)

    @contextmanager
    def unread(self) -> Iterator[None]:
        """While the reader of the open stream does something with an event."""
        self._reader, self._unread_since = asyncio.current_task(), time.monotonic()
        try:
            yield
        finally:
            self._unread_since = None

    def _is_given_up(self) -> bool:
        """A task that prompts beside its own stream, or has ended, will not read on; another one gets some time."""
        if self._unread_since is None or self._reader is None:
            return False
        is_gone = self._reader is asyncio.current_task() or self._reader.done()
        return is_gone or time.monotonic() - self._unread_since > PATIENCE_S


def _answered(id: str, said: bool | str) -> Approve:
    return Approve(id, True, comment=said) if isinstance(said, str) else Approve(id, said)
