"""Connects to an MCP server with the official SDK: stdio, Streamable HTTP or SSE, old and new protocol."""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client import streamable_http
from mcp.client._transport import Transport, TransportStreams
from mcp.client.auth import OAuthFlowError
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agentcli.errors import ToolError
from agentcli.extensions.mcp import messages
from agentcli.extensions.mcp import tools as mcp_tools
from agentcli.extensions.mcp.server import NeedsLogin, Server
from agentcli.extensions.mcp.stdio import ServerProgram, stdio_transport
from agentcli.llm.messages import Text
from agentcli.tools.tool import Ask
from agentcli.version import __version__

MAX_PAGES = 100  # of a list, because a server could send pages without end
MAX_EVENT_BYTES = 16 * 1024 * 1024  # in a server's event stream
CONNECT_TIMEOUT_S = 10.0
CLOSE_PROGRAM_S, CLOSE_HTTP_S = 8.0, 2.0  # to close a connection; a program is ended step by step

log = logging.getLogger(__name__)
T = TypeVar("T")


class ServerConnection:
    """A connection to a server. Implements `MCPClient` and `OffersPrompts`.

    The SDK's client must be opened and closed in one task, so it has a task of its own.
    """

    def __init__(self, spec: mcp_tools.ServerSpec, server: Server) -> None:
        self.name = spec.name
        self._spec = spec
        self._server = server
        self._client: Client | None = None
        # One for each running call, the oldest first: a question of the server reaches the person through one of them.
        self._asks_of_calls: list[Ask | None] = []
        self._closing = asyncio.Event()  # set by `close`, and when the transport has ended
        self._task: asyncio.Task[None] | None = None

    async def open(self, transport: Transport, root: Path) -> None:
        """Connect. Raises `ToolError` and `NeedsLogin`."""
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(transport, root, opened))
        try:
            self._client = await asyncio.shield(opened)
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:
            raise self._to_agentcli_error(error) from error

    async def _run(self, transport: Transport, root: Path, opened: asyncio.Future[Client]) -> None:
        """Open the SDK's client, and keep it open until `close` is called or the server ends."""

        async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:
            return types.ListRootsResult(roots=[types.Root(uri=root.as_uri(), name=root.name)])  # type: ignore[arg-type]

        client = Client(
            transport,
            client_info=types.Implementation(name="agentcli", version=__version__),
            elicitation_callback=self._elicit,
            list_roots_callback=list_roots,
            message_handler=self._handle_message,
            cache=None,
        )
        try:
            async with client:
                # A regular expression in a server's schema could block the event loop, and nothing needs the check.
                client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
                _simplify_results(client)
                opened.set_result(client)
                listening = asyncio.create_task(self._listen(client))
                try:
                    await self._closing.wait()
                finally:
                    listening.cancel()
        except Exception as error:  # noqa: BLE001 - the SDK's task groups raise whatever a transport raises
            if not opened.done():  # `open` is still waiting
                opened.set_exception(_first_error(error))
            elif not self._closing.is_set():
                self.on_transport_end(str(self._to_agentcli_error(_first_error(error))))
        finally:
            if not opened.done():  # `close` has cancelled this
                opened.cancel()

    def on_transport_end(self, why: str) -> None:
        """Report that the transport has ended, unless `close` ended it."""
        if not self._closing.is_set():
            self._closing.set()
            self._server.on_connection_lost(f"Lost the connection to the MCP server {self.name}. {why}")

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of lists; servers of the older era announce these without a subscription."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with client.listen(tools_list_changed=True, prompts_list_changed=True) as events:
                async for _ in events:
                    self._server.on_offer_changed()

    async def _handle_message(self, message: IncomingMessage) -> None:
        match message:
            case types.ToolListChangedNotification() | types.PromptListChangedNotification():
                self._server.on_offer_changed()
            case Exception():
                log.warning("MCP server %s: %s", self.name, message)

    async def _elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask the person through the newest call that can: in the older era a question does not name its call."""
        asks = [ask for ask in self._asks_of_calls if ask is not None]
        return await messages.elicit(params, asks[-1] if asks else None)

    async def list_tools(self) -> Sequence[mcp_tools.RemoteTool]:
        tools = await self._translate_errors(_all_pages(self._connected_client().list_tools, lambda page: page.tools))
        return [
            mcp_tools.RemoteTool(tool.name, tool.description or tool.title or "", tool.input_schema) for tool in tools
        ]

    async def offer(self) -> mcp_tools.Offer:
        client = self._connected_client()
        tools = await self.list_tools() if client.server_capabilities.tools is not None else ()
        prompts: list[types.Prompt] = []
        if client.server_capabilities.prompts is not None:
            with suppress(ToolError):  # some servers announce prompts, but do not know this request
                prompts = await self._translate_errors(_all_pages(client.list_prompts, lambda page: page.prompts))
        return mcp_tools.Offer(tuple(tools), tuple(map(_to_prompt, prompts)), client.instructions or "")

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> str:
        result = await self._translate_errors(self._connected_client().get_prompt(name, arguments))
        parts = messages.parts_of(message.content for message in result.messages)
        return "\n\n".join(part.text if isinstance(part, Text) else "[an image or a document]" for part in parts)

    async def read_resource(self, uri: str) -> mcp_tools.Parts:
        resource = await self._translate_errors(self._connected_client().read_resource(uri))
        return tuple(map(messages.resource_part, resource.contents))

    async def call_tool(
        self, name: str, input: dict[str, Any], *, progress: Callable[[str], None], ask: Ask | None
    ) -> mcp_tools.RemoteResult:
        client, emit_line = self._connected_client(), progress

        async def report(progress: float, total: float | None, message: str | None) -> None:  # named as in the SDK
            share = f"{progress:g}/{total:g}" if total else f"{progress:g}"
            emit_line(f"{share} {message}" if message else share)

        self._asks_of_calls.append(ask)
        try:
            result = await self._translate_errors(client.call_tool(name, input, progress_callback=report))
        finally:
            self._asks_of_calls.remove(ask)
        return mcp_tools.RemoteResult(messages.parts_of(result.content), result.structured_content, result.is_error)

    async def close(self) -> None:
        self._closing.set()
        if self._task is not None and not self._task.done():
            if self._client is None:  # the task waits for a server that may never answer
                self._task.cancel()
            is_program = isinstance(self._spec.transport, mcp_tools.StdioSpec)
            await asyncio.wait((self._task,), timeout=CLOSE_PROGRAM_S if is_program else CLOSE_HTTP_S)
            self._task.cancel()  # if it still runs after the timeout
            await asyncio.wait((self._task,))

    def _connected_client(self) -> Client:
        if self._client is None or self._closing.is_set():
            raise ToolError(f"The MCP server {self.name} is not connected.", kind="resource_error")
        return self._client

    async def _translate_errors(self, request: Awaitable[T]) -> T:
        try:
            return await request
        except Exception as error:
            raise self._to_agentcli_error(error) from error

    def _to_agentcli_error(self, error: Exception) -> Exception:
        """Translate an error of the SDK or its transport into one of agentcli; others are returned unchanged."""
        where = f"The MCP server {self.name}"
        match error:
            case ToolError():
                return error
            case OAuthFlowError():
                return NeedsLogin(f"{where} needs a login: agentcli mcp login {self.name}", kind="permission_denied")
            case MCPError(code=types.INVALID_PARAMS):
                return ToolError(f"{where} answered: {error}", kind="invalid_parameters")
            case MCPError(code=types.CONNECTION_CLOSED):
                return ToolError(f"{where} has exited: {error}", kind="resource_error", code="connection_closed")
            case MCPError(code=types.URL_ELICITATION_REQUIRED):
                return ToolError(f"{where} wants the user to open an address before the call: {error.data}")
            case MCPError():
                return ToolError(f"{where} answered: {error}", code=str(error.code))
            case ValidationError():
                return ToolError(f"{where} sent an invalid answer: {messages.fault_of(error)}.")
            case httpx2.HTTPStatusError() if error.response.status_code in (401, 403):
                return NeedsLogin(
                    f"{where} denied access (HTTP {error.response.status_code}). Check its headers, or run "
                    f"agentcli mcp login {self.name}",
                    kind="permission_denied",
                )
            case TimeoutError():
                return ToolError(f"{where} did not answer in time.", kind="timeout")
            case OSError() | httpx2.HTTPError() | RuntimeError():
                return ToolError(f"Could not reach the MCP server {self.name}: {error}", kind="dependency_error")
            case _:
                return error


def _simplify_results(client: Client) -> None:
    """Let `simplify_result` change results before the SDK validates them."""
    dispatcher = client.session._dispatcher  # noqa: SLF001 - the SDK has no other place for it
    send = dispatcher.send_raw_request

    async def send_and_simplify(method: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        result = await send(method, *arguments, **options)
        return messages.simplify_result(method, result, is_modern=client.protocol_version in MODERN_PROTOCOL_VERSIONS)

    dispatcher.send_raw_request = send_and_simplify  # type: ignore[method-assign]


async def _accept_result(name: str, result: types.CallToolResult) -> None:
    """Accept every result, without checking it against the server's schema."""


