"""Gives this process a running llama.cpp server for one model file, shared with every other agentcli process.

`acquire` finds the server that is already running for the model and context, or starts one, and holds a
connection to it; the server ends by itself when nobody holds one any more (child.py). A file lock makes two
programs that start at once share one server; a record file says where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import filelock
import msgspec

from agentcli.errors import UserError
from agentcli.llm.local_server.gguf import read_header, stamp_of
from agentcli.settings.files import make_private_folder

DEFAULT_CONTEXT = 8192
"""Tokens; the pinned model needs about 230 MB of memory for them."""

START_DEADLINE_S = 120.0
"""Longest that loading a model may take; the pinned one takes 2 to 6 s."""

ANSWER_DEADLINE_S = 5.0
"""A running server answers its control socket and its health address within milliseconds."""

LEAST_FREE_TO_LINGER = 4 * 1024**3
"""Bytes of free memory before the start; with less the server ends with its last user."""

_READY = b"ready\n"
_LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's limits are 108 (Linux) and 104 (macOS) with the closing zero."""


class LocalServer:
    """A running server that stays up at least until `release`; `release` may be called any number of
    times.
    """

    def __init__(self, record: _Record, connection: socket.socket) -> None:
        self.base_url = f"http://127.0.0.1:{record.port}/v1"
        self.api_key = record.api_key
        self.pid = record.pid
        self._connection = connection

    @property
    def is_running(self) -> bool:
        """False once the server has ended or crashed, or was released; then `acquire` gives a new one."""
        if self._connection.fileno() < 0:
            return False
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def release(self) -> None:
        """Stops using the server; it ends when it was the last use, after the linger time it was started
        with.
        """
        self._connection.close()


async def acquire(
    *,
    model_path: Path,
    state_folder: Path,
    context: int = DEFAULT_CONTEXT,
    linger_s: float = 0.0,
    on_wait: Callable[[str], None] | None = None,
) -> LocalServer:
    """Gives a server that is ready for requests.

    `context` is in tokens (no more than the model was trained for is used). `linger_s` counts only when this
    call starts the server. `on_wait` is told, once, what is waited for. Raises UserError when the file is no
    GGUF model, the engine is not installed, or the server does not come up; the message then ends with the
    last lines of its log.
    """
    model_path = _readable_model(model_path)
    places = _Places.of(state_folder, model_path, context)
    async with _locked(places.lock, on_wait):
        running = await _join_running(places, model_path)
        if running is not None:
            return running
        _require_engine()
        await _end_unused(places)
        if _free_memory() < LEAST_FREE_TO_LINGER:
            linger_s = 0.0
        if on_wait is not None:
            stays = f"; it stays for {linger_s:g} s after its last use (agentcli local stop)" if linger_s else ""
            on_wait(f"starting the local model ({model_path.name}){stays}")
        return await _start(places, model_path, context, linger_s)


