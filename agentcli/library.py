"""The library's front door: an agent in a directory, asked from Python."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentcli.agent.events import ApprovalRequested, Approve, Done, Event, Interrupt, Prompt, TurnFailed
from agentcli.agent.hooks import TurnHooks
from agentcli.agent.session import Session
from agentcli.app import Builder, Extras
from agentcli.config import load_config
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import AgentcliError
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm.provider import ToolSpec
from agentcli.paths import find_paths
from agentcli.tools.tool import Tool

Decide = Callable[[ApprovalRequested], Awaitable[bool]]


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
    `approve` decides what the permission mode would ask; without it such calls are denied. The conversation lives as
    long as the agent and is not stored.
    """

    def __init__(
        self,
        model: str = "",
        *,
        cwd: str | Path = ".",
        permission_mode: str = "default",
        system_prompt: str | None = None,
        tools: Sequence[Tool] = (),
        hooks: TurnHooks | None = None,
        approve: Decide | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        flags = {**(settings or {})}
        flags["permissions"] = {"mode": permission_mode, **flags.get("permissions", {})}
        paths = find_paths(os.environ.get("AGENTCLI_HOME"))
        config = load_config(paths, Path(cwd).absolute(), os.environ, flags=flags)
        extras = Extras(system_prompt=system_prompt, tools=tuple(tools), hooks=hooks)
        self._builder = Builder(config, store=MemorySessions(), extras=extras, can_ask=approve is not None)
        self._model = model
        self._approve = approve
        self._session: Session | None = None
        self._one_prompt = asyncio.Lock()  # a second one waits, and gets its own answer

    async def session(self) -> Session:
        """The session itself, for operations and events. Raises `UserError`."""
        if self._session is None:
            self._session = await self._builder.build_session(model=self._model)
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
        waits until a `ClientResult` was submitted to the session.
        """
        session = await self.session()
        workspace = session.runtime.calls.workspace
        has_ended = False
        async with self._one_prompt, aclosing(session.subscribe()) as events:
            session.submit(Prompt(with_attachments(prompt, workspace, bare_names=False), tools=tuple(tools)))
            try:
                async for event in events:
                    if isinstance(event, ApprovalRequested) and self._approve is not None:
                        session.submit(Approve(event.id, await self._approve(event)))
                    has_ended = isinstance(event, Done | TurnFailed)
                    yield event
                    if has_ended:
                        return
            finally:
                if not has_ended:
                    session.submit(Interrupt())
                    await session.idle()

    def run_sync(self, prompt: str) -> Done:
        """`run` and `close` for callers without an event loop: one prompt, one agent."""

        async def once() -> Done:
            async with self:
                return await self.run(prompt)

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