async def _all_pages(fetch_page: Callable[..., Awaitable[Any]], items_of: Callable[[Any], Sequence[T]]) -> list[T]:
    items: list[T] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await fetch_page(cursor=cursor)
        items += items_of(page)
        if (cursor := page.next_cursor) is None:
            break
    return items


def _to_prompt(prompt: types.Prompt) -> mcp_tools.RemotePrompt:
    arguments = tuple((argument.name, bool(argument.required)) for argument in prompt.arguments or ())
    return mcp_tools.RemotePrompt(prompt.name, prompt.description or prompt.title or "", arguments)


def _first_error(error: BaseException) -> Exception:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(str(error))


async def connect(
    spec: mcp_tools.ServerSpec,
    server: Server,
    root: Path,
    target: ServerProgram | mcp_tools.HttpSpec,
    *,
    auth: httpx2.Auth | None = None,
) -> ServerConnection:
    """Connect to the program or address of `spec`, which in `target` has its variables replaced.

    The server may ask for the folder `root`. Raises `ToolError` and `NeedsLogin`.
    """
    client = ServerConnection(spec, server)
    if isinstance(target, ServerProgram):
        transport = stdio_transport(target, on_end=client.on_transport_end)
    else:
        timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=spec.timeout_s)
        transport = _http_transport(target, httpx2.AsyncClient(headers=target.headers, auth=auth, timeout=timeout))
    await client.open(transport, root)
    return client


@asynccontextmanager
async def _http_transport(address: mcp_tools.HttpSpec, http: httpx2.AsyncClient) -> AsyncIterator[TransportStreams]:
    if address.type == "sse":
        async with sse_client(address.url, httpx_client_factory=lambda *_, **__: http) as streams:
            yield streams
    else:
        transport = streamable_http_client(address.url, http_client=http, max_sse_event_size=MAX_EVENT_BYTES)
        async with http, transport as streams:
            yield streams


# The SDK's transports for HTTP take no reader of messages as an argument, so its own is replaced.
streamable_http.jsonrpc_message_adapter = messages.MessageReader()  # type: ignore[attr-defined, assignment]
types.jsonrpc_message_adapter = messages.MessageReader()  # type: ignore[assignment]
warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
logging.getLogger("mcp").addHandler(logging.NullHandler())  # keeps its tracebacks off the terminal
