"""Represents the client: its capabilities, the requests and updates sent to it, and the files it holds."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from agentcli.agent.interfaces import Checkpoints
from agentcli.errors import ToolError
from agentcli.frontends.acp.messages import AcpMessage, ClientCapabilities, FormAnswer, Permission, TextFile
from agentcli.frontends.acp.rpc import INTERNAL_ERROR, Connection, RpcError
from agentcli.tools.command import Grants
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.text.encoding import DecodedText, decode

log = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=AcpMessage)

MAX_FILE_BYTES = 10 * 1024 * 1024  # of a file that an editor is asked for
FILE_TIMEOUT_S = 30.0


def option(id: str, name: str, kind: str) -> dict[str, str]:
    """Return an answer to a permission request; `kind` is allow_once, allow_always, reject_once or reject_always."""
    return {"optionId": id, "name": name, "kind": kind}


class Client:
    """`can` is known once the client has introduced itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.can = ClientCapabilities()

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        self.connection.notify("session/update", {"sessionId": session_id, "update": update})

    async def request(self, method: str, answer: type[M], **params: Any) -> M:
        """Raises `RpcError`, also for an answer that makes no sense."""
        given = await self.connection.request(method, params)
        try:
            return msgspec.convert(given, answer)
        except msgspec.ValidationError as error:
            raise RpcError(INTERNAL_ERROR, f"The client's answer to {method} makes no sense: {error}") from error

    async def choose(self, session_id: str, call: dict[str, Any], options: Sequence[dict[str, str]]) -> str | None:
        """Ask for permission; returns the id of the option, None if the turn was cancelled. Raises `RpcError`."""
        params = {"sessionId": session_id, "toolCall": call, "options": options}
        outcome = (await self.request("session/request_permission", Permission, **params)).outcome
        return outcome.option_id if outcome.outcome == "selected" else None

    async def fill_in(
        self, session_id: str, message: str, fields: dict[str, Any], *, required: Sequence[str] = (), call_id: str = ""
    ) -> dict[str, Any] | None:
        """Show a form; returns its values, None if the person did not fill it in. Raises `RpcError`."""
        schema = {"type": "object", "properties": fields, "required": list(required)}
        params = {"sessionId": session_id, "mode": "form", "message": message, "requestedSchema": schema}
        about = {"toolCallId": call_id} if call_id else {}
        filled = await self.request("elicitation/create", FormAnswer, **params, **about)
        return (filled.content or {}) if filled.action == "accept" else None


class ClientFiles:
    """Asks the editor first for files with unsaved changes; commands see the disk. A refused write fails."""

    def __init__(self, client: Client, cwd: Path, session_id: str) -> None:
        self._client = client
        self._cwd, self._real_cwd = cwd, cwd.resolve()
        self._session_id = session_id
        self._loop = asyncio.get_running_loop()
        self._disk: Sandbox
        self._roots: Callable[[], Sequence[Path]]

    def sandbox(self, made: Sandbox, roots: Callable[[], Sequence[Path]]) -> Sandbox:
        self._disk, self._roots = made, roots
        return cast("Sandbox", _Over(made, read=self._read, write=self._write))

    def checkpoints(self, made: Checkpoints) -> Checkpoints:
        """Save unsaved changes before a call edits their file, so that undoing the call leaves them alone."""

        async def begin(call_id: str, paths: Sequence[Path] | None) -> Any:
            for path in paths or ():
                await asyncio.to_thread(self._save, path)
            return await made.begin(call_id, paths)

        return cast("Checkpoints", _Over(made, begin=begin))

    def _read(self, path: Path) -> BinaryIO:
        file = self._disk.read(path)
        if not self._is_shared(path):
            return file
        on_disk = file.read(MAX_FILE_BYTES + 1)
        if (unsaved := self._unsaved(path, on_disk)) is not None:
            file.close()
            return io.BytesIO(unsaved)
        file.seek(0)
        return file

    def _write(self, path: Path, content: bytes) -> None:
        """Leave exactly `content` on the disk, even if the editor does not save it, or reformats it."""
        decoded = decode(content)
        is_plain = decoded is not None and decoded.encoding == "utf-8" and not decoded.bom
        has_folder = self._disk.look(path.parent).kind is not None
        if decoded is not None and is_plain and has_folder and self._is_shared(path):
            params = {**self._about(path), "content": decoded.text}
            try:
                self._wait(self._client.connection.request("fs/write_text_file", params))
            except (RpcError, TimeoutError) as error:
                raise PermissionError(errno.EACCES, f"the editor did not write it: {error}") from error
            if self._on_disk(path) == content:
                return
        self._disk.write(path, content)

    def _save(self, path: Path) -> None:
        """Raises `ToolError`."""
        on_disk = self._on_disk(path)
        if on_disk is None or not self._is_shared(path):
            return
        try:
            if (unsaved := self._unsaved(path, on_disk)) is not None:
                self._write(path, unsaved)
        except OSError as error:
            raise ToolError(
                f"The changes of {path.name} in the editor could not be saved: {error.strerror}."
            ) from error

    def _unsaved(self, path: Path, on_disk: bytes) -> bytes | None:
        """Return the file as the editor would save it; None if it has no unsaved changes."""
        if len(on_disk) > MAX_FILE_BYTES or (decoded := decode(on_disk)) is None or not decoded.is_certain:
            return None  # in a file of unknown encoding, other letters than the editor's are no change
        try:
            asked = self._client.request("fs/read_text_file", TextFile, **self._about(path))
            text = _lines(self._wait(asked).content)
        except (RpcError, TimeoutError) as error:
            log.debug("%s is read from the disk: %s", path, error)
            return None
        return None if text == _lines(decoded.text) else _as_saved(text, decoded)

    def _on_disk(self, path: Path) -> bytes | None:
        try:
            with self._disk.read(path) as file:
                return file.read()
        except OSError:
            return None

    def _is_shared(self, path: Path) -> bool:
        """True for the workspace's files that git does not obey; False in the event loop, which cannot wait."""
        try:
            if asyncio.get_running_loop() is self._loop:
                return False
        except RuntimeError:
            pass  # in a thread, as it should be
        roots = tuple(self._roots())
        if not any(map(path.is_relative_to, roots)):
            return False
        return not self._disk.look(path, "write", Grants(roots=roots)).is_auto_executed

    def _about(self, path: Path) -> dict[str, Any]:
        """The path is the editor's own, which may have opened the folder through a link."""
        if path.is_relative_to(self._real_cwd):
            path = self._cwd / path.relative_to(self._real_cwd)
        return {"sessionId": self._session_id, "path": str(path)}

    def _wait(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(asked, FILE_TIMEOUT_S), self._loop).result()


class _Over:
    """An object with some of its methods replaced."""

    def __init__(self, made: object, **methods: Any) -> None:
        self._made = made
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def _lines(text: str) -> str:
    """A text as editors hold it: line ends and a byte order mark are not part of it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _as_saved(text: str, before: DecodedText) -> bytes:
    if 0 < before.text.count("\n") == before.text.count("\r\n"):
        text = text.replace("\n", "\r\n")
    try:
        return before.encoded(text)
    except ToolError:  # the encoding lacks a character: the editor will need another one, too
        return text.encode()
