"""Runs llama.cpp's own server on loopback for as long as an agentcli process uses it (local_server.py starts it).

    python -m agentcli.llm.local_server_child MODEL CONTEXT LINGER CONTROL LISTENER

A user connects to the socket CONTROL (descriptor LISTENER) and is sent a `ServerInfo` once the model is loaded. The
process ends LINGER seconds after the last one left, at `yield` if there is no other, at `stop` in any case.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from agentcli.llm.local_server import ServerInfo, stamp_of
from agentcli.llm.local_weights import PINNED

PROMPT_CACHE_MIB = 512  # for the prompts of other conversations: two programs that take turns do not start from nothing

# Prompt tokens between two looks at whether the caller is still there: about 5 s on two slow cores. The engine's own
# 2048 kept both cores busy for 46 s after a request had been given up.
BATCH_TOKENS = 256
FIRST_USER_S = 15.0  # for the connection of the program that starts the server, which it makes before that


def main() -> None:
    # A thread of the math library that spins while it waits slows the others to a crawl when a core is taken (1 token/s
    # was seen). Both are read when the library is loaded, so this precedes the import in `_load`.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["GOMP_SPINCOUNT"] = "0"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is meant for its users
    model, context, linger_s, control, listener = sys.argv[1:]
    info = ServerInfo(
        pid=os.getpid(), port=0, api_key=secrets.token_urlsafe(32), model=model, context=int(context),
        stamp=stamp_of(Path(model)), linger_s=float(linger_s),
    )  # fmt: skip
    users = Users(info, Path(control))
    try:
        asyncio.run(users.serve(socket.socket(fileno=int(listener))))
    except (RuntimeError, OSError) as error:  # the engine refuses a model with a RuntimeError
        print(error, file=sys.stderr, flush=True)
        users.end(1)


class Users:
    """The open connections to a server; the process ends when there has been none for the linger time."""

    def __init__(self, info: ServerInfo, control: Path) -> None:
        self._info, self._control, self._inode = info, control, control.stat().st_ino
        self._open: set[asyncio.StreamWriter] = set()
        self._greeting = b""

    async def serve(self, listener: socket.socket) -> None:
        """Load the model, then answer users until the process ends."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.end)
        self._ending = asyncio.get_running_loop().call_later(FIRST_USER_S, self.end)
        server = await asyncio.start_unix_server(self._hold, sock=listener)
        self._engine, port = await asyncio.to_thread(_load, self._info)  # it stops when its object is collected
        self._greeting = msgspec.json.encode(msgspec.structs.replace(self._info, port=port)) + b"\n"
        for user in self._open:
            user.write(self._greeting)
        await server.serve_forever()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ending.cancel()
        self._open.add(writer)
        writer.write(self._greeting)
        with suppress(OSError):
            while word := await reader.read(4096):  # a user of the server only ever closes its end
                if word == b"stop\n" or (word == b"yield\n" and self._open == {writer}):
                    self.end()
        self._open.discard(writer)
        writer.close()
        if not self._open:
            is_current = stamp_of(Path(self._info.model)) == self._info.stamp
            self._ending.cancel()
            self._ending = asyncio.get_running_loop().call_later(is_current * self._info.linger_s, self.end)

    def end(self, code: int = 0) -> None:
        """End the process at once: the engine's own teardown waits for a reply that nobody reads any more."""
        with suppress(OSError):
            if self._control.stat().st_ino == self._inode:  # not the socket of one that was started in its place
                self._control.unlink()
        os._exit(code)


def _load(info: ServerInfo) -> tuple[object, int]:
    """Load the model and serve it; return the engine and its loopback port."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx = info.model, info.context
    params.n_parallel = 1  # requests that come meanwhile wait their turn, and each has the whole context
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [info.api_key]
    params.ui = params.endpoint_slots = params.warmup = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    # Under whatever name; every other model keeps the template it brings.
    if Path(info.model).stat().st_size == PINNED.size:
        params.chat_template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    engine = xllamacpp.Server(params)
    return engine, int(engine.listening_address.rsplit(":", 1)[1])


if __name__ == "__main__":
    main()
