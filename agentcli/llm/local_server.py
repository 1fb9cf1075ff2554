"""Runs the embedded model: one llama.cpp server for each model file, shared by all agentcli processes.

`acquire` returns a running server, or starts this module as a process of its own:

    python -m agentcli.llm.local_server MODEL CONTEXT LINGER CONTROL LISTENER

The control socket of a server (CONTROL, descriptor LISTENER) is in a folder that only this account can enter. Each
connection to it is a user of the server, and is sent a `ServerInfo` with the address and the key once the model is
loaded. The process ends LINGER seconds after its last user left, on `yield` if there is no other user, or on `stop`.
"""

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from agentcli.errors import UserError
from agentcli.settings.files import FileLock, make_private_folder
from agentcli.version import __version__

START_DEADLINE_S = 120.0  # for loading a model; the pinned one takes 2 to 6 s
ANSWER_DEADLINE_S = 5.0  # a running server answers within milliseconds
_MAX_FOLDER_BYTES = 80  # a socket's path may have 104 (macOS), with its name of 17 and a zero byte


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. `stamp` identifies the model file it read; it outlives its last user by `linger_s` seconds."""

    pid: int
    port: int
    api_key: str
    model: str
    context: int
    stamp: str
    linger_s: float


class LocalServer:
    """A running server. It stays up at least until `release`, which may be called any number of times."""

    def __init__(self, info: ServerInfo, connection: socket.socket) -> None:
        self.info, self._connection = info, connection
        self.base_url, self.api_key = f"http://127.0.0.1:{info.port}/v1", info.api_key

    @property
    def is_running(self) -> bool:
        """True until the server has ended, crashed, or was released; `acquire` then returns a new one."""
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except OSError as error:
            return isinstance(error, BlockingIOError)

    def release(self) -> None:
        """Stop using the server. It ends when its last user has left and its linger time is over."""
        self._connection.close()


async def acquire(
    *,
    model_path: Path,
    state_folder: Path,
    context: int,
    linger_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda text: None,
) -> LocalServer:
    """Return a server that has loaded the model, with a window of `context` tokens. Raises `UserError`.

    `linger_s` applies only if this call starts the server. `on_wait` is called with the reason for a longer wait.
    """
    model = _find_model(model_path)
    name = hashlib.sha256(f"{model}\0{context}".encode()).hexdigest()[:12]  # short, for the path of a socket
    control = _control_folder(state_folder) / f"{name}.sock"
    async with _locked(control.with_suffix(".lock"), on_wait):
        if (running := await _find_running(control, stamp_of(model))) is not None:
            return running
        if importlib.util.find_spec("xllamacpp") is None:
            raise UserError(
                "Running a model on this machine needs the package xllamacpp. Run `./install.sh --extras local` or "
                "`pip install 'agentcli[local]'`."
            )
        for other in control.parent.glob("*.sock"):  # ends servers without users: two models need twice the memory
            await _send_order(other, b"yield\n")
        lifetime = f" (kept for {linger_s:g} s after use; agentcli local stop)" if linger_s else ""
        on_wait(f"starting the local model{lifetime}")
        return await _start(control, model, context, linger_s)


async def running_servers(state_folder: Path) -> list[ServerInfo]:
    """Return the servers that have loaded their model and answer."""
    running = []
    for control in sorted(_control_folder(state_folder).glob("*.sock")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            server = await _wait_for_server(_connect(control), ANSWER_DEADLINE_S)
            server.release()
            running.append(server.info)
    return running


async def stop_servers(state_folder: Path) -> int:
    """End all servers, even if they are in use; return how many ended."""
    return sum([await _send_order(control, b"stop\n") for control in _control_folder(state_folder).glob("*.sock")])


def stamp_of(path: Path) -> str:
    """Return a text that identifies a file and this version of agentcli; empty if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{__version__} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _find_model(path: Path) -> Path:
    """Return the real path of a model file. Raises `UserError` if it is not a readable GGUF file."""
    path = path.expanduser().resolve()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"Could not read the model file {path}: {error.strerror or error}.") from error
    if magic != b"GGUF":
        raise UserError(f"{path} is not a GGUF model file. Only GGUF files can be run locally.")
    return path


