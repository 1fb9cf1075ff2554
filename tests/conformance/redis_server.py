"""Starts a Redis server on loopback, once for all tests of a process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import closing
from functools import cache

import pytest

_started: list[subprocess.Popen[bytes]] = []


@cache
def redis_url() -> str:
    program = shutil.which("redis-server")
    if program is None:
        assert not os.environ.get("CI"), "CI has redis-server"
        pytest.skip("needs redis-server")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", tempfile.gettempdir(), "--save", ""]
    _started.append(subprocess.Popen([program, *options], stdout=subprocess.DEVNULL))
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.05)
        else:
            return f"redis://127.0.0.1:{port}/0"


def end() -> None:
    for server in _started:
        server.kill()
        server.wait()
