"""The line below the input: where, with what, how full, for how much."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.output.screen import Row
from agentcli.frontends.terminal.text.text_width import clipped, row_width

COMMAND_TIMEOUT_S = 2.0
KILL_TIMEOUT_S = 0.5
LONGEST_OUTPUT = 65_536  # bytes; a status command that prints more is not waited for
MODE_LABELS = {"acceptEdits": "accept edits", "bypassPermissions": "bypass permissions", "dontAsk": "never ask"}
_MODE_ROLES = {"default": "muted", "bypassPermissions": "error"}


class Status(Struct, frozen=True):
    """What the line shows; a status command gets it as JSON on stdin."""

    model: str = ""
    mode: str = "default"
    effort: str = ""
    context_tokens: int = 0
    context_window: int = 0
    cost_usd: float | None = 0.0
    budget_usd: float | None = None
    branch: str = ""
    jobs: int = 0
    cwd: str = ""
    session_id: str = ""
    is_busy: bool = False

    @property
    def context_share(self) -> float:
        return self.context_tokens / self.context_window if self.context_window else 0.0


def status_row(status: Status, columns: int, *, custom: str = "", hint: str = "", vi_mode: str = "") -> Row:
    """One row; parts at the end are left out when the window is narrow."""
    parts: list[tuple[str, str]] = []
    if vi_mode:
        parts.append(("muted" if vi_mode == "INSERT" else "accent", vi_mode))
    if hint:
        parts.append(("warning", hint))
    if status.session_id or status.mode != "default":
        role = _MODE_ROLES.get(status.mode, "accent")
        parts.append((role, mode_label(status.mode)))
    if custom:
        parts.append(("muted", custom))
        status = Status()
    if status.context_tokens:
        share = status.context_share
        used = f"{share:.0%} context" if status.context_window else f"{_thousands(status.context_tokens)} tokens"
        parts.append(("warning" if share >= 0.8 else "muted", used))
    if status.cost_usd or status.budget_usd:
        cost = "$?" if status.cost_usd is None else f"${status.cost_usd:.2f}"
        parts.append(("muted", cost + (f" of ${status.budget_usd:.2f}" if status.budget_usd else "")))
    if status.jobs:
        parts.append(("accent", f"{status.jobs} job{'s' if status.jobs > 1 else ''}"))
    if status.model:
        parts.append(("muted", short_model(status.model) + (f" {status.effort}" if status.effort else "")))
    if status.branch:
        parts.append(("muted", status.branch))
    row: Row = []
    for role, text in parts:
        text = printable(text)
        more: Row = [("muted", " · "), (role, text)] if row else [(role, text)]
        if row and row_width(row) + row_width(more) > columns:
            break
        row += more
    return clipped(row, columns)


def mode_label(mode: str) -> str:
    return MODE_LABELS.get(mode, mode)


def short_model(name: str) -> str:
    """A model's name without its provider."""
    return name.partition("/")[2] or name


def _thousands(tokens: int) -> str:
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)


async def custom_status(command: str, status: Status, environment: Mapping[str, str]) -> str:
    """The first line a status command prints; empty when it fails or takes longer than two seconds."""
    process = None
    is_done = False
    try:
        if not command.strip():
            return ""
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            output = await _answer(process, msgspec.json.encode(_as_dict(status)))
            is_done = await process.wait() == 0
    except (OSError, ValueError, TimeoutError):
        return ""
    finally:
        if process is not None and not is_done:
            await _end(process)
    return printable(output.decode("utf-8", "replace")).partition("\n")[0] if is_done else ""


async def _answer(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question)
    process.stdin.close()
    try:
        return await process.stdout.readexactly(LONGEST_OUTPUT)
    except asyncio.IncompleteReadError as ended:
        return ended.partial


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with its children, and read what is left so that the pipe is closed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_TIMEOUT_S):
            while await process.stdout.read(LONGEST_OUTPUT):
                pass
            await process.wait()


def _as_dict(status: Status) -> dict[str, Any]:
    return {**msgspec.structs.asdict(status), "context_share": round(status.context_share, 4)}
