"""Speaks JSON-RPC 2.0 (jsonrpc.org/specification) over two pipes: one message per line, requests in both directions."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Any, BinaryIO

from agentcli.frontends.json_input import decode_input, read_lines
from agentcli.llm.messages import encode_json

log = logging.getLogger(__name__)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
AUTH_REQUIRED, NOT_FOUND, CANCELLED = -32000, -32002, -32800  # defined by ACP

MAX_UNREAD_BYTES = 1024 * 1024  # while more than this is unwritten, `wait_for_room` makes senders of updates wait
NO_MESSAGE = "Invalid request: this is not a JSON-RPC 2.0 message."
FLUSH_TIMEOUT_S = 2.0  # at the end, for a peer that does not read

RequestId = str | int | None


class RpcError(Exception):
    """The failure of a request: one to send to the peer, or one received from it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Connection:
    """A connection to a peer that reads from `out`. `handle` answers requests, each in a task; it raises `RpcError`."""

    def __init__(
        self,
        out: int,
        *,
        handle: Callable[[str, dict[str, Any]], Awaitable[Any]],
        on_notification: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._handle, self._on_notification = handle, on_notification
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()  # received; None ends `run`
        self.out = Output(out, on_failure=self.close)
        self._answering: dict[RequestId, asyncio.Task[None]] = {}  # the peer's requests, by id
        self._requests: dict[int, asyncio.Future[Any]] = {}  # our requests, by id
        self._ids = count()

    async def run(self, input: BinaryIO) -> None:
        read_lines(input, self._lines)
        while (line := await self._lines.get()) is not None:
            self._receive(line)
        self.out.stop_backpressure()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(RpcError(CANCELLED, "The client has disconnected."))

    def close(self) -> None:
        self._lines.put_nowait(None)

    async def aclose(self) -> None:
        """Cancel unanswered requests, and wait until everything is written or the peer has stopped reading."""
        await asyncio.sleep(0)  # lets the newest requests begin, because a task that has not begun sends no answer
        for task in self._answering.values():
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering.values())
        await self.out.aclose()

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result. Cancellation is passed on to the peer. Raises `RpcError`."""
        id = next(self._ids)
        self._requests[id] = asyncio.get_running_loop().create_future()
        self._send(id=id, method=method, params=params)
        try:
            return await self._requests[id]
        except asyncio.CancelledError:
            self.notify("$/cancel_request", {"requestId": id})
            raise
        finally:
            del self._requests[id]

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send(method=method, params=params)

    def _send(self, **fields: Any) -> None:
        self.out.write(encode_json({"jsonrpc": "2.0", **fields}) + b"\n")

    def _receive(self, line: bytes) -> None:
        try:
            message = decode_input(line)
        except ValueError as error:
            self._send_error(None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        match message:
            case {"id": bool()}:  # `bool` would match `int` below
                self._send_error(None, RpcError(INVALID_REQUEST, NO_MESSAGE))
            case {"jsonrpc": "2.0", "id": str() | int() | None as id, "method": str(method)}:
                self._receive_request(id, method, message.get("params"))
            case {"jsonrpc": "2.0", "method": str(method)} if "id" not in message:
                self._receive_notification(method, message.get("params"))
            case {"jsonrpc": "2.0", "id": int(id), "result": result}:
                self._receive_answer(id, result=result)
            case {"jsonrpc": "2.0", "id": int(id), "error": error}:
                self._receive_answer(id, error=error)
            case {"id": str() | int() as id}:
                self._send_error(id, RpcError(INVALID_REQUEST, NO_MESSAGE))
            case _:
                self._send_error(None, RpcError(INVALID_REQUEST, NO_MESSAGE))

    def _receive_request(self, id: RequestId, method: str, params: Any) -> None:
        if id in self._answering:
            message = f"Invalid request: the request {id!r} is still in progress."
            self._send_error(id, RpcError(INVALID_REQUEST, message))
            return
        task = self._answering[id] = asyncio.create_task(self._answer(id, method, params))
        task.add_done_callback(lambda _: self._answering.pop(id))

    async def _answer(self, id: RequestId, method: str, params: Any) -> None:
        try:
            self._send(id=id, result=await self._handle(method, _as_object(params)))
        except RpcError as error:
            self._send_error(id, error)
        except asyncio.CancelledError:  # the client sent $/cancel_request, or the connection is closing
            self._send_error(id, RpcError(CANCELLED, "The request was cancelled."))
        except Exception as bug:  # a bug in one request must not end the other sessions
            log.exception("%s failed", method)
            self._send_error(id, RpcError(INTERNAL_ERROR, f"Internal error: {bug!r}. The log has details."))

    def _send_error(self, id: RequestId, error: RpcError) -> None:
        data = {"data": error.data} if error.data is not None else {}
        self._send(id=id, error={"code": error.code, "message": str(error), **data})

    def _receive_notification(self, method: str, params: Any) -> None:
        """Cancel a request that is being answered, or pass the notification on. Notifications get no answer."""
        try:
            match method, _as_object(params):
                case "$/cancel_request", {"requestId": str() | int() as id} if id in self._answering:
                    self._answering[id].cancel()
                case _, fields:
                    self._on_notification(method, fields)
        except RpcError as error:
            log.warning("%s: %s", method, error)

    def _receive_answer(self, id: int, *, result: Any = None, error: Any = None) -> None:
        future = self._requests.get(id)
        if future is None or future.done():  # the request was cancelled, or never sent
            return
        match error:
            case None:
                future.set_result(result)
            case {"code": int(code), "message": str(message)}:
                future.set_exception(RpcError(code, message, error.get("data")))
            case _:
                future.set_exception(RpcError(INTERNAL_ERROR, f"The client failed: {error!r:.200}"))


def _as_object(params: Any) -> dict[str, Any]:
    """Return the parameters as an object, which is empty if there are none. Raises `RpcError` for other values."""
    if params is None or isinstance(params, dict):
        return params or {}
    raise RpcError(INVALID_PARAMS, "Invalid params: expected an object.")


class Output:
    """Writes to a descriptor in a thread, so that a peer that does not read blocks nothing else."""

    def __init__(self, out: int, *, on_failure: Callable[[], None]) -> None:
        self._out = out
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._lines: SimpleQueue[bytes] = SimpleQueue()  # for the thread
        self._unwritten = 0  # bytes of the lines that the thread has not written, because the peer must read first
        self._has_backpressure = True  # `wait_for_room` waits for the peer, until the connection ends
        self._has_failed = False  # the peer has closed its end
        self._progress = asyncio.Event()  # set when the thread has written something, or waiting is pointless
        threading.Thread(target=self._write_lines, name="agentcli-stdout", daemon=True).start()

    def write(self, line: bytes) -> None:
        if not self._has_failed:
            self._unwritten += len(line)
            self._lines.put(line)

    async def wait_for_room(self) -> None:
        while self._unwritten > MAX_UNREAD_BYTES and self._has_backpressure:
            await self._next_progress()

    def stop_backpressure(self) -> None:
        self._has_backpressure = False
        self._progress.set()

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while self._unwritten and not self._has_failed:
                    await self._next_progress()
        except TimeoutError:
            log.warning("the client has not read the last %d bytes", self._unwritten)

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _write_lines(self) -> None:
        with suppress(RuntimeError):  # the event loop has ended, so nobody waits any more
            try:
                while True:
                    line = memoryview(self._lines.get())
                    while line:
                        written = os.write(self._out, line)
                        line = line[written:]
                        self._loop.call_soon_threadsafe(self._note_written, written)
            except OSError:
                self._loop.call_soon_threadsafe(self._fail)

    def _note_written(self, size: int) -> None:
        self._unwritten -= size
        self._progress.set()

    def _fail(self) -> None:
        self._has_failed = True
        self.stop_backpressure()
        self._on_failure()
