"""`agentcli serve`: serves sessions over HTTP, to programs and to a web page, with one process or several."""

from __future__ import annotations

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
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from agentcli.agent.result import to_json_line
from agentcli.cli.log_file import set_up_logging
from agentcli.cli.options import SERVER_FLAGS, load_for, server_parser
from agentcli.cli.output import warn
from agentcli.cli.session_opener import open_for_client
from agentcli.errors import UsageError, UserError
from agentcli.frontends.run_end import interrupt_on_signals
from agentcli.frontends.session_opener import UsageStore
from agentcli.infra.day_account import DayAccount
from agentcli.infra.event_log.sqlite import SqliteEvents
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.files import make_private_folder
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder
from agentcli.settings.structs import ServeTokenSettings

if TYPE_CHECKING:
    from agentcli.agent.interfaces import EventStore


_MOST_WORKERS, _HIGHEST_PORT = 64, 65_535
FLAGS = (
    *SERVER_FLAGS,
    (("--host",), {"default": "127.0.0.1", "metavar": "ADDRESS", "help": "listen on this address (127.0.0.1)"}),
    (("--port",), {"type": int, "default": 0, "metavar": "N", "help": "listen on this port (any that is free)"}),
    (("--socket",), {"metavar": "PATH", "help": "listen on a unix socket, which only you can use"}),
    (("--token-file",), {"metavar": "FILE", "help": "holds the token; made when it is not there"}),
    (("--workers",), {"type": int, "default": 1, "metavar": "N", "help": "this many processes (1)"}),
)
_ABOUT = "Serve sessions over HTTP, to programs and to a web page. docs/serve.md tells of both."


def run(arguments: list[str]) -> int:
    options = server_parser("agentcli serve", _ABOUT, FLAGS).parse_args(arguments)
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise UsageError(f"--workers is a number from 1 to {_MOST_WORKERS}.")
    if not 0 <= options.port <= _HIGHEST_PORT:
        raise UsageError(f"--port is a number up to {_HIGHEST_PORT}; 0 is any that is free.")
    config = load_for(options, current_folder())
    set_up_logging(config)
    for notice in config.notices:
        warn(notice)
    folder = config.paths.state / "serve"
    make_private_folder(folder)
    token_file = Path(options.token_file).absolute() if options.token_file else folder / "token"
    token = read_or_create_token(token_file)
    listening, told = _listening(options)
    bound = Path(options.socket).lstat() if options.socket else None
    limits = config.settings.serve
    own = ServeTokenSettings(hashlib.sha256(token.encode()).hexdigest(), "", limits.rate_per_minute, limits.budget_usd)
    worker = Worker(options, config, tokens=(own, *limits.tokens.values()), listening=listening)

    def announce() -> None:
        sys.stdout.buffer.write(to_json_line({**told, "token_file": str(token_file)}))
        sys.stdout.flush()
        if sys.stderr.isatty() and "socket" not in told:
            warn(f"the page, with its token: {told['url']}/#token={token}")

    try:
        return serve(worker, options.workers, on_ready=announce)
    finally:
        listening.close()
        with suppress(OSError):  # a later server may have put its own there
            if bound is not None and os.path.samestat(bound, Path(options.socket).lstat()):
                Path(options.socket).unlink()


