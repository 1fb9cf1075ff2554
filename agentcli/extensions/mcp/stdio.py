"""Runs an MCP server as a child process, limits its output, and leaves none of its processes behind."""

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.extensions.mcp.messages import MessageReader

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # a server that writes a longer line is ended
MAX_STDERR_BYTES = 4_096  # the newest are kept, for the report of its end
GRACE_S = 1.0  # for a server to exit after its stdin was closed, and again after SIGTERM

log = logging.getLogger(__name__)


class ServerProgram(Struct, frozen=True):
    """A program with its arguments, environment and folder, with all variables replaced."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: Path


@asynccontextmanager
async def stdio_transport(launch: ServerProgram, *, on_end: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
    """Yield the streams of a server; `on_end` gets the reason if the server exits by itself. Raises `ToolError`."""
    process = await _start_server(launch)
    read_stream_writer, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, write_stream_reader = anyio.create_memory_object_stream[SessionMessage](0)
    stderr = bytearray()
    tasks = [
        asyncio.create_task(_collect_stderr(process, stderr)),
        asyncio.create_task(_write_messages(process, write_stream_reader)),
        asyncio.create_task(_read_messages(process, read_stream_writer, stderr, on_end)),
        asyncio.create_task(_close_pipes_after_exit(process)),
    ]
    try:
        yield read_stream, write_stream
    finally:
        # The server ends even if this task is cancelled.
        await asyncio.shield(asyncio.create_task(_end_server(process, tasks)))
        for stream in (read_stream_writer, read_stream, write_stream, write_stream_reader):
            stream.close()


async def _start_server(launch: ServerProgram) -> Process:
    """Start the server, with pipes for its stdin, stdout and stderr. Raises `ToolError`."""
    program, *arguments = launch.argv
    path = shutil.which(program, path=launch.environment.get("PATH"))
    if path is None:
        raise ToolError(f"The program {program} does not exist. Install it, or use its full path.", kind="not_found")
    argv = [path, *arguments]
    if setpriv := shutil.which("setpriv"):  # the server ends with agentcli, even if it ignores the end of its stdin
        argv = [setpriv, "--pdeathsig", "KILL", *argv]
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_MESSAGE_BYTES,
            env=launch.environment,
            cwd=launch.cwd,
            start_new_session=True,  # so that signals reach its child processes, too
        )
    except (OSError, ValueError) as error:
        raise ToolError(f"Could not start {program}: {error}.", kind="dependency_error") from error


async def _wait_for_exit(process: Process, *, poll_s: float) -> None:
    """Wait for the end of the server itself: `Process.wait()` also waits for children that hold its pipes."""
    while process.returncode is None:
        await asyncio.sleep(poll_s)


async def _write_messages(process: Process, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # the server has ended, which the reader reports
        async for message in messages:
            process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()


async def _read_messages(
    process: Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    stderr: bytearray,
    on_end: Callable[[str], None],
) -> None:
    """Send the server's messages to the session, until it ends or writes a line that is too long."""
    assert process.stdout is not None
    reason = ""
    try:
        while line := await process.stdout.readline():
            if not line.strip():
                continue
            try:
                message: SessionMessage | Exception = SessionMessage(MessageReader().validate_json(line))
            except ValueError as error:  # some servers print texts for people to stdout
                log.warning("not an MCP message: %.200r", line)
                message = error
            await to_session.send(message)
    except ValueError:  # from `readline`
        reason = f"The server wrote a line of more than {MAX_MESSAGE_BYTES // 2**20} MB."
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session was closed
        return
    with suppress(TimeoutError):
        await asyncio.wait_for(_wait_for_exit(process, poll_s=0.02), GRACE_S)
    code, last_words = process.returncode, stderr.decode(errors="replace").strip()[-500:]
    reason = reason or (f"The server exited with {code}." if code is not None else "The server closed stdout.")
    on_end(f"{reason} Its last output: {last_words}" if last_words else reason)
    to_session.close()


async def _collect_stderr(process: Process, stderr: bytearray) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(65_536):
        stderr.extend(chunk)
        del stderr[:-MAX_STDERR_BYTES]


async def _close_pipes_after_exit(process: Process) -> None:
    """End the reading of a server's output after its exit, because one of its children may hold the pipe open."""
    await _wait_for_exit(process, poll_s=1.0)
    await asyncio.sleep(GRACE_S)  # its last output may still be in the pipe
    _close_pipes(process)


async def _end_server(process: Process, tasks: list[asyncio.Task[None]]) -> None:
    """End the server as the specification says: close stdin, then SIGTERM, then SIGKILL for its process group."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(_wait_for_exit(process, poll_s=0.02), GRACE_S)
                break  # it has exited in time
            _signal(process, number)
    finally:
        _signal(process, signal.SIGKILL)  # for children that outlive the server
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _close_pipes(process)


def _close_pipes(process: Process) -> None:
    """Close our ends of the pipes, which a child of the server may hold open. asyncio has no public way."""
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001
    for descriptor in range(3):
        if (pipe := transport.get_pipe_transport(descriptor)) is not None:
            pipe.close()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
