"""The far end of `RemoteSandbox`: in a file system of its own it does what it is asked, on a `LocalSandbox`.

Both ends write JSON, an object a line, as `json` has it: that keeps names and commands that are no Unicode. Any number
of calls are under way at once. The last reply to a call is its answer or its error; the ones before hold its output.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import sys
import threading
import typing
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.sandbox import Sandbox

T = TypeVar("T")


class Request(Struct):
    """A method of the sandbox and its arguments; or for a call under way, `cancel` or `detach`."""

    call: int
    method: str
    given: dict[str, Any] = {}


class Reply(Struct):
    call: int
    kind: Literal["part", "answer", "error"]
    value: Any = None


class Raised(Struct):
    """An error of the far end. `name` is ToolError, OSError, CancelledError, or of an error nobody promised."""

    name: str
    message: str
    kind: ToolErrorKind = "internal_error"
    code: str = ""
    errno: int | None = None
    strerror: str = ""


def encode(message: Request | Reply) -> bytes:
    return json.dumps(msgspec.to_builtins(message, enc_hook=str)).encode() + b"\n"


def decode(line: bytes, type: type[T]) -> T:
    return cast("T", converted(json.loads(line), type))


def converted(value: Any, type: Any) -> Any:
    return msgspec.convert(value, type, dec_hook=lambda path, text: path(text))


def types_of(method: str) -> dict[str, Any]:
    """The types of a method's arguments and, as `return`, of what it gives, as the protocol has them."""
    declared = getattr(Sandbox, method)
    function = declared.fget if isinstance(declared, property) else declared
    # Nothing confines commands at the far end, so none can be tried there, and no trial has to travel.
    types = typing.get_type_hints(function, localns={"DryRun": typing.Never})
    return {name: bytes if type is BinaryIO else type for name, type in types.items()}


class Server:
    """Does what one client asks for until it hangs up."""

    def __init__(self, connection: socket.socket, sandbox: LocalSandbox) -> None:
        self._connection = connection
        self._sandbox = sandbox
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._detach: dict[int, asyncio.Event] = {}

    async def serve(self) -> None:
        with self._connection.makefile("rb") as lines:
            async with asyncio.TaskGroup() as group:
                while line := await asyncio.to_thread(lines.readline):
                    request = decode(line, Request)
                    if request.method == "cancel" and request.call in self._tasks:
                        self._tasks[request.call].cancel()
                    elif request.method == "detach" and request.call in self._detach:
                        self._detach[request.call].set()
                    elif request.method not in ("cancel", "detach"):
                        self._tasks[request.call] = group.create_task(self._reply(request))
                for task in self._tasks.values():
                    task.cancel()
        await self._sandbox.aclose()

    async def _reply(self, request: Request) -> None:
        try:
            reply = Reply(request.call, "answer", await self._answer(request.call, request.method, request.given))
        except (Exception, asyncio.CancelledError) as error:
            reply = Reply(request.call, "error", _raised(error))
        self._tasks.pop(request.call, None)
        self._detach.pop(request.call, None)
        self._send(reply)

    async def _answer(self, call: int, method: str, given: dict[str, Any]) -> Any:
        types = types_of(method)
        arguments = {name: converted(value, types[name]) for name, value in given.items()}
        hearer = next((name for name in ("take", "on_output") if name in types), None)
        if hearer:
            arguments[hearer] = lambda part: self._send(Reply(call, "part", part))
        if "detach" in types:
            arguments["detach"] = self._detach[call] = asyncio.Event()
        found = getattr(self._sandbox, method)
        found = found(**arguments) if callable(found) else found
        found = await found if inspect.isawaitable(found) else found
        if method == "read":
            with found:
                return found.read()
        return found

    def _send(self, reply: Reply) -> None:
        """From any thread. A client that hung up hears nothing more."""
        with self._sending:
            try:
                self._connection.sendall(encode(reply))
            except ConnectionError:
                return


def _raised(error: BaseException) -> Raised:
    match error:
        case ToolError():
            return Raised("ToolError", str(error), error.kind, error.code)
        case OSError():
            return Raised("OSError", str(error), errno=error.errno, strerror=error.strerror or "")
    return Raised(type(error).__name__, str(error))


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    given = json.loads(os.environ["REMOTE_SANDBOX"])
    place = Path(given["place"])
    sandbox = LocalSandbox(
        [place / "ws"], environment=given["environment"], job_folder=place / "jobs", session_id=given["session_id"]
    )
    asyncio.run(Server(connection, sandbox).serve())


if __name__ == "__main__":
    main()
