"""The process that runs llama.cpp's own server on loopback for as long as an agentcli process uses it.

    python -m agentcli.llm.local_server.child --model PATH --context N --record FILE --control SOCKET --linger
    SECONDS

Every user of the server holds a connection to the control socket and is told `ready` on it, one line, once
the model is loaded. A user that dies, however it dies, loses its connection; when none has been open for
`--linger` seconds the process ends. The record (JSON, 0600) says where the server is and with which key it
may be used. It also ends when its model file is another one, or its record is gone, as soon as nobody uses it.

A connection that says `yield` ends it if there is no other, one that says `stop` in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from agentcli.errors import UserError
from agentcli.llm.local_server.chat_template import chat_template_for
from agentcli.llm.local_server.gguf import read_header, stamp_of

READY = b"ready\n"

PROMPT_CACHE_MIB = 512
"""Memory for the prompts of other conversations, so that two programs that take turns do not start from
nothing."""

BATCH = 256
"""Prompt tokens between two looks at whether the caller is still there: about 5 s on two slow cores. The
engine's own 2048 kept both cores busy for 46 s after a request had been given up."""

LOOK_EVERY_S = 2.0
"""How often the model file and the record are looked at."""

FIRST_USER_S = 15.0
"""How long the process waits for its first user; the one that started it connects within milliseconds."""


def main() -> None:
    options = _parse(sys.argv[1:])
    # A thread of the math library that spins while it waits slows the others to a crawl when a core is taken
    # (1 token/s was seen). Both are read when the library is loaded, so this precedes the import in
    # `_start_server`.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["GOMP_SPINCOUNT"] = "0"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is meant for its users
    try:
        code = asyncio.run(_serve(options))
    except (UserError, RuntimeError, OSError) as error:  # the engine refuses a model with a RuntimeError
        print(error, file=sys.stderr, flush=True)
        code = 1
    # The engine's own teardown waits for a reply that is still being written; nobody is there to read it.
    sys.stderr.flush()
    os._exit(code)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcli-local-server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--linger", type=float, required=True, help="seconds")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as the engine thinks right")
    return parser.parse_args(arguments)


async def _serve(options: argparse.Namespace) -> int:
    """Runs until the last user has gone or SIGTERM comes; gives the exit code."""
    stop, loaded_or_stopped = asyncio.Event(), asyncio.Event()

    def end() -> None:
        stop.set()
        loaded_or_stopped.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    users = _Users(options.linger, on_deserted=end)
    served = stamp_of(options.model)
    control = await _listen(options.control, users)
    key = secrets.token_urlsafe(32)
    loading = _in_daemon_thread(lambda: _start_server(options, key))
    try:
        loading.add_done_callback(lambda _: loaded_or_stopped.set())
        await loaded_or_stopped.wait()
        if not stop.is_set():
            _write_record(options, port=loading.result(), key=key, served=served)
            users.tell_ready()
            watching = asyncio.create_task(_watch(options, served, users))
            await stop.wait()
            watching.cancel()
        return 0
    finally:
        # First the record, so that nobody new is sent here; who connects from now on is cut off and starts
        # another.
        _remove_own_record(options.record)
        _remove(options.control)
        control.close()


async def _watch(options: argparse.Namespace, served: str, users: _Users) -> None:
    """Let the server go with its users once it serves what nobody asks for any more."""
    while stamp_of(options.model) == served and options.record.exists():
        await asyncio.sleep(LOOK_EVERY_S)
    users.no_longer_linger()


class _Users:
    """The open control connections; calls `on_deserted` when there has been none for the linger time."""

    def __init__(self, linger: float, *, on_deserted: Callable[[], None]) -> None:
        self._linger = linger
        self._on_deserted = on_deserted
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = False
        self._deserted = False
        self._timer = asyncio.get_running_loop().call_later(max(linger, FIRST_USER_S), self._end)

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._deserted:  # too late: told nothing, it starts a server of its own
            writer.close()
            return
        self._timer.cancel()
        self._open.add(writer)
        if self._ready:
            writer.write(READY)
        try:
            while said := await reader.read(4096):  # from those who only use it just the end comes
                if said == b"stop\n" or (said == b"yield\n" and self._open == {writer}):
                    self._end()
        except (OSError, asyncio.CancelledError):  # cancelled: we end, and streams would log that as a fault of theirs
            pass
        finally:
            self._open.discard(writer)
            writer.close()
            if not self._open:
                self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(self._linger, self._end)

    def no_longer_linger(self) -> None:
        self._linger = 0.0
        if not self._open:
            self._end()

    def tell_ready(self) -> None:
        self._ready = True
        for writer in self._open:
            writer.write(READY)

    def _end(self) -> None:
        self._deserted = True
        self._on_deserted()


async def _listen(path: Path, users: _Users) -> asyncio.Server:
    _remove(path)
    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(users.hold, path=path)
    finally:
        os.umask(before)


def _in_daemon_thread(work: Callable[[], int]) -> asyncio.Future[int]:
    """Like `asyncio.to_thread`, but the process can end while the thread still loads."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[int] = loop.create_future()

    def run() -> None:
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - handed on whole to whoever reads the result
            loop.call_soon_threadsafe(result.set_exception, error)
        else:
            loop.call_soon_threadsafe(result.set_result, value)

    threading.Thread(target=run, name="load-model", daemon=True).start()
    return result


_running: list[object] = []
"""Keeps the engine alive: it stops when its object is collected."""


def _start_server(options: argparse.Namespace, key: str) -> int:
    """Loads the model and serves it on a free loopback port, which is returned."""
    header = read_header(options.model)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.n_ctx = min(options.context, header.context_length or options.context)
    params.n_parallel = 1  # requests that come meanwhile wait their turn, and each has the whole context
    params.n_batch = params.n_ubatch = BATCH
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.warmup = False
    if options.threads > 0:
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
    template = chat_template_for(header)
    if template is not None:
        params.chat_template = template
    server = xllamacpp.Server(params)
    _running.append(server)
    return int(server.listening_address.rsplit(":", 1)[1])


def _write_record(options: argparse.Namespace, *, port: int, key: str, served: str) -> None:
    record = {
        "pid": os.getpid(),
        "port": port,
        "api_key": key,
        "model": str(options.model),
        "context": options.context,
        "control": str(options.control),
        "stamp": served,
        "linger": options.linger,
    }
    unfinished = options.record.with_name(f"{options.record.name}.{os.getpid()}.tmp")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
    unfinished.replace(options.record)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_own_record(record: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(record.read_text(encoding="utf-8"))["pid"] == os.getpid():
            record.unlink()


if __name__ == "__main__":
    main()
