"""Why a command does not get on: one program for every reason, and those that only look as if they did not."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.processes.keeper_client import Keeper, Process
from agentcli.infra.sandbox.processes.stall import Stall, StallDetector
from tests.unit.tools.bench import Bench, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process waits for"),
    pytest.mark.slow,  # who is silent has to be silent for a while
]

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
LONG_AGO = 60.0  # seconds without output, after which every reason is told


def python(script: str) -> str:
    """A shell command that runs a Python script; `{ready}` in it tells the test that it has come so far."""
    return (
        f"{shlex.quote(sys.executable)} -c {shlex.quote(script.replace('{ready}', 'open(chr(114), chr(119)).close()'))}"
    )


IN_A_TERMINAL = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    {ready}
    CHILD
time.sleep(60)
"""
READS_A_PIPE_IT_HOLDS = "import os; r, w = os.pipe(); {ready}; os.read(r, 1)"
HOLDS_A_LOCK = "import fcntl, time; f = open('held', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); {ready}; time.sleep(60)"
WANTS_A_LOCK = "import fcntl; f = open('held', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
SERVES = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), None); {ready}; s.serve_forever()"
SERVES_FROM_A_THREAD = (
    "import http.server as h, threading; s = h.HTTPServer(('127.0.0.1', 0), None); {ready}; "
    "t = threading.Thread(target=s.serve_forever); t.start(); t.join()"
)
SERVES_IN_ASYNCIO = (
    "import asyncio\nasync def main():\n s = await asyncio.start_server(print, '127.0.0.1', 0)\n {ready}\n"
    " await s.serve_forever()\nasyncio.run(main())"
)
WRITES_NOW_AND_THEN = "import time\n{ready}\nwhile True: open('x', 'w').write('x'); time.sleep(0.02)"


@asynccontextmanager
async def running(command: str, folder: Path) -> AsyncIterator[Process]:
    keeper = Keeper(ENVIRONMENT)
    with Path(os.devnull).open("w") as nowhere:
        process = await keeper.start(
            Launch(["/bin/bash", "-c", command]), cwd=folder, environment=ENVIRONMENT, output=nowhere.fileno()
        )
    try:
        assert await until((folder / "r").exists, 10)
        yield process
    finally:
        await process.end()
        await keeper.aclose()


async def reason(command: str, folder: Path, *, said: str = "", quiet_s: float = LONG_AGO) -> Stall | None:
    """Why a command does not get on once it is ready; None when nothing is found within a second."""
    async with running(command, folder) as process:
        detector = StallDetector(process.supervisor)
        for _ in range(8):
            if found := await asyncio.to_thread(detector.find, quiet_s, said):
                return found
            await asyncio.sleep(0.12)
    return None


READY = "touch r; "


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [
        (python(READS_A_PIPE_IT_HOLDS), "input", "reads a pipe that nobody writes to"),
        (python(IN_A_TERMINAL.replace("CHILD", "input()")), "input", "reads a terminal"),
        (python(IN_A_TERMINAL.replace("CHILD", "os.execvp('cat', ['cat'])")), "input", "cat (PID # reads a terminal"),
        (python(IN_A_TERMINAL.replace("CHILD", "os.execvp('bash', ['ssh', '-c', 'read x'])")), "password", "ssh -c"),
        ("flock held sh -c 'touch r; sleep 60' & until [ -e r ]; do sleep 0.02; done; exec flock held true",
         "lock", "/held: flock held true (PID #, held by "),
        (f"{python(HOLDS_A_LOCK)} & until [ -e r ]; do sleep 0.02; done; exec {python(WANTS_A_LOCK)}",
         "lock", "/held: python"),
        (python(SERVES), "listens", "listens on :"),
        (python(SERVES_FROM_A_THREAD), "listens", "listens on :"),
        (python(SERVES_IN_ASYNCIO), "listens", "listens on :"),
    ],
)  # fmt: skip
async def test_a_reason_is_found(command: str, kind: str, text: str, tmp_path: Path) -> None:
    found = await reason(command, tmp_path)
    assert found is not None
    assert found.kind == kind
    for part in text.split("#"):
        assert part.strip(" (PID,") in found.text


