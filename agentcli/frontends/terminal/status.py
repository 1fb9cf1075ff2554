"""Keeps the figures of the status line up to date, and lays it out; or runs the person's command for it."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct

from agentcli.agent.commands.usage import TIME_TO_LIVE_S
from agentcli.agent.permissions.modes import MODE_TEXTS, Mode
from agentcli.agent.session import Session
from agentcli.agent.state import SessionSnapshot
from agentcli.conversation.instructions import git_branch
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.protocols import TerminalActions, TerminalOpener
from agentcli.frontends.terminal.text.fragments import Row, clipped, row_width
from agentcli.settings.short_program import run_short_program

COMMAND_TIMEOUT_S = 2.0
LONGEST_OUTPUT = 65_536  # bytes
_MODE_ROLES = {"default": "muted", "bypassPermissions": "error"}


class Status(Struct, frozen=True):
    """The figures of the line and of a status command; `cold_usd` is the cost of reading a dropped cache again."""

    model: str = ""
    mode: Mode = "default"
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
    mode = MODE_TEXTS[status.mode][0] if status.session_id or status.mode != "default" else ""
    parts = [
        ("muted" if vi_mode == "INSERT" else "accent", vi_mode),
        ("warning", hint),
        (_MODE_ROLES.get(status.mode, "accent"), mode),
        *([("muted", custom)] if custom else _figures(status)),
    ]
    row: Row = []
    for role, text in parts:
        more: Row = [*([("muted", " · ")] if row else []), (role, printable(text))]
        if row and text and row_width(row) + row_width(more) > columns:
            break
        row += more if text else []
    return clipped(row, columns)


def _figures(status: Status) -> Iterator[tuple[str, str]]:
    tokens, share = status.context_tokens, status.context_share
    if tokens:
        counted = f"{tokens / 1000:.1f}k tokens" if tokens >= 1000 else f"{tokens} tokens"
        yield "warning" if share >= 0.8 else "muted", f"{share:.0%} context" if status.context_window else counted
    if status.cost_usd or status.budget_usd:
        cost = "$?" if status.cost_usd is None else f"${status.cost_usd:.2f}"
        yield "muted", cost + (f" of ${status.budget_usd:.2f}" if status.budget_usd else "")
    if status.cold_usd and not status.is_busy:
        yield "warning", f"cache cold: ${status.cold_usd:.2f} to go on"
    if status.jobs:
        yield "accent", f"{status.jobs} job{'s' if status.jobs > 1 else ''}"
    if status.model:
        yield "muted", short_model(status.model) + (f" {status.effort}" if status.effort else "")
    yield "muted", status.branch


def short_model(name: str) -> str:
    """A model's name without its provider."""
    return name.partition("/")[2] or name


class StatusCommand:
    """Runs the command again on each `refresh`, one run at a time; `text` is the first line that it printed last."""

    def __init__(self, command: str, environment: Mapping[str, str], changed: Callable[[], None]) -> None:
        self._command = command.strip()
        self._environment = environment
        self._changed = changed
        self._running: asyncio.Task[None] | None = None
        self.text = ""

    def refresh(self, status: Status) -> None:
        if self._command and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self.run(status))

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def run(self, status: Status) -> None:
        told = {**msgspec.structs.asdict(status), "context_share": round(status.context_share, 4)}
        try:
            end = await run_short_program(
                ("/bin/sh", "-c", self._command),
                timeout_s=COMMAND_TIMEOUT_S,
                max_bytes=LONGEST_OUTPUT,
                environment=self._environment,
                stdin=msgspec.json.encode(told),
            )
            printed = end.stdout if end.exit_code == 0 else b""
        except OSError:  # as for a command that fails: nothing is shown, and the next change tries again
            printed = b""
        self.text = printable(printed.decode(errors="replace")).partition("\n")[0]
        self._changed()


JOB_CHECK_S = 2.0  # while there are jobs, which end by themselves
LONG = 20_000  # tokens of a conversation whose price is told before it is read again


class SessionStatus:
    """The figures of the session it `follow`s, in `status`; tells the terminal when one of them changes."""

    def __init__(self, opener: TerminalOpener, terminal: TerminalActions) -> None:
        self._opener = opener
        self._terminal = terminal
        self.status = Status()
        self._session: Session | None = None
        self._context_tokens = 0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, session: Session) -> None:
        self._session = session
        self.recount()

    def recount(self) -> None:
        """Take the size of the context from the log: from its newest reply and the request before it."""
        if self._session is not None:
            self.refresh(self._session.snapshot().context_tokens)

    def refresh(self, context_tokens: int | None = None) -> None:
        """Read all figures again; `context_tokens` where that one has changed."""
        if context_tokens is not None:
            self._context_tokens = context_tokens
        if self._session is None:
            return
        now = self._session.snapshot()
        reply = now.conversation.last_reply  # the provider's cache holds a long conversation for a while
        is_long = reply is not None and self._context_tokens >= LONG
        cold_in_s = reply.time + TIME_TO_LIVE_S - time.time() if reply is not None and is_long else math.inf
        before, self.status = self.status, self._read(now, is_cold=cold_in_s <= 0)
        if self.status != before:
            self._terminal.status_changed()
            self._terminal.changed()
        self.close()
        wait_s = JOB_CHECK_S if self.status.jobs else cold_in_s + 1
        if 1 < wait_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.refresh)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _read(self, now: SessionSnapshot, *, is_cold: bool) -> Status:
        info, tokens = self._opener.model_info(now.model), self._context_tokens
        has_cache = info.prices is not None and info.prices.cache_read is not None
        cold_usd = tokens * info.prices.max_rates(tokens)[0] if info.prices and has_cache else None
        return Status(
            model=now.model,
            mode=now.mode,
            effort=now.effort or "",
            context_tokens=tokens,
            context_window=info.window,
            cost_usd=now.cost_usd,
            budget_usd=now.max_budget_usd,
            branch=git_branch(self._opener.root) or "",
            jobs=now.running_jobs,
            cwd=os.fsencode(now.workspace.cwd).decode(errors="replace"),
            session_id=now.id,
            is_busy=now.is_busy,
            cold_usd=cold_usd if is_cold else None,
        )
