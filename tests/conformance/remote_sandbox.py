"""A sandbox whose files lie on another machine, as far as tools can tell: in a mount namespace, behind a socket."""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast, get_args

from agentcli.errors import ToolError
from agentcli.tools.sandbox import Sandbox
from tests.conformance.remote_server import Raised, Reply, Request, converted, decode, encode, types_of

# A folder of every Linux system, so that nothing has to be made on the real disk. The far end sees another one there.
PLACE = Path("/srv")

_CHECKOUT = Path(__file__).parents[2]

F = TypeVar("F", bound=Callable[..., Any])


@cache
def why_not_remote() -> str:
    """Why there can be no such sandbox on this machine; empty where there can."""
    if not shutil.which("bwrap"):
        return "no bubblewrap"
    if not PLACE.is_dir() or (PLACE / "ws").exists():
        return f"{PLACE} is missing, or has a ws of its own"
    tried = subprocess.run([*_namespace(PLACE), "true"], capture_output=True, text=True, check=False)
    return tried.stderr if tried.returncode else ""


def _namespace(folder: Path) -> list[str]:
    """All but `PLACE` is as it is outside, process ids too."""
    return ["bwrap", "--dev-bind", "/", "/", "--bind", str(folder), str(PLACE), "--die-with-parent", "--chdir", "/"]


def _over_there(method: F) -> F:
    """A method of the protocol that the far end does, with the arguments it was given here."""
    signature = inspect.signature(method)

    def send(self: RemoteSandbox, *given: Any, **named: Any) -> Any:
        arguments = signature.bind(self, *given, **named).arguments
        del arguments["self"]
        do = self._await if inspect.iscoroutinefunction(method) else self._ask
        return do(method.__name__, arguments)

    return cast("F", send)


class RemoteSandbox:
    """Implements `Sandbox`. `folder` is what the far end has at `PLACE`; the workspace is `ws` in it."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str], session_id: str = "") -> None:
        self._folder = folder
        self._connection, theirs = socket.socketpair()
        given = {"place": str(PLACE), "environment": dict(environment), "session_id": session_id}
        with theirs:
            self._server = subprocess.Popen(
                [*_namespace(folder), sys.executable, "-m", "tests.conformance.remote_server", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(_CHECKOUT), "REMOTE_SANDBOX": json.dumps(given)},
                pass_fds=[theirs.fileno()],
            )
        self._numbers = itertools.count()
        self._replies: dict[int, SimpleQueue[Reply]] = {}
        self._sending = threading.Lock()
        self._is_closed = False
        self._reader = threading.Thread(target=self._sort_replies, daemon=True)
        self._reader.start()
        self._threads = ThreadPoolExecutor(64)  # one for each call that is waited for

    def on_disk(self, path: Path) -> Path:
        """Where a path of the far end's lies on this machine."""
        return self._folder / path.relative_to(PLACE)

    @property
    def server_pids(self) -> tuple[int, ...]:
        """The processes of the far end: bubblewrap, which waits for the server, and the server."""
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        return (self._server.pid, *map(int, children))

    roots = property(lambda self: self._ask("roots", {}))
    profile = property(lambda self: self._ask("profile", {}))
    confines = property(lambda self: self._ask("confines", {}))
    validate_path = _over_there(Sandbox.validate_path)
    real_path = _over_there(Sandbox.real_path)
    knows = _over_there(Sandbox.knows)
    exposed_secrets = _over_there(Sandbox.exposed_secrets)
    program_of_git = _over_there(Sandbox.program_of_git)
    secret_values = _over_there(Sandbox.secret_values)
    grant = _over_there(Sandbox.grant)
    revoke = _over_there(Sandbox.revoke)
    status = _over_there(Sandbox.status)
    write = _over_there(Sandbox.write)
    list = _over_there(Sandbox.list)
    search = _over_there(Sandbox.search)
    exec = _over_there(Sandbox.exec)
    why_no_trial = _over_there(Sandbox.why_no_trial)
    try_command = _over_there(Sandbox.try_command)
    start_job = _over_there(Sandbox.start_job)
    jobs = _over_there(Sandbox.jobs)
    read_job = _over_there(Sandbox.read_job)
    stop_job = _over_there(Sandbox.stop_job)
    grant_host = _over_there(Sandbox.grant_host)
    revoke_host = _over_there(Sandbox.revoke_host)
    warning = _over_there(Sandbox.warning)
    told = _over_there(Sandbox.told)
    add_root = _over_there(Sandbox.add_root)

    def read(self, path: Path) -> BinaryIO:
        return io.BytesIO(self._ask("read", {"path": path}))

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._await("aclose", {})
        finally:
            self._connection.shutdown(socket.SHUT_RDWR)
            self._reader.join()
            self._threads.shutdown()
            self._connection.close()
            self._server.wait(10)

    def _ask(self, method: str, given: dict[str, Any]) -> Any:
        return _value(method, self._follow(self._call(method, given)))

    async def _await(self, method: str, given: dict[str, Any]) -> Any:
        """A cancelled call waits until it has ended over there too."""
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()
        take, on_output, detach = (given.pop(name, None) for name in ("take", "on_output", "detach"))

        def hear(part: Any) -> None:
            if on_output:
                loop.call_soon_threadsafe(on_output, part)
            elif take and not is_cancelled.is_set():
                take(converted(part, get_args(types_of(method)["take"])[0][0]))

        call = self._call(method, given)
        passing_on = asyncio.create_task(self._pass_on(detach, call)) if detach else None
        following = loop.run_in_executor(self._threads, self._follow, call, hear)
        try:
            return _value(method, await asyncio.shield(following))
        except asyncio.CancelledError:
            is_cancelled.set()
            self._send(Request(call, "cancel"))
            await following
            raise
        finally:
            if passing_on:
                passing_on.cancel()

    async def _pass_on(self, detach: asyncio.Event, call: int) -> None:
        await detach.wait()
        self._send(Request(call, "detach"))

    def _call(self, method: str, given: dict[str, Any]) -> int:
        call = next(self._numbers)
        self._replies[call] = SimpleQueue()
        self._send(Request(call, method, given))
        return call

    def _send(self, request: Request) -> None:
        with self._sending:
            self._connection.sendall(encode(request))

    def _follow(self, call: int, hear: Callable[[Any], None] = lambda part: None) -> Reply:
        """The last reply to a call. When a hearer fails, the call ends and the failure is passed on."""
        replies = self._replies[call]
        try:
            while (reply := replies.get()).kind == "part":
                hear(reply.value)
            return reply
        except BaseException:
            self._send(Request(call, "cancel"))
            while replies.get().kind == "part":
                pass
            raise
        finally:
            del self._replies[call]

    def _sort_replies(self) -> None:
        """Runs in a thread of its own until the far end hangs up, which ends every call."""
        with self._connection.makefile("rb") as lines:
            for line in lines:
                reply = decode(line, Reply)
                self._replies[reply.call].put(reply)
        for call, replies in list(self._replies.items()):
            replies.put(Reply(call, "error", Raised("ConnectionError", "the far end is gone")))


def _value(method: str, reply: Reply) -> Any:
    if reply.kind == "answer":
        return converted(reply.value, types_of(method)["return"])
    error = converted(reply.value, Raised)
    match error.name:
        case "ToolError":
            raise ToolError(error.message, kind=error.kind, code=error.code)
        case "OSError":
            raise OSError(error.errno, error.strerror) if error.errno else OSError(error.message)
    raise RuntimeError(f"{error.name}: {error.message}")


if TYPE_CHECKING:
    _: type[Sandbox] = RemoteSandbox
