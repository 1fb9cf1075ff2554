"""Lays out the line below the input: mode, context, cost, jobs, model, branch; or a line of the person's command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Row
from agentcli.frontends.terminal.text.text_width import clipped, row_width
from agentcli.settings.short_program import run_short_program

COMMAND_TIMEOUT_S = 2.0
LONGEST_OUTPUT = 65_536  # bytes
MODE_LABELS = {"acceptEdits": "accept edits", "bypassPermissions": "bypass permissions", "dontAsk": "never ask"}
_MODE_ROLES = {"default": "muted", "bypassPermissions": "error"}


class Status(Struct, frozen=True):
    """The figures of the line; a status command gets them as JSON on stdin.

    `cold_usd` is what the next request reads again for, once the provider's cache has dropped a long conversation.
    """

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
    cold_usd: float | None = None

    @property
    def context_share(self) -> float:
        return self.context_tokens / self.context_window if self.context_window else 0.0


def status_row(status: Status, columns: int, *, custom: str = "", hint: str = "", vi_mode: str = "") -> Row:
    """One row; a narrow window drops parts from the end."""
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
    if status.cold_usd and not status.is_busy:
        parts.append(("warning", f"cache cold: ${status.cold_usd:.2f} to go on"))
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


class StatusCommand:
    """Runs the command again on each `refresh`, one run at a time; `text` is the line it printed last."""

    def __init__(self, command: str, environment: Mapping[str, str], changed: Callable[[], None]) -> None:
        self._command = command
        self._environment = environment
        self._changed = changed
        self._running: asyncio.Task[None] | None = None
        self.text = ""

    def refresh(self, status: Status) -> None:
        if self._command and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._run(status))

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self, status: Status) -> None:
        self.text = await custom_status(self._command, status, self._environment)
        self._changed()


async def custom_status(command: str, status: Status, environment: Mapping[str, str]) -> str:
    """The first line a status command prints; empty when it fails or takes longer than two seconds."""
    if not command.strip():
        return ""
    told = {**msgspec.structs.asdict(status), "context_share": round(status.context_share, 4)}
    try:
        end = await run_short_program(
            ("/bin/sh", "-c", command),
            timeout_s=COMMAND_TIMEOUT_S,
            max_bytes=LONGEST_OUTPUT,
            environment=environment,
            stdin=msgspec.json.encode(told),
        )
    except OSError:
        return ""
    return printable(end.stdout.decode(errors="replace") if end.exit_code == 0 else "").partition("\n")[0]
