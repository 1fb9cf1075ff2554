"""`agentcli serve` serves sessions over HTTP, to programs and to a web page, with one process or several."""

import argparse
import asyncio
import hashlib
import logging
import os
import resource
import secrets
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from agentcli.cli.options import SERVER_FLAGS, config_for, make_flag_parser
from agentcli.cli.output import set_up_logging, warn
from agentcli.cli.session_opener import open_for_client
from agentcli.errors import UsageError, UserError
from agentcli.frontends.hosts import UsageStore
from agentcli.frontends.http.server import http_server, import_server, listen_tcp
from agentcli.frontends.json_output import write_line
from agentcli.frontends.run_end import interrupt_on_signals
from agentcli.infra.event_log import RedisEvents, SqliteEvents
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.infra.shared import DayAccount
from agentcli.settings.files import current_folder, make_private_folder
from agentcli.settings.load import Config
from agentcli.settings.structs import ServeTokenSettings

FLAGS = (
    *SERVER_FLAGS,
    (("--host",), {"default": "127.0.0.1", "metavar": "ADDRESS", "help": "listen on this address (127.0.0.1)"}),
    (("--port",), {"type": int, "default": 0, "metavar": "N", "help": "listen on this port (any free port)"}),
    (("--socket",), {"metavar": "PATH", "help": "listen on a unix socket that only you can use"}),
    (("--token-file",), {"metavar": "FILE", "help": "the file with the token, created if missing"}),
    (("--workers",), {"type": int, "default": 1, "metavar": "N", "help": "the number of processes (1)"}),
)
_ABOUT = "Serve sessions over HTTP, for programs and a web page. See docs/serve.md."
_MAX_WORKERS, _MAX_PORT = 64, 65_535
_MAX_ADDRESS_BYTES = 100  # of a unix socket's path; systems accept little more
_MIN_LIFE_S = 2.0  # a worker that ends sooner is replaced only after this time, so that failing ones do not spin
_END_S = 20.0  # for all workers together to store their sessions and exit
_CHECK_EVERY_S = 0.1  # between checks for ended workers and for signals
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(arguments: list[str]) -> int:
    """Run `agentcli serve`: listen, and serve until a signal arrives. Returns the exit code; raises `UserError`."""
    options = make_flag_parser("agentcli serve", _ABOUT, FLAGS).parse_args(arguments)
    if not 1 <= options.workers <= _MAX_WORKERS:
        raise UsageError(f"--workers must be a number from 1 to {_MAX_WORKERS}.")
    if not 0 <= options.port <= _MAX_PORT:
        raise UsageError(f"--port must be a number up to {_MAX_PORT}; 0 is any free port.")
    config = config_for(options, current_folder())
    set_up_logging(config)
    for notice in config.notices:
        warn(notice)
    token_file, token, owner = owner_token(config, options.token_file, "token")
    listener, address = listen(options.host, options.port, options.socket)
    worker = Worker(options, config, (owner, *config.settings.serve.tokens.values()), listener)

    def announce() -> None:
        write_line({**address, "token_file": str(token_file)})
        if sys.stderr.isatty() and not options.socket:
            warn(f"the page, with its token: {address['url']}/#token={token}")

    socket_status = Path(options.socket).lstat() if options.socket else None
    try:
        return serve(worker, options.workers, on_ready=announce)
    finally:
        listener.close()
        with suppress(OSError):  # a later server may have put its own socket there
            if socket_status is not None and os.path.samestat(socket_status, Path(options.socket).lstat()):
                Path(options.socket).unlink()


def owner_token(config: Config, file_name: str | None, default: str) -> tuple[Path, str, ServeTokenSettings]:
    """Return the owner's token file (without `file_name`: `default` in the state folder), its token and its rights."""
    folder, settings = config.paths.state / "serve", config.settings.serve
    make_private_folder(folder)
    file = Path(file_name).absolute() if file_name else folder / default
    token = read_or_create_token(file)
    digest = hashlib.sha256(token.encode()).hexdigest()
    return file, token, ServeTokenSettings(digest, "", settings.rate_per_minute, settings.budget_usd)  # "": the owner


