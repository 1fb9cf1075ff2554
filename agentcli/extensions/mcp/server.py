"""Manages one MCP server: connects and reconnects when needed, and asks about changes to what it offers."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import msgspec

from agentcli.errors import AgentcliError, ToolError, UserError
from agentcli.extensions.mcp import tools as mcp_tools
from agentcli.extensions.program_pins import ProgramPins, why_denied
from agentcli.llm.messages import Text
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.tool import Ask, ToolContext
from agentcli.tools.workspace import FileLedger

MAX_INSTRUCTIONS_CHARS = 2_000

Status = Literal["idle", "connecting", "connected", "failed", "needs-auth", "changed", "disabled"]

_USE, _REFUSE = "Approve and use it", "Do not use it"


class NeedsLogin(ToolError):
    """The server wants the person to log in first."""


# Connects to a server, whose `on_connection_lost` is called when the connection ends. Raises `ToolError`, `NeedsLogin`.
Connect = Callable[[mcp_tools.ServerSpec, "Server"], Awaitable[mcp_tools.MCPClient]]


class ServerApprovals(NamedTuple):
    """Stores approved offers, one file for each server. A project's server is approved only for that project."""

    folder: Path
    project: Path
    programs: ProgramPins  # the approved files that start the servers

    def load_offer(self, spec: mcp_tools.ServerSpec) -> mcp_tools.Offer | None:
        """Return the approved offer; None if there is none, an empty one if its file cannot be read."""
        try:
            return msgspec.json.decode(self._offer_file(spec).read_bytes(), type=mcp_tools.Offer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            return mcp_tools.Offer()  # not None, with which the next offer would be approved without a question

    def save_offer(self, spec: mcp_tools.ServerSpec, offer: mcp_tools.Offer) -> None:
        """Store an offer as approved. Raises `OSError`."""
        make_private_folder(self.folder)
        replace_file(self._offer_file(spec), msgspec.json.encode(offer))

    def _offer_file(self, spec: mcp_tools.ServerSpec) -> Path:
        project = str(self.project) if spec.is_of_project else ""
        digest = hashlib.sha256(f"{spec.fingerprint} {project}".encode()).hexdigest()
        return self.folder / f"{mcp_tools.safe_name(spec.name)[:40]}-{digest[:16]}.json"


class Server:
    """One server. Models see `approved_offer`. `current_offer` is None before the first connection."""

    def __init__(
        self,
        spec: mcp_tools.ServerSpec,
        connect: Connect,
        approvals: ServerApprovals | None,  # None for a caller's own client
        *,
        on_notice: Callable[[str], None],
        on_approval: Callable[[], None],  # called after each approval, so that sessions get the tools and prompts
    ) -> None:
        self.spec, self.name = spec, spec.name
        self.prefix = mcp_tools.tool_name(spec.name, "")  # the beginning of its tools' names
        self.approved_offer = approvals.load_offer(spec) if approvals else None
        self.current_offer: mcp_tools.Offer | None = None
        self.problem = ""  # the reason why it cannot be used, for the person
        self.is_enabled = True  # False: its tools are not offered
        self._connect, self._approvals = connect, approvals
        self._on_notice, self._on_approval = on_notice, on_approval
        self._client: mcp_tools.MCPClient | None = None
        self._connecting: asyncio.Task[mcp_tools.MCPClient] | None = None  # one attempt for all callers
        self._refreshing: asyncio.Task[None] | None = None  # gets the offer after the server announced a change
        self._needs_login = False
        self._asking = asyncio.Lock()  # held while the person is asked about changes
        # The conversations that have its instructions, each identified by its ledger of files.
        self._instructed: WeakSet[FileLedger] = WeakSet()

    @property
    def status(self) -> Status:
        if not self.is_enabled:
            return "disabled"
        if self._connecting is not None:
            return "connecting"
        if self._needs_login:
            return "needs-auth"
        if self._client is None:
            return "failed" if self.problem else "idle"
        return "changed" if self.is_changed else "connected"

    @property
    def is_changed(self) -> bool:
        """Return True if the server's current offer differs from the approved one."""
        return None not in (self.current_offer, self.approved_offer) and self.current_offer != self.approved_offer

    async def try_to_connect(self) -> None:
        with suppress(ToolError):  # `problem` has the reason
            await self.client()

    async def client(self) -> mcp_tools.MCPClient:
        """Return the connection, and connect first if there is none. Raises `ToolError` with the reason if it fails."""
        if self._client is not None:
            return self._client
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open_client())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if connecting.cancelled() and caller is not None and not caller.cancelling():  # `aclose` cancelled it
                raise ToolError(f"The MCP server {self.name} is being restarted.", kind="resource_error") from None
            raise

    async def _open_client(self) -> mcp_tools.MCPClient:
        """Connect, and fetch the offer. Raises `ToolError`, whose text is also the server's `problem`."""
        self.problem = ""
        try:
            # Changed files are refused without a question (`None`): before a call, `call_tool` has asked the person.
            await self._check_programs(None)
            async with asyncio.timeout(self.spec.startup_timeout_s):
                client = await self._connect(self.spec, self)
                try:
                    await self._fetch_offer(client)
                except BaseException:
                    await client.close()
                    raise
        except ToolError as error:
            self._needs_login = isinstance(error, NeedsLogin)
            if self._needs_login or not self.problem:  # `on_connection_lost` may have set one that says more
                self.problem = str(error)
            raise ToolError(self.problem, kind=error.kind) from error
        except (UserError, OSError) as error:
            why = f"could not be reached: {error}"
            if isinstance(error, TimeoutError):
                why = f"did not start within {self.spec.startup_timeout_s:g} s (startup_timeout_sec)."
            self.problem = f"The MCP server {self.name} {why}"
            raise ToolError(self.problem, kind="dependency_error") from error
        else:
            self._client, self.problem, self._needs_login = client, "", False
            return client
        finally:
            self._connecting = None

    # The server's offer and its approval

    async def _fetch_offer(self, client: mcp_tools.MCPClient) -> None:
        """Get the server's current offer, and approve it unless it is a changed one of a project's server.

        A project's server is first started when the person has trusted the project, which approves its first offer.
        """
        if isinstance(client, mcp_tools.OffersPrompts):
            offer = await client.offer()
        else:
            offer = mcp_tools.Offer(tuple(await client.list_tools()))
        tools: dict[str, mcp_tools.RemoteTool] = {}
        for tool in offer.tools:
            tools.setdefault(tool.name, tool)  # if two share a name, the first one wins
        self.current_offer = msgspec.structs.replace(offer, tools=tuple(tools.values()))
        if self.approved_offer is None or (self.is_changed and not self.spec.is_of_project):
            self._approve_offer(self.current_offer)
        elif self.is_changed:
            self._on_notice(
                f"The MCP server {self.name} of this project changed since you approved it "
                f"({self.describe_changes()}). agentcli asks before using it. To approve it: "
                f"`/mcp approve {self.name}`."
            )

    def describe_changes(self) -> str:
        """List the tools that are new, gone or changed since the approval, as text."""
        offers = self.approved_offer or mcp_tools.Offer(), self.current_offer or mcp_tools.Offer()
        before, after = ({tool.name: tool for tool in offer.tools} for offer in offers)
        names = {
            "new": [name for name in after if name not in before],
            "gone": [name for name in before if name not in after],
            "changed": [name for name in after if name in before and after[name] != before[name]],
        }
        changes = [f"{change}: {', '.join(tools)}" for change, tools in names.items() if tools]
        return "; ".join(changes) or "its prompts or instructions"

    async def approve(self) -> str:
        """Trust the server's files and its offer; return what has changed. Raises `ToolError` and `ConfigError`."""
        changes: list[str] = []
        if self._approvals is not None and (command := self.spec.start_command):
            changes += map(str, await asyncio.to_thread(self._approvals.programs.changed_files, command))
            if changes:
                self._approvals.programs.accept_changes(command)
        await (self.restart() if changes else self.client())  # both connect, and so read the current offer
        if self.is_changed and self.current_offer:
            changes.append(self.describe_changes())
            self._approve_offer(self.current_offer)
        return "; ".join(changes) or "no changes"

    def _approve_offer(self, offer: mcp_tools.Offer) -> None:
        self.approved_offer = offer
        try:
            if self._approvals is not None:
                self._approvals.save_offer(self.spec, offer)
        except OSError as error:
            self._on_notice(f"Could not store what the MCP server {self.name} offers: {error}.")
        self._on_approval()

    async def _check_approved(self, ask: Ask | None) -> None:
        """Ask about a server that has changed since it was approved. Raises `ToolError` if it may not be used."""
        async with self._asking:  # other calls wait, so that the person is asked once
            while self.current_offer and self.is_changed:  # asks again if the offer has changed meanwhile
                offer, changes = self.current_offer, f"({self.describe_changes()})"
                question = f"The project's MCP server {self.name} changed since you approved it {changes}."
                texts = _new_texts(self.approved_offer or mcp_tools.Offer(), offer)
                if ask is None or await ask(" ".join((question, *texts)), (_USE, _REFUSE)) != _USE:
                    raise ToolError(
                        f"The MCP server {self.name} changed since the user approved it {changes}. It cannot be used "
                        "until they approve it again.",
                        kind="permission_denied",
                    )
                if self.current_offer == offer:  # it is still the one that the person has seen
                    self._approve_offer(offer)

    async def _check_programs(self, ask: Ask | None) -> None:
        """Ask about changed files that the server runs. Raises `ToolError` if they may not be run."""
        if self._approvals is None or not (command := self.spec.start_command):
            return
        runner = f"the MCP server {self.name}"
        if why := await why_denied(self._approvals.programs, command, runner, ask=ask, on_notice=self._on_notice):
            raise ToolError(
                f"{why} The server was not started. Check the change, then approve the new version with "
                f"`/mcp approve {self.name}` or `agentcli mcp approve {self.name}`.",
                kind="permission_denied",
            )

    def on_connection_lost(self, why: str) -> None:
        self._client, self.problem = None, why

    def on_offer_changed(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_offer())

    async def _refresh_offer(self) -> None:
        if (client := self._client) is not None:
            with suppress(ToolError):  # `on_connection_lost` reports a connection that is gone
                await self._fetch_offer(client)

    async def call_for_model(
        self, tool: mcp_tools.RemoteTool, input: dict[str, Any], context: ToolContext
    ) -> mcp_tools.RemoteResult:
        """Call a tool, and add the server's instructions to the first result in a conversation. Raises `ToolError`."""
        result = await self.call_tool(tool, input, context)
        instructions = self.approved_offer.instructions.strip() if self.approved_offer else ""
        if result.is_error or not instructions or context.workspace.files in self._instructed:
            return result
        self._instructed.add(context.workspace.files)
        note = Text(f"[Instructions of the MCP server {self.name}: {instructions[:MAX_INSTRUCTIONS_CHARS]}]")
        return mcp_tools.RemoteResult((*result.content, note), result.structured)

    async def call_tool(
        self, tool: mcp_tools.RemoteTool, input: dict[str, Any], context: ToolContext
    ) -> mcp_tools.RemoteResult:
        """Call a tool; ask the person first if the server has changed. Raises `ToolError`."""
        if self._client is None:  # the server will be started
            await self._check_programs(context.ask)
        client = await self.client()
        await self._check_approved(context.ask)
        try:
            async with asyncio.timeout(self.spec.timeout_s) as limit:
                ask = context.ask and _ask_outside_limit(context.ask, limit, self.spec)
                return await client.call_tool(
                    tool.name, input, progress=lambda line: context.emit(f"{line}\n"), ask=ask
                )
        except TimeoutError as error:
            raise ToolError(
                f"{tool.name} did not finish within {self.spec.timeout_s:g} s; agentcli asked {self.name} to stop it.",
                kind="timeout",
            ) from error

    async def restart(self) -> None:
        await self.aclose()
        self.problem, self._needs_login = "", False
        await self.client()

    async def aclose(self, *, for_good: bool = True) -> None:
        """Disconnect; a caller's own client is closed only `for_good`."""
        if self._refreshing is not None:  # give it time to store the tools that the server announced
            await asyncio.wait((self._refreshing,), timeout=1.0)
        for task in filter(None, (self._connecting, self._refreshing)):
            task.cancel()
            with suppress(asyncio.CancelledError, AgentcliError):
                await task
        client, self._client = self._client, None
        if client is not None and (for_good or self.spec.scope != "caller"):  # only its caller could open it again
            await client.close()


def _new_texts(before: mcp_tools.Offer, after: mcp_tools.Offer) -> Iterator[str]:
    """Yield the texts of `after` that models would see, except those that `before` has, too."""
    for tool in after.tools:
        if tool not in before.tools:
            yield f"{tool.name}: {tool.description} Arguments: {msgspec.json.encode(tool.schema).decode()}"
    for prompt in after.prompts:
        if prompt not in before.prompts:
            yield f"The prompt {prompt.name}: {prompt.description}"
    if after.instructions != before.instructions:
        yield f"Instructions: {after.instructions}"


def _ask_outside_limit(ask: Ask, limit: asyncio.Timeout, spec: mcp_tools.ServerSpec) -> Ask:
    """Return an `ask` that names the server; the time limit of the call begins anew with the answer."""

    async def ask_and_wait(question: str, options: Sequence[str]) -> str | None:
        limit.reschedule(None)
        try:
            return await ask(f"{spec.name} asks: {' '.join(question.split())}", options)
        finally:
            with suppress(RuntimeError):  # the call has ended
                limit.reschedule(asyncio.get_running_loop().time() + spec.timeout_s)

    return ask_and_wait
