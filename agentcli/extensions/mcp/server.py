"""Looks after one MCP server: connects when needed, restarts it a few times, and holds it to what was approved."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol
from weakref import WeakSet

import msgspec

from agentcli.agent.program_trust import REFUSE, RUN, changed_sentence
from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, UsageError, UserError
from agentcli.extensions.mcp.client import MCPClient, Offer, OffersPrompts, RemoteResult, RemoteTool, ServerSpec
from agentcli.extensions.mcp.tools import tool_name
from agentcli.llm.messages import Text
from agentcli.tools.tool import Ask, FileLedger, ToolContext

MOST_RESTARTS = 3
RESTARTS_WITHIN_S = 600.0
LAST_LOOK_S = 1.0
MOST_INSTRUCTIONS = 2_000  # characters of what a server tells the model about itself

Status = Literal["idle", "connecting", "connected", "failed", "needs-auth", "changed"]

_USE, _REFUSE = "Use it as it is now", "Do not use it"


class NeedsLogin(ToolError):
    """The server wants the person to log in first."""


class Connect(Protocol):
    """Connects to a server."""

    async def __call__(self, spec: ServerSpec, heed: Heed) -> MCPClient:
        """Raises `ToolError`, and `NeedsLogin`."""
        ...


class Heed(Protocol):
    """Hears of a connection from the side of the server."""

    def lost(self, why: str) -> None:
        """The connection is gone, `why` in a sentence."""
        ...

    def offer_changed(self) -> None:
        """The server has announced other tools or prompts."""
        ...

    def report(self, problem: str) -> None:
        """Something of the server's cannot be used, as a sentence."""
        ...


class Pins(Protocol):
    """Keeps what servers offered when they were last approved."""

    def load(self, spec: ServerSpec) -> Offer | None: ...

    def save(self, spec: ServerSpec, offer: Offer) -> None:
        """Raises `StorageError`."""
        ...

    def changed_programs(self, spec: ServerSpec) -> Sequence[Path]:
        """The files of the workspace that start a server and are not as they were when it was trusted."""
        ...

    def accept_programs(self, spec: ServerSpec) -> None:
        """Trust them as they were seen last. Raises `ConfigError`."""
        ...