def read_or_create_token(file: Path) -> str:
    """The token in a file, which is made when it is not there. Raises `UsageError`."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"The token file {file} cannot be used: {error.strerror}.") from error
    with os.fdopen(handle, "r+") as opened:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            raise UsageError(f"Others may read the token file {file}: chmod 600 {file}")
        token = opened.read(4_096).strip()
        if not token:
            token = secrets.token_urlsafe(32)
            opened.write(f"{token}\n")
    if len(token) < 16 or not token.isascii() or len(token.split()) != 1:
        raise UsageError(f"{file} has no token: one word of at least 16 letters and digits, or nothing.")
    return token


def _listening(options: argparse.Namespace) -> tuple[socket.socket, dict[str, str]]:
    """The socket, and what to tell of it. Raises `UsageError`."""
    if options.socket:
        path = Path(options.socket).absolute()
        return _unix_socket(path), {"url": "http://localhost", "socket": str(path)}
    try:
        opened, url = listen_tcp(options.host, options.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"Could not listen on {options.host}, port {options.port}: {error}.") from error
    return opened, {"url": url}


def _unix_socket(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and opened.connect_ex(str(path)):
            path.unlink()  # left behind by a server that was killed
            opened.close()
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        raise UsageError(f"Could not listen on {path}: {error.strerror or error}.") from error
    return opened


log = logging.getLogger(__name__)

_QUICK_S = 2.0  # a worker that ends sooner is not replaced at once
_ENDING_S = 20.0  # for all workers to store what they have
_GRACE_S = 1  # for answers that are under way
_LOOK_EVERY_S = 0.1  # for workers that have ended, and signals
_MOST_READ = 1_024
_LONGEST_ADDRESS = 100  # bytes of a unix socket's path, of which systems take little more


class Worker(Struct, frozen=True):
    """The parts of a process that serves; all of them accept connections from one socket."""

    options: argparse.Namespace
    config: Config
    tokens: tuple[ServeTokenSettings, ...]
    listening: socket.socket


def serve(worker: Worker, count: int, *, on_ready: Callable[[], None]) -> int:
    """Serve with so many processes until a signal comes; gives the exit code."""
    _import_server()  # once for all processes
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each reader holds a connection
    for path in (worker.config.paths.state / "serve").glob("*.sock"):  # of processes that were killed
        if not Path(f"/proc/{path.stem}").exists() and sys.platform == "linux":
            path.unlink(missing_ok=True)
    worker.listening.listen(2_048)
    return asyncio.run(_work(worker, on_ready)) if count == 1 else Workers(worker).run(count, on_ready)


class Workers:
    """Starts the processes, puts another one in the place of each that dies, and ends them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._started: dict[int, float] = {}
        self._signal = 0
        self._parent, self._alive = os.pipe()  # which ends with this process

    def run(self, count: int, on_ready: Callable[[], None]) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)
        ready, told = os.pipe()
        os.set_blocking(ready, False)
        for _ in range(count):
            self._start(partial(os.write, told, b"."))
        while not self._signal and count:
            with suppress(BlockingIOError):
                count -= len(os.read(ready, _MOST_READ))
            if any(_ended(self._started)):
                self._end()
                raise UserError("A worker could not begin: what it said is above, or in the log.")
            time.sleep(_LOOK_EVERY_S)
        if not self._signal:
            on_ready()
        while not self._signal:
            for pid, status in _ended(self._started):
                lived = time.monotonic() - self._started.pop(pid)
                warn(f"worker {pid} ended with {os.waitstatus_to_exitcode(status)}: another one takes its place.")
                time.sleep(max(0.0, _QUICK_S - lived))
                if not self._signal:
                    self._start(lambda: None)
            time.sleep(_LOOK_EVERY_S)
        return self._end()

    def _note(self, number: int, frame: object) -> None:
        self._signal = number

    def _start(self, on_ready: Callable[[], Any]) -> None:
        if pid := os.fork():
            self._started[pid] = time.monotonic()
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)  # Ctrl-C is the parent's alone: a second signal would have a worker leave at once
        os.close(self._alive)
        _end_process(self._worker, on_ready, self._parent)

    def _end(self) -> int:
        deadline = time.monotonic() + _ENDING_S
        self._signal_all(signal.SIGTERM)
        while self._started and time.monotonic() < deadline:
            for pid, _ in _ended(self._started):
                del self._started[pid]
            time.sleep(0.02)
        self._signal_all(signal.SIGKILL)
        for pid in self._started:
            os.waitpid(pid, 0)
        return 128 + self._signal

    def _signal_all(self, number: int) -> None:
        for pid in self._started:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _ended(pids: dict[int, float]) -> list[tuple[int, int]]:
    looked = [os.waitpid(pid, os.WNOHANG) for pid in pids]
    return [(pid, status) for pid, status in looked if pid]


def _end_process(worker: Worker, on_ready: Callable[[], Any], parent: int) -> NoReturn:
    """Work in this child, and never return into its parent's code."""
    code = 1
    try:
        code = asyncio.run(_work(worker, on_ready, parent))
    except Exception as error:  # noqa: BLE001 - the outermost place of this process
        warn(f"a worker could not go on: {error}")
    finally:
        os._exit(code)


