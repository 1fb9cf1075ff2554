"""The shared server of the local model: one for all its users, gone with the last of them, replaced when it is no use.

With AGENTCLI_TEST_GGUF, the pinned model's .gguf file, the real engine loads it; without, a made-up engine stands in.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentcli.errors import UserError
from agentcli.llm.local_server import LocalServer, acquire, running_servers, stop_servers
from tests.processes import is_running

GGUF = os.environ.get("AGENTCLI_TEST_GGUF", "")

pytestmark = pytest.mark.local_model if GGUF else pytest.mark.slow

CONTEXT = 2048

ENGINE = """
import time, types

class CommonParams:
    def __init__(self):
        self.model = types.SimpleNamespace()

class Server:
    listening_address = "http://127.0.0.1:1"
    def __init__(self, params):
        time.sleep(0.3)
        if "broken" in params.model.path:
            raise RuntimeError(f"cannot load {params.model.path}")
"""

USER_PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from agentcli.llm.local_server import acquire

model, state, context = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
server = asyncio.run(acquire(model_path=model, state_folder=state, context=context))
print(server.info.pid, server.base_url, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's, which is about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="agentcli-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if GGUF:
        return Path(GGUF)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/xllamacpp.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "engine"), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path / "engine")
    (tmp_path / "model.gguf").write_bytes(b"GGUF of a made-up model")
    return tmp_path / "model.gguf"


@contextlib.asynccontextmanager
async def acquired(
    model: Path, state: Path, *, context: int = CONTEXT, linger_s: float = 0
) -> AsyncIterator[LocalServer]:
    server = await acquire(model_path=model, state_folder=state, context=context, linger_s=linger_s)
    try:
        yield server
    finally:
        server.release()


async def ends(server: LocalServer, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while (is_up := is_running(server.info.pid)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not is_up


def start_user(model: Path, state: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER_PROGRAM, str(model), str(state), str(CONTEXT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_two_programs_that_start_at_once_share_one_server_and_it_ends_when_both_were_killed(
    model: Path, tmp_path: Path
) -> None:
    with start_user(model, tmp_path) as first, start_user(model, tmp_path) as second:
        try:
            server, same = (user.stdout.readline() if user.stdout else "" for user in (first, second))
            assert server == same != ""
            async with acquired(model, tmp_path) as third:
                assert f"{third.info.pid} {third.base_url}\n" == server
            first.kill()
            assert not await ends(third, 1), "one user is left"
        finally:
            first.kill()
            second.kill()
    assert await ends(third)
    assert not list(tmp_path.rglob("*.sock"))


async def test_a_server_that_was_killed_is_replaced_and_its_user_can_tell(model: Path, tmp_path: Path) -> None:
    async with acquired(model, tmp_path) as dead:
        os.kill(dead.info.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            while dead.is_running:
                await asyncio.sleep(0.02)
        waits: list[str] = []
        fresh = await acquire(model_path=model, state_folder=tmp_path, context=CONTEXT, on_wait=waits.append)
        assert fresh.is_running
        assert len(waits) == 1
        os.kill(fresh.info.pid, signal.SIGTERM)
        assert await ends(fresh)
    assert not list(tmp_path.rglob("*.sock")), "a terminated server leaves no socket"
    fresh.release()
    fresh.release()
    assert not fresh.is_running


async def test_a_server_that_hangs_is_replaced_and_leaves_the_new_one_alone(model: Path, tmp_path: Path) -> None:
    async with acquired(model, tmp_path) as hung:
        os.kill(hung.info.pid, signal.SIGSTOP)
        try:
            async with acquired(model, tmp_path) as fresh:
                assert fresh.info.pid != hung.info.pid
                hung.release()
                os.kill(hung.info.pid, signal.SIGCONT)
                assert await ends(hung)
                async with acquired(model, tmp_path) as again:
                    assert again.info.pid == fresh.info.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hung.info.pid, signal.SIGKILL)


async def test_a_server_lingers_for_the_next_user_and_ends_when_asked_to(model: Path, tmp_path: Path) -> None:
    async with acquired(model, tmp_path, linger_s=60) as first:
        (running,) = await running_servers(tmp_path)
        assert (running.pid, running.context, running.linger_s) == (first.info.pid, CONTEXT, 60)
    await asyncio.sleep(0.5)
    async with acquired(model, tmp_path) as second:
        assert second.info.pid == first.info.pid
    assert await stop_servers(tmp_path) == 1
    assert await ends(first)
    assert await running_servers(tmp_path) == []
    assert await stop_servers(tmp_path) == 0


async def test_one_that_only_lingers_gives_way_to_another_and_one_in_use_does_not(model: Path, tmp_path: Path) -> None:
    async with acquired(model, tmp_path, linger_s=60) as unused:
        pass
    async with acquired(model, tmp_path, context=CONTEXT // 2, linger_s=1) as used:
        assert await ends(unused)
        async with acquired(model, tmp_path):
            assert used.is_running
    assert not await ends(used, 0.5)
    assert await ends(used)


async def test_a_server_ends_when_its_model_file_is_another_one(model: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied.gguf"
    shutil.copyfile(model, copied)
    async with acquired(copied, tmp_path, linger_s=60) as first:
        copied.touch()
        async with acquired(copied, tmp_path, linger_s=60) as second:
            assert second.info.pid != first.info.pid
            assert await ends(first)
            copied.unlink()
    assert await ends(second), "it lingers for nobody"


async def test_the_server_of_another_version_is_reported_to_end(model: Path, tmp_path: Path) -> None:
    async with acquired(model, tmp_path) as server:
        (control,) = tmp_path.rglob("*.sock")
    assert await ends(server)
    words: list[bytes] = []

    async def other_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready\n")
        words.append(await reader.read(64))
        writer.close()

    async with await asyncio.start_unix_server(other_version, path=control), acquired(model, tmp_path) as server:
        assert words[:2] == [b"", b"stop\n"]
        assert server.is_running


async def test_a_start_that_is_cancelled_leaves_no_process(model: Path, tmp_path: Path) -> None:
    starting = asyncio.ensure_future(acquire(model_path=model, state_folder=tmp_path, context=CONTEXT))
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "local-server") not in listed


async def test_the_key_is_for_this_user_only(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = tmp_path.joinpath(*["long"] * 20)  # too long for a socket
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for state in (tmp_path, far):
        async with acquired(model, state) as server:
            arguments = Path(f"/proc/{server.info.pid}/cmdline").read_bytes().decode().split("\0")
            assert server.api_key not in arguments, "other users can read a process's arguments"
            (control,) = [Path(word) for word in arguments if word.endswith(".sock")]
            assert control.parent.stat().st_mode & 0o077 == 0
            assert [one.pid for one in await running_servers(state)] == [server.info.pid]
    (tmp_path / f"agentcli-{os.getuid()}").chmod(0o755)
    with pytest.raises(UserError, match="is not private to you"):
        await acquire(model_path=model, state_folder=far, context=CONTEXT)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.gguf", None, "Could not read the model file"),
        ("other.gguf", b"PK\x03\x04 a zip file", "not a GGUF model file"),
        ("broken.gguf", b"GGUF\x03\x00", r"ended while starting[\s\S]*broken\.gguf"),
    ],
)
async def test_a_model_that_cannot_be_run_is_a_clear_error(
    model: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        await acquire(model_path=path, state_folder=tmp_path, context=CONTEXT)
    assert str(path) in str(caught.value)
    assert not list(tmp_path.rglob("*.sock"))


async def test_a_server_that_cannot_be_started_is_a_clear_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with acquired(model, tmp_path) as server:
        (control,) = tmp_path.rglob("*.sock")
    assert await ends(server)
    control.with_suffix(".log").unlink()
    control.with_suffix(".log").mkdir()
    with pytest.raises(UserError, match=r"Could not start the local model server: .*Is a directory"):
        await acquire(model_path=model, state_folder=tmp_path, context=CONTEXT)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # what the import system does for a module that is not there
    with pytest.raises(UserError, match=r"agentcli\[local\]"):
        await acquire(model_path=model, state_folder=tmp_path, context=CONTEXT)