class Server:
    """One server. `pinned` is what models are shown of it; `now` is what it said last, None before it has.

    `tell` gets sentences for the person, `updated` is called when `pinned` becomes another.
    """

    def __init__(
        self,
        spec: ServerSpec,
        connect: Connect,
        pins: Pins,
        *,
        tell: Callable[[str], None],
        updated: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.pinned = pins.load(spec)
        self.now: Offer | None = None
        self.problem = ""
        self._connect = connect
        self._pins = pins
        self._tell = tell
        self._updated = updated
        self._client: MCPClient | None = None
        self._connecting: asyncio.Task[MCPClient] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._starts: deque[float] = deque(maxlen=MOST_RESTARTS + 1)
        self._needs_login = False
        self._reported: set[str] = set()
        self._introduced_to: WeakSet[FileLedger] = WeakSet()  # each conversation has one of its own

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def prefix(self) -> str:
        """How the names of its tools begin."""
        return tool_name(self.name, "")

    @property
    def status(self) -> Status:
        if self._connecting is not None:
            return "connecting"
        if self._needs_login:
            return "needs-auth"
        if self._client is None:
            return "failed" if self.problem else "idle"
        return "changed" if self.is_changed else "connected"

    @property
    def is_changed(self) -> bool:
        """True if a project's server offers something else than what was approved."""
        return self.now is not None and self.pinned is not None and self.now.fingerprint != self.pinned.fingerprint

    async def client(self) -> MCPClient:
        """The connection, made now if there is none. Raises `ToolError` that says why there can be none."""
        if self._client is not None:
            return self._client
        if self._connecting is None:
            self._check_restarts()
            self._connecting = asyncio.create_task(self._connected())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise ToolError(f"The MCP server {self.name} is being restarted.", kind="resource_error") from None
            raise

    def _check_restarts(self) -> None:
        now = time.monotonic()
        if len(self._starts) > MOST_RESTARTS and now - self._starts[0] < RESTARTS_WITHIN_S:
            raise ToolError(
                f"The MCP server {self.name} ended again and again and is not started any more: {self.problem} "
                f"`/mcp restart {self.name}` tries once more.",
                kind="dependency_error",
            )
        self._starts.append(now)

    async def _connected(self) -> MCPClient:
        self.problem = ""
        try:
            await self._check_programs(None)
            async with asyncio.timeout(self.spec.startup_timeout_s):
                client = await self._connect(self.spec, self)
                try:
                    await self._take_offer(client)
                except BaseException:
                    await client.close()
                    raise
        except NeedsLogin as error:
            self._needs_login, self.problem = True, str(error)
            raise
        except ToolError as error:
            self.problem = self.problem or str(error)  # how a server ended says more than that it is gone
            raise ToolError(self.problem, kind=error.kind) from error
        except TimeoutError as error:
            limit_s = self.spec.startup_timeout_s
            self.problem = f"The MCP server {self.name} did not answer within {limit_s:g} s (its startup_timeout_sec)."
            raise ToolError(self.problem, kind="dependency_error") from error
        except (UserError, OSError) as error:
            self.problem = f"The MCP server {self.name} cannot be reached: {error}"
            raise ToolError(self.problem, kind="dependency_error") from error
        else:
            self._client, self.problem, self._needs_login = client, "", False
            return client
        finally:
            self._connecting = None

    async def _take_offer(self, client: MCPClient) -> None:
        """Ask what the server offers; approve it where nobody has to be asked."""
        if isinstance(client, OffersPrompts):
            self.now = await client.offer()
        else:
            self.now = Offer(tuple(await client.list_tools()))
        tools = {tool.name: tool for tool in reversed(self.now.tools)}  # of two with one name the first counts
        if len(tools) < len(self.now.tools):
            self._tell(f"The MCP server {self.name} names a tool twice: the first counts.")
        self.now = msgspec.structs.replace(self.now, tools=tuple(reversed(tools.values())))
        if self.pinned is None or (self.is_changed and not self.spec.is_of_project):
            self.approve()
        elif self.is_changed:
            self._tell(
                f"The MCP server {self.name} of this project offers something else than what you approved "
                f"({self.changes()}). Its changed tools are asked about; `/mcp approve {self.name}` approves all of it."
            )

    def changes(self) -> str:
        """The names of tools that are new, gone or changed, in words."""
        before = {tool.name: tool for tool in self.pinned.tools} if self.pinned else {}
        after = {tool.name: tool for tool in self.now.tools} if self.now else {}
        told = {
            "new": [name for name in after if name not in before],
            "gone": [name for name in before if name not in after],
            "changed": [name for name in after if name in before and after[name] != before[name]],
        }
        words = [f"{what}: {', '.join(names)}" for what, names in told.items() if names]
        return "; ".join(words) or "its prompts or its instructions"

    async def trust_programs(self) -> Sequence[Path]:
        """Trust the files that start the server as they are now, and return those that had changed."""
        if changed := await asyncio.to_thread(self._pins.changed_programs, self.spec):
            self._pins.accept_programs(self.spec)
        return changed

    def approve(self) -> None:
        """Use what the server offers now. Raises `UsageError` before it was connected."""
        if self.now is None:
            raise UsageError(f"The MCP server {self.name} was not reached yet: there is nothing to approve.")
        self._pin(self.now)

    def _pin_tool(self, tool: RemoteTool) -> None:
        """Approve one tool as it is now, and nothing else that has changed."""
        assert self.pinned is not None, "only what was pinned can differ from it"
        tools = tuple(tool if one.name == tool.name else one for one in self.pinned.tools)
        self._pin(msgspec.structs.replace(self.pinned, tools=tools))

    def _pin(self, offer: Offer) -> None:
        self.pinned = offer
        try:
            self._pins.save(self.spec, offer)
        except StorageError as error:
            self._tell(str(error))
        self._updated()

    # Implements Heed

    def lost(self, why: str) -> None:
        self._client, self.problem = None, why

    def offer_changed(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again())

    def report(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            self._tell(problem)

    async def _look_again(self) -> None:
        if (client := self._client) is not None:
            with suppress(ToolError):  # a connection that is lost is told by `lost`
                await self._take_offer(client)

    # Calls

    async def call(self, tool: RemoteTool, input: dict[str, Any], context: ToolContext) -> RemoteResult:
        """Raises `ToolError`."""
        if self._client is None:
            await self._check_programs(context.ask)
        client = await self.client()
        await self._check_approved(tool, context.ask)
        deadline = asyncio.timeout(self.spec.timeout_s)
        try:
            async with deadline:
                ask = context.ask and _outside(deadline, self.name, context.ask)
                result = await client.call_tool(
                    tool.name, input, progress=lambda line: context.emit(f"{line}\n"), ask=ask
                )
        except TimeoutError as error:
            raise ToolError(
                f"{tool.name} did not end within {self.spec.timeout_s:g} s; {self.name} was told to stop it.",
                kind="timeout",
            ) from error
        return self._introduced(result, context.workspace.files)

    async def _check_programs(self, ask: Ask | None) -> None:
        """Ask about files that would be started and have changed. Raises `ToolError` if they are not to be started."""
        # Once more after each answer: what was accepted is what there was when the question was asked.
        while changed := await asyncio.to_thread(self._pins.changed_programs, self.spec):
            told = changed_sentence(changed, f"the MCP server {self.name}")
            if ask is None or await ask(told, (RUN, REFUSE)) != RUN:
                raise ToolError(
                    f"{told} The server was not started. Check the change, then run `/mcp approve {self.name}` or "
                    f"`agentcli mcp approve {self.name}` to trust the new version.",
                    kind="permission_denied",
                )
            try:
                self._pins.accept_programs(self.spec)
            except ConfigError as error:  # it is trusted until the program ends
                self._tell(str(error))

    async def _check_approved(self, tool: RemoteTool, ask: Ask | None) -> None:
        """Ask about a tool that is not what was approved. Raises `ToolError` if it is not to be used."""
        now = {one.name: one for one in self.now.tools} if self.now else {}
        if tool.name not in now:
            raise ToolError(f"The MCP server {self.name} has no tool {tool.name} any more.", kind="not_found")
        if now[tool.name] == tool or not self.spec.is_of_project or not self.is_changed:
            return
        question = (
            f"{tool.name} of the project's MCP server {self.name} is not what you approved. It says now: "
            f"{now[tool.name].description} Its arguments: {msgspec.json.encode(now[tool.name].schema).decode()}"
        )
        if ask is None or await ask(question, (_USE, _REFUSE)) != _USE:
            raise ToolError(
                f"{tool.name} was changed since the person approved it, and may not be used before they approve it.",
                kind="permission_denied",
            )
        self._pin_tool(now[tool.name])

    def _introduced(self, result: RemoteResult, conversation: FileLedger) -> RemoteResult:
        """The first result of a conversation, with what the server says of itself, as that was approved."""
        from_server = self.pinned.instructions.strip() if self.pinned else ""
        if conversation in self._introduced_to or not from_server or result.is_error:
            return result
        self._introduced_to.add(conversation)
        note = Text(f"[The MCP server {self.name} says of itself: {from_server[:MOST_INSTRUCTIONS]}]")
        return RemoteResult((*result.content, note), result.structured)

    async def restart(self) -> None:
        """Connect anew, however often that failed before. Raises `ToolError`."""
        await self.aclose()
        self._starts.clear()
        self.problem, self._needs_login = "", False
        await self.client()

    async def aclose(self, *, for_good: bool = True) -> None:
        """Disconnect; a caller's own client is closed only `for_good`."""
        if self._looking is not None:  # it is about to keep what the server has announced
            await asyncio.wait((self._looking,), timeout=LAST_LOOK_S)
        for task in (self._connecting, self._looking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, AgentcliError):
                    await task
        self._starts.clear()  # leaving it is no failure of its own
        client, self._client = self._client, None
        if client is not None and (for_good or self.spec.scope != "caller"):
            await client.close()


def _outside(deadline: asyncio.Timeout, server: str, ask: Ask) -> Ask:
    """`ask`, with the server named, and a deadline that stands still until there is an answer."""

    async def asked(question: str, options: Sequence[str]) -> str | None:
        loop, when = asyncio.get_running_loop(), deadline.when()
        since = loop.time()
        deadline.reschedule(None)
        try:
            return await ask(f"{server} asks: {' '.join(question.split())}", options)
        finally:
            deadline.reschedule(None if when is None else when + loop.time() - since)

    return asked