async def _work(worker: Worker, on_ready: Callable[[], Any], parent: int | None = None) -> int:
    """One process: what it serves, to whom, and where other processes reach it. It ends with its `parent`."""
    import uvicorn  # the extra, as what follows

    from agentcli.frontends.http.guard import Guard
    from agentcli.frontends.http.hosting import Hosting
    from agentcli.frontends.http.routes import Routes

    serving, paths = worker.config.settings.serve, worker.config.paths
    with ExitStack() as open_files:
        inner, address = open_files.enter_context(_inner_socket(paths.state / "serve", serving.advertise))
        store = _store(worker.config, address)
        open_session = partial(open_for_client, worker.options, store, is_server=True, on_notice=log.warning)
        events, idle_s = _events(worker.config), serving.idle_minutes * 60
        hosting = Hosting(open_session, store, events, account_of=partial(_account, worker), idle_s=idle_s)
        routes = Routes(hosting, cwd=worker.config.cwd)
        hosts, is_socket = (*serving.hosts, worker.options.host), bool(worker.options.socket)
        app = Guard(routes.application(on_ready=on_ready), tokens=worker.tokens, hosts=hosts, is_socket=is_socket)
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "proxy_headers": False}
        settings |= {"server_header": False, "timeout_keep_alive": 75, "timeout_graceful_shutdown": _GRACE_S}
        server = uvicorn.Server(uvicorn.Config(app, **settings))

        def leave() -> None:
            hosting.leave().add_done_callback(lambda _: setattr(server, "should_exit", True))
            if parent is not None:
                asyncio.get_running_loop().remove_reader(parent)

        if parent is not None:
            asyncio.get_running_loop().add_reader(parent, leave)
        with interrupt_on_signals(leave) as received:
            server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]  # ours are heeded
            await server.serve(sockets=[worker.listening, inner])
        return 128 + received["signal"] if received else 1


def _import_server() -> None:
    """Raises `UsageError` without the extra."""
    try:
        import uvicorn  # noqa: F401 - to learn now if it is there

        import agentcli.frontends.http.routes  # noqa: F401 - as above
    except ImportError as error:
        raise UsageError(
            f"A server needs an extra ({error.name} is missing): ./install.sh --extras server, or pip install "
            "'agentcli[server]'."
        ) from error


def _store(config: Config, address: str) -> UsageStore:
    if config.settings.serve.database:
        from agentcli.infra.sessions.postgres import PostgresSessions

        return PostgresSessions(config.settings.serve.database, address=address, on_notice=warn)
    return SqliteSessions(config.paths.sessions, address=address, on_notice=warn)


def _account(worker: Worker, user_id: str) -> DayAccount | None:
    """The account of what all sessions of a user cost on a day; None where that has no limit."""
    limits = {token.user_id: token.budget_usd for token in worker.tokens}
    if (limit := limits.get(user_id, limits[""])) is None:
        return None
    folder = worker.config.paths.state / "serve" / "budgets"
    make_private_folder(folder)
    name = hashlib.sha256(user_id.encode()).hexdigest()[:16] if user_id else "owner"
    return DayAccount(folder / f"{name}.db", {"usd": limit})


def _events(config: Config) -> EventStore:
    if config.settings.serve.redis:
        from agentcli.infra.event_log.redis import RedisEvents

        return RedisEvents(config.settings.serve.redis)
    for file in config.paths.state.glob("events.db*"):  # streams of an earlier version: sessions tell them again
        file.unlink(missing_ok=True)
    return SqliteEvents(config.paths.sessions)


def listen_tcp(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that is bound, and its address. Raises `OSError` and `OverflowError`."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(address)
    return opened, f"http://{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}"


@contextmanager
def _inner_socket(folder: Path, advertise: str) -> Any:
    """A socket for other processes of the server, in a folder that is its owner's alone, and its address."""
    if advertise:
        try:
            opened, url = listen_tcp(advertise, 0)
        except OSError as error:
            raise UsageError(f"serve.advertise: {advertise} is no address of this machine ({error}).") from error
        with opened:
            yield opened, url
        return
    with ExitStack() as open_files:
        path = folder / f"{os.getpid()}.sock"
        if len(os.fsencode(path)) > _LONGEST_ADDRESS:
            path = Path(open_files.enter_context(tempfile.TemporaryDirectory(prefix="agentcli-")), "socket")
        opened = open_files.enter_context(socket.socket(socket.AF_UNIX))
        path.unlink(missing_ok=True)
        opened.bind(str(path))
        open_files.callback(path.unlink, missing_ok=True)
        yield opened, f"unix:{path}"
