"""Answers a client's requests: opens and closes sessions, and passes on their prompts and settings."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, BinaryIO

import msgspec

from agentcli.background import start_in_background
from agentcli.errors import NoKey, NoModel, NoSession, SessionInUse, UsageError, UserError
from agentcli.frontends import hosts
from agentcli.frontends.acp import messages, rpc
from agentcli.frontends.acp.client import Client, ClientFiles
from agentcli.frontends.acp.session import ClientSession
from agentcli.version import __version__

PROTOCOL_VERSION = 1
MAX_LISTED = 1_000  # sessions, all in one page

_LOGIN = {
    "id": "login",
    "name": "Save a provider's API key",
    "description": "Asks for the key in a terminal and saves it. Local models need none.",
    "type": "terminal",
    "args": ["--login"],
}
_CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "sessionCapabilities": {key: {} for key in ("list", "resume", "close", "delete", "fork", "additionalDirectories")},
}
_CODES: dict[type[UserError], int] = {  # error codes; other errors get INTERNAL_ERROR
    NoSession: rpc.NOT_FOUND,
    NoKey: rpc.AUTH_REQUIRED,
    NoModel: rpc.AUTH_REQUIRED,
    UsageError: rpc.INVALID_PARAMS,
}

CheckKey = Callable[[], Awaitable[None]]  # raises `NoModel` or `NoKey` if no model can be used


class AcpAgent:
    """One connection with all its sessions. The client reads from the descriptor `out`."""

    def __init__(
        self, open_session: hosts.OpenForClient, store: hosts.UsageStore, check_key: CheckKey, *, out: int
    ) -> None:
        self._open_session, self._store, self._check_key = open_session, store, check_key
        self._connection = rpc.Connection(out, handle=self._handle, on_notification=self._handle_notification)
        self._client = Client(self._connection)
        self._sessions: dict[str, ClientSession] = {}  # by session id
        self._closing: set[asyncio.Task[None]] = set()
        self._is_initialized = False  # True when the client has sent `initialize`
        self._is_leaving = False  # True when the connection has ended

    async def run(self, input: BinaryIO) -> None:
        """Serve until the client disconnects or `leave` is called; then interrupt all turns and store everything."""
        await self._connection.run(input)
        self._is_leaving = True
        closing = (*(session.close() for session in self._sessions.values()), *self._closing)
        ends = await asyncio.gather(*closing, return_exceptions=True)
        await self._connection.aclose()
        await self._store.close()
        for failure in filter(None, ends):
            raise failure

    def leave(self) -> None:
        self._connection.close()

    async def _handle(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request_type = messages.PARAMETERS.get(method)
        if request_type is None:
            raise rpc.RpcError(rpc.METHOD_NOT_FOUND, f"Method not found: {method[:200]}", {"method": method[:200]})
        if not self._is_initialized and method != "initialize":
            raise rpc.RpcError(rpc.INVALID_REQUEST, "Invalid request: initialize comes first.")
        try:
            request = msgspec.convert(params, request_type)
        except msgspec.ValidationError as error:
            raise rpc.RpcError(rpc.INVALID_PARAMS, f"Invalid params: {error}") from error
        try:
            return await self._answer(method, request)
        except SessionInUse as error:
            message = f"Session {error.session_id} is open in another agentcli. Close it there first."
            raise rpc.RpcError(rpc.INTERNAL_ERROR, message) from error
        except UserError as error:
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), rpc.INTERNAL_ERROR)
            raise rpc.RpcError(code, str(error)) from error

    def _handle_notification(self, method: str, params: dict[str, Any]) -> None:
        match method, params:
            case "session/cancel", {"sessionId": str(id)} if id in self._sessions:
                self._sessions[id].cancel()

    async def _answer(self, method: str, request: messages.AcpMessage) -> dict[str, Any]:
        """Carry out a client's request, and return its result, which is empty for some methods."""
        match request:
            case messages.Initialize():
                return self._initialize(request)
            case messages.Authenticate(method_id) if method_id == _LOGIN["id"]:
                await self._check_key()  # the client has already run the login in a terminal
            case messages.Authenticate(method_id):
                raise UsageError(
                    f"Unknown authentication method {method_id[:80]!r}. Set the key in the environment of "
                    "this program, or save it with agentcli login PROVIDER in a terminal."
                )
            case messages.NewSessionRequest():  # or its subclass `StoredSession`
                session = await self._open_session_for(request, is_fork=method == "session/fork")
                if method == "session/load":
                    await session.replay()
                asyncio.get_running_loop().call_soon(session.send_commands)  # the client gets the id first
                has_known_id = method in ("session/load", "session/resume")
                return session.settings() if has_known_id else session.settings() | {"sessionId": session.id}
            case messages.ListSessions():
                return await self._list(request)
            case messages.PromptRequest():
                return await self._session(request.session_id).answer_prompt(request.prompt)
            case messages.SetModeRequest():
                await self._session(request.session_id).set_option("mode", request.mode_id)
            case messages.SetOption():
                session = self._session(request.session_id)
                await session.set_option(request.config_id, request.value)
                return {"configOptions": session.settings()["configOptions"]}
            case messages.SessionRequest(id) if method == "session/close":
                await self._close(id)
            case messages.SessionRequest(id):  # session/delete
                if id in self._sessions:
                    await self._close(id)
                with suppress(NoSession):  # deleting a session that does not exist succeeds
                    await hosts.session_info(self._store, id)
                    await self._store.remove(id)
        return {}

    def _initialize(self, request: messages.Initialize) -> dict[str, Any]:
        """Answer with the only supported version, whichever one the client asks for."""
        self._client.capabilities = request.client_capabilities or messages.ClientCapabilities()
        self._is_initialized = True
        has_mcp = find_spec("mcp") is not None
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {**_CAPABILITIES, "mcpCapabilities": {"http": has_mcp, "sse": has_mcp}},
            "agentInfo": {"name": "agentcli", "title": "agentcli", "version": __version__},
            "authMethods": [_LOGIN] if self._client.capabilities.has_terminal_login else [],
        }

    async def _open_session_for(self, request: messages.NewSessionRequest, *, is_fork: bool) -> ClientSession:
        """Open a new session, a stored one (closed first if it is open here), or a fork of a stored one."""
        cwd = hosts.working_folder(request.cwd)
        folders = tuple(map(hosts.working_folder, request.additional_directories or ()))
        servers = {server.name: server.entry for server in request.mcp_servers or ()}
        files = partial(ClientFiles, self._client, cwd) if self._client.capabilities.has_files else None
        editor = hosts.Editor(folders, servers, files)
        id = ""
        if isinstance(request, messages.StoredSession):
            id = request.session_id
            # Raises `NoSession` for an unknown id, and for an empty one, which would open a new session below.
            await hosts.session_info(self._store, id)
        if not is_fork and (open_here := self._sessions.pop(id, None)) is not None:
            await open_here.close()
        open_request = hosts.OpenRequest(cwd=cwd, id=id, how="fork" if is_fork else "resume", editor=editor)
        opened = await self._open_session(open_request)
        new_id = opened.session.id
        try:
            models = await opened.opener.list_models(with_key=True)
            # If no other model can be chosen, a new session's model must work. A stored session can still be read.
            if not id and not models:
                opened.opener.check_model(opened.session.snapshot().model)
        except BaseException:
            await opened.session.close()
            await opened.aclose()
            raise
        session = ClientSession(opened, models, self._client, on_taken_over=partial(self._close_superseded, new_id))
        if self._is_leaving:  # the client disconnected in the meantime
            await session.close()
            raise NoSession(id)
        self._sessions[new_id] = session
        return session

    def _close_superseded(self, id: str) -> None:
        if (session := self._sessions.pop(id, None)) is not None:
            start_in_background(session.close(), self._closing)

    def _session(self, id: str) -> ClientSession:
        if (session := self._sessions.get(id)) is None:
            message = f"No session {id[:80]!r} is open here. Start one with session/new, or load it with session/load."
            raise rpc.RpcError(rpc.NOT_FOUND, message, {"sessionId": id[:80]})
        return session

    async def _list(self, request: messages.ListSessions) -> dict[str, Any]:
        cwd = hosts.absolute_path(request.cwd) if request.cwd is not None else None
        rows = []
        # The empty user id leaves out the sessions of a server's users, of subagents and of scripts.
        for info in await self._store.list(cwd=cwd, limit=MAX_LISTED, user_id=""):
            updated = datetime.fromtimestamp(info.updated, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            title = {"title": info.name or info.title} if info.name or info.title else {}
            rows.append({"sessionId": info.id, "cwd": info.cwd, "updatedAt": updated, **title})
        return {"sessions": rows}

    async def _close(self, id: str) -> None:
        session = self._session(id)
        del self._sessions[id]
        await session.close()