@pytest.mark.parametrize(
    "prompt", ["Password: ", "[sudo] password for me: ", "Enter passphrase for key '/k': ", "PIN:"]
)
async def test_a_prompt_for_a_password_is_one(prompt: str, tmp_path: Path) -> None:
    found = await reason(python(IN_A_TERMINAL.replace("CHILD", "input()")), tmp_path, said=f"hello\n{prompt}")
    assert found is not None
    assert found.kind == "password"


async def test_a_server_with_connections_may_be_part_of_a_test_run(tmp_path: Path) -> None:
    serves = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())"
    command = python(f"{serves}; x = s.accept()[0]; {{ready}}; c.recv(1)")
    assert await reason(command, tmp_path, quiet_s=14) is None
    found = await reason(command, tmp_path)
    assert found is not None
    assert found.kind == "listens"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command",
    [
        READY + "while :; do :; done",
        python("{ready}\nwhile True: pass"),
        READY + "while :; do sleep 0.02; done",
        python(WRITES_NOW_AND_THEN),
        READY + "sleep 60",
        python("import threading; {ready}; threading.Event().wait()"),
        python("import asyncio; {ready}; asyncio.run(asyncio.sleep(60))"),
        python(
            "import os, threading\nr, w = os.pipe()\nthreading.Thread(target=os.read, args=(r, 1)).start()\n{ready}"
        ),
    ],
)
async def test_working_or_unknown_processes_are_not_reported_as_stalled(command: str, tmp_path: Path) -> None:
    assert await reason(command, tmp_path) is None


@pytest.mark.full
async def test_nothing_is_reported_too_soon(tmp_path: Path) -> None:
    assert await reason(python(READS_A_PIPE_IT_HOLDS), tmp_path, quiet_s=1.5) is None


async def test_a_holder_of_a_lock_that_is_gone_has_no_name(tmp_path: Path) -> None:
    found = await reason("exec 9>held; flock 9; " + READY + "exec flock held true", tmp_path)
    assert found is not None
    assert re.fullmatch(r"waits for a lock on .*/held: flock held true \(PID \d+\), held by PID \d+", found.text)


# What the person and the model see of it.


SILENT = f"echo begun; {python(READS_A_PIPE_IT_HOLDS.replace('{ready}; ', ''))}"


@pytest.mark.full
def test_a_command_without_input_is_reported_while_it_waits_and_when_it_has_ended(bench: Bench) -> None:
    output = bench.call("bash", command=SILENT, timeout_ms=3_200)
    why = output.structured["stall"]
    assert why.startswith("waits for input: python")
    assert output.content == f"begun\n[ended after 3.2 s; {why}]"
    assert "".join(bench.heard) == f"begun\n\n[{why}]\n"


@pytest.mark.full
def test_of_a_shell_that_waits_itself_only_the_command_is_shown(bench: Bench) -> None:
    output = bench.call("bash", command="printf 'Password: '; kill -STOP $$", timeout_ms=3_200)
    assert output.structured["stall"].startswith("asks for a password: printf 'Password: '; kill -STOP $$ (PID ")


@pytest.mark.full
async def test_a_server_moves_to_the_background_by_itself(bench: Bench) -> None:
    script = SERVES.replace("{ready}", "print('up', flush=True)")
    output = await asyncio.wait_for(bench.acall("bash", command=python(script), timeout_ms=60_000), 10)
    assert "It listens on :" in str(output.content)
    assert "continues as job job_1" in str(output.content)
    assert "Output so far:\nup" in str(output.content)
    assert not output.is_error
    (job,) = bench.sandbox.jobs.list()
    assert job.is_running
    port = int(output.structured["stall"].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    listed = await bench.acall("jobs", action="list")
    assert f"running, listens on :{port}" in str(listed.content)
    await bench.sandbox.aclose()


async def test_a_stalled_job_says_why(bench: Bench) -> None:
    await bench.acall("bash", command="exec 9>held; flock 9; (sleep 4; flock -u 9) & flock held true", background=True)
    assert await until(lambda: bench.sandbox.jobs.list()[0].stall, 8)
    listed = await bench.acall("jobs", action="list")
    assert str(listed.content).startswith("job_1: running, waits for a lock on ")
    assert "/held: flock held true (PID " in str(listed.content)
    assert await until(lambda: not bench.sandbox.jobs.list()[0].is_running, 8)
    assert bench.sandbox.jobs.list()[0].stall == ""
    await bench.sandbox.aclose()