def _control_folder(state_folder: Path) -> Path:
    """Return the private folder of sockets, locks and logs; a temporary one if its path is too long for a socket."""
    folder = state_folder.expanduser().resolve() / "local-server"
    if len(path := os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        own = Path(tempfile.gettempdir()) / f"agentcli-{os.getuid()}"
        own.mkdir(mode=0o700, exist_ok=True)
        status = own.lstat()  # anybody can create a folder of this name in /tmp, or a link
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise UserError(f"{own} is not private to you. Remove it, or set TMPDIR to a folder of your own.")
        folder = own / hashlib.sha256(path).hexdigest()[:12]
    make_private_folder(folder)
    return folder


@contextlib.asynccontextmanager
async def _locked(path: Path, on_wait: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the lock, without blocking the event loop. It is free again if its holder is killed."""
    lock = FileLock(path)
    if not lock.try_acquire():
        on_wait("waiting for another agentcli that is starting the local model")
        while not lock.try_acquire():
            await asyncio.sleep(0.1)
    try:
        yield
    finally:
        lock.release()


async def _find_running(control: Path, stamp: str) -> LocalServer | None:
    """Return the socket's server if it answers; stop it if its model file or its version is not that of `stamp`."""
    try:
        server = await _wait_for_server(_connect(control), ANSWER_DEADLINE_S)
        if server.info.stamp == stamp:
            return server
        server.release()
    except OSError:
        return None
    except msgspec.DecodeError:
        pass  # another version may have another form
    await _send_order(control, b"stop\n")
    return None


def _connect(control: Path) -> socket.socket:
    """Return a connection, at once, because a Unix socket does not wait. Raises `OSError` if nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(str(control))
    except OSError:
        connection.close()
        raise
    return connection


async def _wait_for_server(connection: socket.socket, deadline_s: float) -> LocalServer:
    """Return the server once it is ready. Raises `OSError` if it ends or is late, and `DecodeError`."""
    line = b""
    try:
        async with asyncio.timeout(deadline_s):
            while not line.endswith(b"\n"):
                more = await asyncio.get_running_loop().sock_recv(connection, 4096)
                if not more:
                    raise ConnectionResetError("The server has ended.")
                line += more
        return LocalServer(msgspec.json.decode(line, type=ServerInfo), connection)
    except BaseException:
        connection.close()
        raise


async def _send_order(control: Path, order: bytes) -> bool:
    """Send an order to a server; return True if it ended within two seconds."""
    try:
        with _connect(control) as connection:
            connection.send(order)
            async with asyncio.timeout(2):
                while await asyncio.get_running_loop().sock_recv(connection, 4096):
                    pass
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError):
        return False  # nobody listens, or the server is busy and does not end
    except OSError:
        pass  # the server ended, and the connection with it
    return True


async def _start(control: Path, model: Path, context: int, linger_s: float) -> LocalServer:
    """Start a server and return it once it is ready. Raises `UserError`."""
    log = control.with_suffix(".log")
    try:
        process, connection = _launch(control, [str(model), str(context), str(linger_s)], log)
        try:
            return await _wait_for_server(connection, START_DEADLINE_S)
        except BaseException as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # A server that ends by itself first writes the reason to its log; all others are killed at once.
                process.wait(timeout=2 if isinstance(error, ConnectionResetError) else 0)
            process.kill()
            process.wait()
            control.unlink(missing_ok=True)  # noqa: ASYNC240  too quick to need a thread
            raise
    except OSError as error:
        raise UserError(_start_failure_text(error, log)) from error


def _launch(control: Path, arguments: list[str], log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    # -P keeps the working directory, which may be a stranger's project, off the import path.
    python_path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, log.open("wb") as output:
        control.unlink(missing_ok=True)  # of a server that was killed, or hangs
        listener.bind(str(control))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentcli.llm.local_server", *arguments, str(control), str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": python_path},
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )
        # It may outlive this program; while this one runs, its end is collected so that no zombie stays.
        threading.Thread(target=process.wait, name="reap-local-server", daemon=True).start()
        return process, _connect(control)


def _start_failure_text(error: OSError, log: Path) -> str:
    if not isinstance(error, ConnectionError | TimeoutError):
        return f"Could not start the local model server: {error}."
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("libgomp" in line for line in lines):
        return "The embedded model's engine needs libgomp: apt-get install libgomp1 (or your system's GCC runtime)."
    is_late = isinstance(error, TimeoutError)
    problem = f"was not ready after {START_DEADLINE_S:.0f} s" if is_late else "ended while starting"
    end = "\n  ".join([f"The end of its log ({log}):", *lines[-6:]]) if lines else f"Its log is {log}."
    return f"The local model server {problem}. {end}"


def main() -> None:
    """Serve the model that this process was started for, until it is no longer used: see the module's docstring."""
    # Threads of the math library that spin while they wait slow the others down to 1 token/s if a core is busy. The
    # library reads both variables when it is loaded, so they are set before the import in `_load`.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["GOMP_SPINCOUNT"] = "0"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for the users of the server
    model, context, linger_s, control, listener = sys.argv[1:]
    info = ServerInfo(
        pid=os.getpid(),
        port=0,
        api_key=secrets.token_urlsafe(32),
        model=model,
        context=int(context),
        stamp=stamp_of(Path(model)),
        linger_s=float(linger_s),
    )
    users = Users(info, Path(control))
    try:
        asyncio.run(users.serve(socket.socket(fileno=int(listener))))
    except (RuntimeError, OSError) as error:  # the engine rejects a model with a RuntimeError
        # The model is named here because the engine's own line about it, from a thread, may come too late for the log.
        print(f"{model}: {error}", file=sys.stderr, flush=True)
        users.end(1)


class Users:
    """The open connections to this process's server, which ends when there has been none for the linger time."""

    def __init__(self, info: ServerInfo, control: Path) -> None:
        self._info, self._control, self._inode = info, control, control.stat().st_ino
        self._open: set[asyncio.StreamWriter] = set()
        self._greeting = b""  # a line with the `ServerInfo`, once the model is loaded

    async def serve(self, listener: socket.socket) -> None:
        """Load the model, while users may already connect; greet all of them once it is ready."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.end)
        self._end_timer = asyncio.get_running_loop().call_later(15.0, self.end)  # the first user cancels it
        server = await asyncio.start_unix_server(self._serve_user, sock=listener)
        self._engine, port = await asyncio.to_thread(_load, self._info)  # stops when it is garbage-collected
        self._greeting = msgspec.json.encode(msgspec.structs.replace(self._info, port=port)) + b"\n"
        for user in self._open:
            user.write(self._greeting)
        await server.serve_forever()

    async def _serve_user(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._end_timer.cancel()
        self._open.add(writer)
        writer.write(self._greeting)
        with contextlib.suppress(OSError):
            while order := await reader.read(4096):  # users send nothing but orders until they close the connection
                if order == b"stop\n" or (order == b"yield\n" and self._open == {writer}):
                    self.end()
        self._open.discard(writer)
        writer.close()
        if not self._open:
            is_current = stamp_of(Path(self._info.model)) == self._info.stamp  # nobody will use an outdated one again
            linger_s = self._info.linger_s if is_current else 0.0
            self._end_timer.cancel()
            self._end_timer = asyncio.get_running_loop().call_later(linger_s, self.end)

    def end(self, code: int = 0) -> None:
        """End the process at once, because the engine's own teardown would wait for a reply that nobody reads."""
        with contextlib.suppress(OSError):
            if self._control.stat().st_ino == self._inode:  # another server may have replaced the socket
                self._control.unlink()
        os._exit(code)


def _load(info: ServerInfo) -> tuple[object, int]:
    import xllamacpp

    from agentcli.llm.local_weights import PINNED

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx = info.model, info.context
    params.n_parallel = 1  # other requests wait, and each has the whole context
    # Prompt tokens between two checks whether the caller is still there: about 5 s on two slow cores. The engine's own
    # 2048 kept both cores busy for 46 s after the caller had cancelled a request.
    params.n_batch = params.n_ubatch = 256
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [info.api_key]
    params.ui = params.endpoint_slots = params.warmup = False
    params.cache_ram_mib = 512  # for the prompts of other conversations, so that two programs can take turns
    # The pinned model is known by its size, whatever its name; every other model has its own template.
    if Path(info.model).stat().st_size == PINNED.size:
        params.chat_template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    engine = xllamacpp.Server(params)
    return engine, int(engine.listening_address.rsplit(":", 1)[1])


if __name__ == "__main__":
    main()