def read_or_create_token(file: Path) -> str:
    """Return the token in a file; a missing file is created with a new token. Raises `UsageError`."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"Could not use the token file {file}: {error.strerror}.") from error
    with os.fdopen(descriptor, "r+") as opened:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise UsageError(f"Others can read the token file {file}. Run chmod 600 {file}")
        token = opened.read(4_096).strip()
        if not token:
            token = secrets.token_urlsafe(32)
            opened.write(f"{token}\n")
    if len(token) < 16 or not token.isascii() or len(token.split()) != 1:
        raise UsageError(f"{file} has no valid token. Write one word of at least 16 letters and digits.")
    return token


def listen(host: str, port: int, unix_socket: str | None = None) -> tuple[socket.socket, dict[str, str]]:
    """Return a bound socket, and its address for the line on stdout. Raises `UsageError`."""
    try:
        if unix_socket:
            path = Path(unix_socket).absolute()
            return _bind_unix(path), {"url": "http://localhost", "socket": str(path)}
        listener, url = listen_tcp(host, port)
        return listener, {"url": url}
    except (OSError, OverflowError) as error:
        place = unix_socket or f"{host}, port {port}"
        raise UsageError(f"Could not listen on {place}: {getattr(error, 'strerror', None) or error}.") from error


def _bind_unix(path: Path) -> socket.socket:
    """Return a unix socket at `path` that only its owner can use. Raises `OSError` if another server listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        if path.is_socket() and client.connect_ex(str(path)):  # nobody listens: a killed server left the socket
            path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)  # `bind` creates the socket with the mode 0600
    try:
        listener.bind(str(path))
    finally:
        os.umask(umask)
    return listener


@contextmanager
def _inner_socket(folder: Path, advertise: str) -> Iterator[tuple[socket.socket, str]]:
    """Yield the socket, and its address, through which the server's other processes reach this one.

    It listens on the address of the setting `serve.advertise`, or else in a folder that only its owner can enter.
    """
    with ExitStack() as stack:
        if advertise:
            try:
                listener, url = listen_tcp(advertise, 0)
            except OSError as error:
                raise UsageError(f"serve.advertise: this machine does not have {advertise} ({error}).") from error
            yield stack.enter_context(listener), url
            return
        path = folder / f"{os.getpid()}.sock"
        if len(os.fsencode(path)) > _MAX_ADDRESS_BYTES:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentcli-")), "socket")
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        stack.callback(path.unlink, missing_ok=True)
        yield listener, f"unix:{path}"


class Worker(Struct, frozen=True):
    """The configuration of a serving process."""

    options: argparse.Namespace
    config: Config
    tokens: tuple[ServeTokenSettings, ...]
    listener: socket.socket  # all processes accept connections from it


def serve(worker: Worker, count: int, *, on_ready: Callable[[], None]) -> int:
    """Serve with `count` processes until a signal arrives, and return the exit code."""
    import_server()  # once, before the processes are forked
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))  # each client may hold several connections
    worker.listener.listen(2_048)
    return asyncio.run(_work(worker, on_ready)) if count == 1 else Workers(worker).run(count, on_ready)


