"""Looks after one MCP server: connects when needed, restarts it a few times, and holds it to what was approved."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from agentcli.errors import AgentcliError, StorageError, ToolError, UserError
from agentcli.extensions.mcp.tools import (
    MCPClient,
    Offer,
    OffersPrompts,
    RemoteResult,
    RemoteTool,
    ServerSpec,
    plain,
    tool_name,
)
from agentcli.extensions.program_pins import ProgramPins, refusal
from agentcli.llm.messages import Text
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.file_ledger import FileLedger
from agentcli.tools.tool import Ask, ToolContext

MAX_RESTARTS = 3
RESTARTS_WITHIN_S = 600.0
LAST_LOOK_S = 1.0
MAX_INSTRUCTIONS = 2_000  # characters of what a server tells the model about itself

Status = Literal["idle", "connecting", "connected", "failed", "needs-auth", "changed"]

_USE, _REFUSE = "Use it as it is now", "Do not use it"


class NeedsLogin(ToolError):
    """The server wants the person to log in first."""


# Connects to a server, which is told what becomes of the connection. Raises `ToolError`, and `NeedsLogin`.
Connect = Callable[[ServerSpec, "Server"], Awaitable[MCPClient]]


class Pins(NamedTuple):
    """Keeps what servers offered when last approved, a file each; a project's is pinned for that project."""

    folder: Path
    project: Path
    programs: ProgramPins

    def load(self, spec: ServerSpec) -> Offer | None:
        """Return the kept offer, None without one. A file that cannot be read approves nothing."""
        try:
            return msgspec.json.decode(self._file(spec).read_bytes(), type=Offer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            return Offer()

    def save(self, spec: ServerSpec, offer: Offer) -> None:
        """Raises `StorageError`."""
        try:
            make_private_folder(self.folder)
            replace_file(self._file(spec), msgspec.json.encode(offer))
        except OSError as error:
            raise StorageError(f"What the MCP server {spec.name} offers could not be kept: {error}.") from error

    def _file(self, spec: ServerSpec) -> Path:
        where = str(self.project) if spec.is_of_project else ""
        digest = hashlib.sha256(f"{spec.fingerprint} {where}".encode()).hexdigest()
        return self.folder / f"{plain(spec.name)[:40]}-{digest[:16]}.json"


class Server:
    """One server. Models are shown the offer `pinned`; `now` is its newest offer, None before the first connection."""

    def __init__(
        self,
        spec: ServerSpec,
        connect: Connect,
        pins: Pins | None,
        *,
        tell: Callable[[str], None],
        updated: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.prefix = tool_name(spec.name, "")  # of the names of its tools
        self.pinned = pins.load(spec) if pins else None
        self.now: Offer | None = None
        self.problem = ""
        self._command = spec.start_command
        self._connect = connect
        self._pins = pins
        self._tell = tell
        self._updated = updated
        self._client: MCPClient | None = None
        self._connecting: asyncio.Task[MCPClient] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._starts: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        self._needs_login = False
        self._asking = asyncio.Lock()
        self._reported: set[str] = set()
        self._introduced_to: WeakSet[FileLedger] = WeakSet()  # each conversation has one of its own

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
        """True if a project's server offers something else than what was approved; others are approved unasked."""
        return self.now is not None and self.pinned is not None and self.now != self.pinned

    async def try_to_connect(self) -> None:
        with suppress(ToolError):  # its state says what is wrong
            await self.client()

    async def client(self) -> MCPClient:
        """The connection, made now if there is none. Raises `ToolError` that says why there can be none."""
        if self._client is not None:
            return self._client
        if self._connecting is None:
            now = time.monotonic()
            if len(self._starts) > MAX_RESTARTS and now - self._starts[0] < RESTARTS_WITHIN_S:
                raise ToolError(
                    f"The MCP server {self.name} ended again and again and is not started any more: {self.problem} "
                    f"`/mcp restart {self.name}` tries once more.",
                    kind="dependency_error",
                )
            self._starts.append(now)
            self._connecting = asyncio.create_task(self._connected())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise ToolError(f"The MCP server {self.name} is being restarted.", kind="resource_error") from None
            raise

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
        except ToolError as error:
            self._needs_login = isinstance(error, NeedsLogin)
            if self._needs_login or not self.problem:  # how a server ended says more than that it is gone
                self.problem = str(error)
            raise ToolError(self.problem, kind=error.kind) from error
        except (UserError, OSError) as error:
            limit = f"did not answer within {self.spec.startup_timeout_s:g} s (its startup_timeout_sec)."
            why = limit if isinstance(error, TimeoutError) else f"cannot be reached: {error}"
            self.problem = f"The MCP server {self.name} {why}"
            raise ToolError(self.problem, kind="dependency_error") from error
        else:
            self._client, self.problem, self._needs_login = client, "", False
            return client
        finally:
            self._connecting = None

    # What it offers, and what of that is approved

    async def _take_offer(self, client: MCPClient) -> None:
        """Ask what the server offers; approve it where nobody has to be asked."""
        offer = await client.offer() if isinstance(client, OffersPrompts) else Offer(tuple(await client.list_tools()))
        tools = {tool.name: tool for tool in reversed(offer.tools)}  # of two with one name the first counts
        if len(tools) < len(offer.tools):
            self._tell(f"The MCP server {self.name} names a tool twice: the first counts.")
        self.now = replace(offer, tools=tuple(reversed(tools.values())))
        if self.pinned is None or (self.is_changed and not self.spec.is_of_project):
            self._pin(self.now)
        elif self.is_changed:
            self._tell(
                f"The MCP server {self.name} of this project offers something else than what you approved "
                f"({self.changes()}). You are asked before it is used; `/mcp approve {self.name}` approves all of it."
            )

    def changes(self) -> str:
        """The names of tools that are new, gone or changed, in words."""
        offers = self.pinned or Offer(), self.now or Offer()
        before, after = ({tool.name: tool for tool in offer.tools} for offer in offers)
        names = {
            "new": [name for name in after if name not in before],
            "gone": [name for name in before if name not in after],
            "changed": [name for name in after if name in before and after[name] != before[name]],
        }
        words = [f"{what}: {', '.join(found)}" for what, found in names.items() if found]
        return "; ".join(words) or "its prompts or its instructions"

    async def approve(self) -> str:
        """Trust the files that start it, and its offer; returns what had changed. Raises `ToolError`, `ConfigError`."""
        changes: list[str] = []
        if self._pins is not None and self._command:
            changes += map(str, await asyncio.to_thread(self._pins.programs.changed, self._command))
            if changes:
                self._pins.programs.accept(self._command)
        await (self.restart() if changes else self.client())
        if self.is_changed and self.now:
            changes.append(self.changes())
            self._pin(self.now)
        return "; ".join(changes) or "nothing was changed"

    def _pin(self, offer: Offer) -> None:
        self.pinned = offer
        try:
            if self._pins is not None:
                self._pins.save(self.spec, offer)
        except StorageError as error:
            self._tell(str(error))
        self._updated()

    async def _check_approved(self, tool: RemoteTool, ask: Ask | None) -> None:
        """Ask about a server that is not what was approved. Raises `ToolError` if it is not to be used."""
        if self.now is None or all(one.name != tool.name for one in self.now.tools):
            raise ToolError(f"The MCP server {self.name} has no tool {tool.name} any more.", kind="not_found")
        async with self._asking:  # several calls may be about it: the person is asked once
            while self.is_changed:  # once more where it has changed while the question was asked
                offer, about = self.now, f"({self.changes()})"
                question = f"The project's MCP server {self.name} offers something else than what you approved {about}."
                texts = _new_texts(self.pinned or Offer(), offer)
                if ask is None or await ask(" ".join((question, *texts)), (_USE, _REFUSE)) != _USE:
                    raise ToolError(
                        f"The MCP server {self.name} was changed since the person approved it {about}, and may not be "
                        "used before they approve it.",
                        kind="permission_denied",
                    )
                if self.now == offer:
                    self._pin(offer)

    async def _check_programs(self, ask: Ask | None) -> None:
        """Ask about files that would be started and have changed. Raises `ToolError` if they are not to be started."""
        if self._pins is None or not self._command:
            return
        user = f"the MCP server {self.name}"
        if why := await refusal(self._pins.programs, self._command, user, ask=ask, tell=self._tell):
            raise ToolError(
                f"{why} The server was not started. Check the change, then run `/mcp approve {self.name}` or "
                f"`agentcli mcp approve {self.name}` to trust the new version.",
                kind="permission_denied",
            )

    # The connection tells of these

    def lost(self, why: str) -> None:
        self._client, self.problem = None, why

    def offer_changed(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again())

    def report(self, problem: str) -> None:
        """Tell of something that cannot be used; each problem is told only once."""
        if problem not in self._reported:
            self._reported.add(problem)
            self._tell(problem)

    async def _look_again(self) -> None:
        if (client := self._client) is not None:
            with suppress(ToolError):  # `lost` tells of a connection that is gone
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

    def _introduced(self, result: RemoteResult, conversation: FileLedger) -> RemoteResult:
        """The first result of a conversation, with what the server says of itself, as that was approved."""
        from_server = self.pinned.instructions.strip() if self.pinned else ""
        if conversation in self._introduced_to or not from_server or result.is_error:
            return result
        self._introduced_to.add(conversation)
        note = Text(f"[The MCP server {self.name} says of itself: {from_server[:MAX_INSTRUCTIONS]}]")
        return RemoteResult((*result.content, note), result.structured)

    async def restart(self) -> None:
        """Connect anew, however often that failed. Raises `ToolError`."""
        await self.aclose()
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


def _new_texts(before: Offer, after: Offer) -> Iterator[str]:
    """Yield the texts for models that the second offer has and the first has not."""
    for tool in after.tools:
        if tool not in before.tools:
            yield f"{tool.name}: {tool.description} Its arguments: {msgspec.json.encode(tool.schema).decode()}"
    for prompt in after.prompts:
        if prompt not in before.prompts:
            yield f"The prompt {prompt.name}: {prompt.description}"
    if after.instructions != before.instructions:
        yield f"It says of itself: {after.instructions}"


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
