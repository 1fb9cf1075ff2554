"""A sandbox whose files lie on another machine, as far as tools can tell: in a mount namespace, behind a socket."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, BinaryIO

from agentcli.tools.command import NO_GRANTS, Command, CommandResult, Grants
from agentcli.tools.sandbox import Listing, PathStatus, Sandbox, Search, SearchOutcome, Use

# A folder of every Linux system, so that nothing has to be made on the real disk. The far end sees another one there.
PLACE = Path("/srv")

_CHECKOUT = Path(__file__).parents[2]


@cache
def why_not_remote() -> str:
    """Why there can be no such sandbox on this machine; empty where there can."""
    if not shutil.which("bwrap"):
        return "no bubblewrap"
    if not PLACE.is_dir() or (PLACE / "ws").exists():
        return f"{PLACE} is missing, or has a ws of its own"
    probe = subprocess.run([*_namespace(PLACE), "true"], capture_output=True, text=True, check=False)
    return probe.stderr if probe.returncode else ""


def _namespace(folder: Path) -> list[str]:
    """All but `PLACE` is as it is outside, process ids too."""
    return ["bwrap", "--dev-bind", "/", "/", "--bind", str(folder), str(PLACE), "--die-with-parent", "--chdir", "/"]


class RemoteSandbox:
    """Implements `Sandbox`. `folder` is what the far end has at `PLACE`; the workspace is `ws` in it."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str], session_id: str = "") -> None:
        self._folder = folder
        self._address = f"\0agentcli-{uuid.uuid4()}"
        given = {
            "place": str(PLACE),
            "environment": dict(environment),
            "session_id": session_id,
            "address": self._address,
        }
        self._server = subprocess.Popen(
            [*_namespace(folder), sys.executable, "-m", "tests.conformance.remote_server", json.dumps(given)],
            env={**os.environ, "PYTHONPATH": str(_CHECKOUT)},
            stdout=subprocess.PIPE,
        )
        self._threads = ThreadPoolExecutor(64)  # one for each call that is waited for
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        self.jobs: Any = _Part(self._ask, "jobs", {"list": self._ask, "read": self._ask, "stop": self._await})

    def on_disk(self, path: Path) -> Path:
        """Where a path of the far end's lies on this machine."""
        return self._folder / path.relative_to(PLACE)

    @property
    def server_pids(self) -> tuple[int, ...]:
        """The processes of the far end: bubblewrap, which waits for the server, and the server."""
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        return (self._server.pid, *map(int, children))

    def facts(self, grants: Grants = NO_GRANTS) -> Any:
        methods = {"exposed_secrets": self._ask, "secret_values": self._ask}
        return _Part(self._ask, "facts", methods, grants)

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        return self._ask("look", path, use, grants)

    def read(self, path: Path) -> BinaryIO:
        return io.BytesIO(self._ask("read", path))

    def write(self, path: Path, content: bytes) -> None:
        self._ask("write", path, content)

    async def search(
        self, query: Listing | Search, take: Callable[[Any], None], grants: Grants = NO_GRANTS
    ) -> SearchOutcome:
        return await self._await("search", query, hear=take, grants=grants)

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: Any = None,
    ) -> CommandResult:
        hear = partial(asyncio.get_running_loop().call_soon_threadsafe, on_output)
        is_detached = detach is not None and detach.is_set()
        return await self._await("run", command, hear=hear, detach=detach, is_detached=is_detached)

    async def aclose(self) -> None:
        if self._server.poll() is None:
            await self._await("aclose")
            self._server.terminate()
            self._server.communicate()
            self._threads.shutdown()

    def _call(self, what: str, given: tuple[Any, ...], named: dict[str, Any]) -> Connection:
        connection = Client(self._address)
        connection.send((what, given, named))
        return connection

    def _ask(self, what: str, *given: Any, **named: Any) -> Any:
        with self._call(what, given, named) as connection:
            return _follow(connection)

    async def _await(
        self, what: str, *given: Any, hear: Callable[[Any], object] = print, detach: Any = None, **named: Any
    ) -> Any:
        """A cancelled call waits until it has ended over there too."""
        is_cancelled = Event()
        with self._call(what, given, named) as connection:
            passing_on = asyncio.create_task(_pass_on(detach, connection)) if detach else None
            work = partial(_follow, connection, lambda part: is_cancelled.is_set() or hear(part))
            following = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(following)
            except asyncio.CancelledError:
                is_cancelled.set()
                connection.send("cancel")
                await asyncio.wait([following])
                raise
            finally:
                if passing_on:
                    passing_on.cancel()


class _Part:
    """A part of the far end's sandbox; of its attributes these are methods."""

    def __init__(self, ask: Callable[..., Any], name: str, methods: Mapping[str, Any], *given: Any) -> None:
        self._ask, self._name, self._methods, self._given = ask, name, methods, given

    def __getattr__(self, name: str) -> Any:
        ask = partial(self._methods.get(name, self._ask), f"{self._name}.{name}", *self._given)
        return ask if name in self._methods else ask()


async def _pass_on(detach: asyncio.Event, connection: Connection) -> None:
    await detach.wait()
    connection.send("detach")


def _follow(connection: Connection, hear: Callable[[Any], object] = print) -> Any:
    """Wait for the end of a call. When a hearer fails, the call ends and the failure is passed on."""
    while (received := connection.recv())[0] == "part":
        hear(received[1])
    connection.send("end")
    with suppress(EOFError):
        connection.recv()
    if received[0] == "error":
        raise received[1]
    return received[1]


if TYPE_CHECKING:
    _: type[Sandbox] = RemoteSandbox