def _free_memory() -> int:
    """Bytes that programs could still have; all there is where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Running(msgspec.Struct, frozen=True):
    """A server that runs now. `linger_s` is how long it outlives its last user."""

    pid: int
    model: str
    context: int
    linger_s: float


async def running_servers(state_folder: Path) -> list[Running]:
    found = []
    for record in _records(_folder(state_folder)):
        if (server := await _connect_ready(record)) is not None:
            server.release()
            found.append(Running(record.pid, record.model, record.context, record.linger))
    return found


async def stop_servers(state_folder: Path) -> int:
    """End all servers, also those that are in use; gives how many there were."""
    ended = [await _tell(record, b"stop\n") for record in _records(_folder(state_folder))]
    return sum(ended)


async def _end_unused(places: _Places) -> None:
    """End the servers of other models that only linger: two would take twice the memory."""
    for record in _records(places.record.parent):
        await _tell(record, b"yield\n")


async def _tell(record: _Record, word: bytes) -> bool:
    """Say something to a server; whether it ended within a second or two."""
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            connection = await _connect(Path(record.control))
    except (OSError, TimeoutError):
        return False
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(connection, word)
        async with asyncio.timeout(2):
            while await loop.sock_recv(connection, 64):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        connection.close()
    return True


def _records(folder: Path) -> Iterator[_Record]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            yield msgspec.json.decode(path.read_bytes(), type=_Record)


def _readable_model(path: Path) -> Path:
    path = path.expanduser().resolve()
    read_header(path)
    return path


class _Record(msgspec.Struct, frozen=True):
    """Where a running server is: what child.py writes."""

    pid: int
    port: int
    api_key: str
    model: str
    context: int
    control: str
    stamp: str
    linger: float


def _folder(state_folder: Path) -> Path:
    return state_folder.expanduser().resolve() / "local-server"


class _Places(msgspec.Struct, frozen=True):
    """The files of the server for one model and context."""

    record: Path
    lock: Path
    log: Path
    control: Path

    @staticmethod
    def of(state_folder: Path, model_path: Path, context: int) -> _Places:
        folder = _folder(state_folder)
        make_private_folder(folder)
        key = hashlib.sha256(f"{model_path}\0{context}".encode()).hexdigest()[:16]
        control = folder / f"{key}.sock"
        if len(os.fsencode(control)) > _LONGEST_SOCKET_PATH:
            short = hashlib.sha256(os.fsencode(control)).hexdigest()[:16]
            control = _private_temporary_folder() / f"{short}.sock"
        return _Places(folder / f"{key}.json", folder / f"{key}.lock", folder / f"{key}.log", control)


def _private_temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"agentcli-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(f"{folder} is not a private folder of yours. Remove it, or set TMPDIR to a folder of your own.")
    return folder


@contextlib.asynccontextmanager
async def _locked(path: Path, on_wait: Callable[[str], None] | None) -> AsyncIterator[None]:
    """Holds the lock without blocking the event loop; a kill of the holder frees it."""
    lock = filelock.FileLock(path)
    told = False
    while True:
        try:
            lock.acquire(blocking=False)
            break
        except filelock.Timeout:
            if on_wait is not None and not told:
                on_wait("waiting for another agentcli that is starting the local model")
                told = True
            await asyncio.sleep(0.1)
    try:
        yield
    finally:
        lock.release()


async def _join_running(places: _Places, model_path: Path) -> LocalServer | None:
    """The server of the record, if it lives, answers, is healthy and has read this file; a stale record is removed."""
    try:
        record = msgspec.json.decode(places.record.read_bytes(), type=_Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        record = None
    if record is not None and record.stamp != stamp_of(model_path):
        await _tell(record, b"stop\n")
    elif record is not None and (server := await _connect_ready(record)) is not None:
        return server
    places.record.unlink(missing_ok=True)
    return None


async def _connect_ready(record: _Record) -> LocalServer | None:
    connection: socket.socket | None = None
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            connection = await _connect(Path(record.control))
            if await _hears_ready(connection) and await _is_healthy(record.port):
                return LocalServer(record, connection)
    except (OSError, TimeoutError):
        pass
    if connection is not None:
        connection.close()
    return None


async def _connect(control: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, str(control))
    except BaseException:
        connection.close()
        raise
    return connection


async def _hears_ready(connection: socket.socket) -> bool:
    """Waits for the server's `ready`; False when it ends instead."""
    heard = b""
    while heard != _READY:
        more = await asyncio.get_running_loop().sock_recv(connection, len(_READY) - len(heard))
        if not more:
            return False
        heard += more
    return True


async def _is_healthy(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        await writer.drain()
        status = await reader.readline()
        return status.split()[1:2] == [b"200"]
    finally:
        writer.close()


def _require_engine() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise UserError(
            "Running a model on this machine needs the package xllamacpp. "
            "Run `./install.sh --extras local` or `pip install 'agentcli[local]'`."
        )


async def _start(places: _Places, model_path: Path, context: int, linger_s: float) -> LocalServer:
    process = _launch(places, model_path, context, linger_s)
    connection: socket.socket | None = None
    try:
        async with asyncio.timeout(START_DEADLINE_S):
            connection = await _connect_when_listening(process, places.control)
            if connection is not None and await _hears_ready(connection):
                record = msgspec.json.decode(places.record.read_bytes(), type=_Record)
                return LocalServer(record, connection)
        told = _log_tail(places.log)
        if "libgomp" in told:
            raise UserError(
                "The embedded model's engine needs libgomp: apt-get install libgomp1 (or your system's GCC runtime)."
            )
        raise UserError(f"The local model server ended while starting.{told}")
    except TimeoutError as error:
        _end(process, connection)
        message = f"The local model server was not ready after {START_DEADLINE_S:.0f} s.{_log_tail(places.log)}"
        raise UserError(message) from error
    except BaseException:
        _end(process, connection)
        raise


def _launch(places: _Places, model_path: Path, context: int, linger_s: float) -> subprocess.Popen[bytes]:
    # -P and the package's own folder in place of the working directory: that may be a stranger's project.
    package_root = str(Path(__file__).parents[3])
    search = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-P", "-m", "agentcli.llm.local_server.child"]
    command += ["--model", str(model_path), "--context", str(context), "--linger", str(linger_s)]
    command += ["--record", str(places.record), "--control", str(places.control)]
    descriptor = os.open(places.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=places.record.parent,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )
    # It may outlive this program; while this one runs, its end is collected so that no zombie stays.
    threading.Thread(target=process.wait, name="reap-local-server", daemon=True).start()
    return process


async def _connect_when_listening(process: subprocess.Popen[bytes], control: Path) -> socket.socket | None:
    """A control connection to the new process; None when it ended before it listened."""
    while process.poll() is None:
        try:
            return await _connect(control)
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(0.02)
    return None


def _end(process: subprocess.Popen[bytes], connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def _log_tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    tail = "".join(f"\n  {line}" for line in lines[-6:])
    return f" The end of its log ({log}):{tail}" if tail else f" Its log is {log}."