class Workers:
    """Starts the worker processes, replaces those that die, and ends them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._started: dict[int, float] = {}  # process id -> monotonic time of its start
        self._signal = 0  # the number of the signal that ends the server; 0: none yet
        # Only this process holds the write end `_alive`: when it ends, the workers read end of file from `_parent`.
        self._parent, self._alive = os.pipe()

    def run(self, count: int, on_ready: Callable[[], None]) -> int:
        """Keep `count` workers running until a signal arrives, and return the exit code. Raises `UserError`."""
        for number in _END_SIGNALS:
            signal.signal(number, self._note_signal)
        ready_reader, ready_writer = os.pipe()  # each worker writes one byte when it is ready
        os.set_blocking(ready_reader, False)
        for _ in range(count):
            self._start(partial(os.write, ready_writer, b"."))
        unready_count = count
        while not self._signal and unready_count:
            with suppress(BlockingIOError):
                unready_count -= len(os.read(ready_reader, 1_024))
            if self._reap():
                self._end_all()
                raise UserError("A worker could not start. Its error is above, or in the log.")
            time.sleep(_CHECK_EVERY_S)
        if not self._signal:
            on_ready()
        while not self._signal:
            for pid, status, lifetime_s in self._reap():
                warn(f"worker {pid} exited with {os.waitstatus_to_exitcode(status)}. Starting another one.")
                time.sleep(max(0.0, _MIN_LIFE_S - lifetime_s))
                if not self._signal:
                    self._start(lambda: None)
            time.sleep(_CHECK_EVERY_S)
        return self._end_all()

    def _note_signal(self, number: int, frame: object) -> None:
        self._signal = number

    def _start(self, on_ready: Callable[[], Any]) -> None:
        """Start a worker, which calls `on_ready` itself. Only the parent returns from here."""
        if pid := os.fork():
            self._started[pid] = time.monotonic()
            return
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)  # so that Ctrl-C reaches only the parent: a second signal would make a worker exit at once
        os.close(self._alive)
        _work_in_child(self._worker, on_ready, self._parent)

    def _reap(self) -> list[tuple[int, int, float]]:
        """Forget the processes that have ended; return their ids, wait statuses and lifetimes in seconds."""
        states = [os.waitpid(pid, os.WNOHANG) for pid in self._started]  # the id is 0 while a process is running
        return [(pid, status, time.monotonic() - self._started.pop(pid)) for pid, status in states if pid]

    def _end_all(self) -> int:
        deadline = time.monotonic() + _END_S
        self._signal_all(signal.SIGTERM)
        while self._started and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.02)
        self._signal_all(signal.SIGKILL)
        for pid in self._started:
            os.waitpid(pid, 0)
        return 128 + self._signal  # as shells report death by a signal

    def _signal_all(self, number: int) -> None:
        for pid in self._started:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _work_in_child(worker: Worker, on_ready: Callable[[], Any], parent: int) -> NoReturn:
    """Serve in a forked process, and never return to the code of its parent."""
    code = 1
    try:
        code = asyncio.run(_work(worker, on_ready, parent))
    except Exception as error:  # noqa: BLE001 - the outermost place of this process
        warn(f"a worker stopped: {error}")
    finally:
        os._exit(code)


async def _work(worker: Worker, on_ready: Callable[[], Any], parent: int | None = None) -> int:
    """Serve in this process until a signal arrives, or until `parent`, the read end of a pipe, reports end of file.

    The pipe ends when the parent process ends. Clients connect to the worker's listener. The server's other processes
    connect to an inner socket, to forward requests to the process that has the session open.
    """
    from agentcli.frontends.http.hosting import Hosting  # needs the extra, as the next two do
    from agentcli.frontends.http.requests import Guard
    from agentcli.frontends.http.routes import Routes

    settings, paths, loop = worker.config.settings.serve, worker.config.paths, asyncio.get_running_loop()
    with _inner_socket(paths.state / "serve", settings.advertise) as (inner, address):
        store: UsageStore
        if settings.database:
            from agentcli.infra.sessions.postgres import PostgresSessions

            store = PostgresSessions(settings.database, address=address, on_notice=warn)
        else:
            store = SqliteSessions(paths.sessions, address=address, on_notice=warn)
        open_session = partial(
            open_for_client, worker.options, store, is_server=True, on_notice=logging.getLogger(__name__).warning
        )
        events = RedisEvents(settings.redis) if settings.redis else SqliteEvents(paths.sessions)
        hosting = Hosting(
            open_session, store, events, account_of=partial(_budget_of_user, worker), idle_s=settings.idle_minutes * 60
        )
        routes = Routes(hosting, cwd=worker.config.cwd)
        hosts, is_unix = (*settings.hosts, worker.options.host), bool(worker.options.socket)
        app = Guard(routes.application(on_ready=on_ready), tokens=worker.tokens, hosts=hosts, is_unix=is_unix)
        server = http_server(app)

        def leave() -> None:  # close the sessions first, so that readers get their last events
            hosting.leave().add_done_callback(lambda _: setattr(server, "should_exit", True))
            if parent is not None:
                loop.remove_reader(parent)

        if parent is not None:
            loop.add_reader(parent, leave)
        with interrupt_on_signals(leave) as received:
            try:
                await server.serve(sockets=[worker.listener, inner])
            finally:
                await store.close()
        return 128 + received["signal"] if received else 1  # 1: it ended by itself, because it failed


def _budget_of_user(worker: Worker, user_id: str) -> DayAccount | None:
    """Return the budget for all sessions of a user in a day; None if it is unlimited."""
    limits = {token.user_id: token.budget_usd for token in worker.tokens}
    limit = limits.get(user_id, limits[""])  # "" is the owner; the owner's limit also applies to unknown users
    if limit is None:
        return None
    folder = worker.config.paths.state / "serve" / "budgets"
    make_private_folder(folder)
    name = hashlib.sha256(user_id.encode()).hexdigest()[:16] if user_id else "owner"
    return DayAccount(folder / f"{name}.db", {"usd": limit})
