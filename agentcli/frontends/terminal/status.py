"""Keeps the figures of the status line up to date, lays the line out, and runs the person's command for it."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct

from agentcli.agent.commands.model import TIME_TO_LIVE_S
from agentcli.agent.permissions.modes import MODE_TEXTS, Mode
from agentcli.agent.session import Session
from agentcli.agent.state import SessionSnapshot
from agentcli.conversation.instructions import git_branch
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.protocols import TerminalActions, TerminalOpener
from agentcli.frontends.terminal.text.fragments import Row, clipped, row_width
from agentcli.settings.short_program import run_short_program

COMMAND_TIMEOUT_S = 2.0
MAX_OUTPUT_BYTES = 65_536
JOB_CHECK_S = 2.0  # while there are jobs, which end by themselves
LONG_CONTEXT_TOKENS = 20_000  # from which on the price of reading a conversation again is shown
_MODE_ROLES = {"default": "muted", "bypassPermissions": "error"}


class SessionUse(Struct, frozen=True):
    """The tokens of the next request, the model's window, and prices in dollars.

    `cost_usd` is None if a price is not known; `cold_usd` is the price of reading a dropped cache again.
    """

    tokens: int = 0
    window: int = 0
    cost_usd: float | None = 0.0
    budget_usd: float | None = None
    cold_usd: float | None = None

    @property
    def share(self) -> float:
        return self.tokens / self.window if self.window else 0.0


class SessionPlace(Struct, frozen=True):
    """The session's id and working directory, and the branch that is checked out in the project."""

    session_id: str = ""
    cwd: str = ""
    branch: str = ""


class Status(Struct, frozen=True, kw_only=True):
    model: str = ""
    mode: Mode = "default"
    effort: str = ""
    use: SessionUse = SessionUse()
    place: SessionPlace = SessionPlace()
    jobs: int = 0
    is_busy: bool = False

    def to_json(self) -> bytes:
        """Return the object that a status command gets: docs/terminal.md lists its fields."""
        use, place = self.use, self.place
        return msgspec.json.encode(
            {
                "model": self.model,
                "mode": self.mode,
                "effort": self.effort,
                "context_tokens": use.tokens,
                "context_window": use.window,
                "context_share": round(use.share, 4),
                "cost_usd": use.cost_usd,
                "budget_usd": use.budget_usd,
                "cold_usd": use.cold_usd,
                "branch": place.branch,
                "jobs": self.jobs,
                "cwd": place.cwd,
                "session_id": place.session_id,
                "is_busy": self.is_busy,
            }
        )


def status_row(status: Status, columns: int, *, custom: str = "", hint: str = "", vi_mode: str = "") -> Row:
    """Return the status line; a narrow window drops parts from its end. `custom` stands in place of the figures."""
    mode = MODE_TEXTS[status.mode][0] if status.place.session_id or status.mode != "default" else ""
    parts = [
        ("muted" if vi_mode == "INSERT" else "accent", vi_mode),
        ("warning", hint),
        (_MODE_ROLES.get(status.mode, "accent"), mode),
        *([("muted", custom)] if custom else _figures(status)),
    ]
    row: Row = []
    for role, text in parts:
        added: Row = [*([("muted", " · ")] if row else []), (role, printable(text))]
        if row and text and row_width(row) + row_width(added) > columns:
            break
        row += added if text else []
    return clipped(row, columns)


def _figures(status: Status) -> Iterator[tuple[str, str]]:
    use = status.use
    if use.tokens:
        size = f"{use.tokens / 1000:.1f}k tokens" if use.tokens >= 1000 else f"{use.tokens} tokens"
        size = f"{use.share:.0%} context" if use.window else size
        yield "warning" if use.share >= 0.8 else "muted", size
    if use.cost_usd or use.budget_usd:
        spent = "$?" if use.cost_usd is None else f"${use.cost_usd:.2f}"
        yield "muted", spent + (f" of ${use.budget_usd:.2f}" if use.budget_usd else "")
    if use.cold_usd and not status.is_busy:
        yield "warning", f"cache cold: ${use.cold_usd:.2f} to go on"
    if status.jobs:
        yield "accent", f"{status.jobs} job{'s' if status.jobs > 1 else ''}"
    if status.model:
        yield "muted", short_model(status.model) + (f" {status.effort}" if status.effort else "")
    yield "muted", status.place.branch


def short_model(name: str) -> str:
    """Return a model's name without its provider; of a file, its name alone."""
    model = name.partition("/")[2] or name
    return model.rpartition("/")[2] if model.endswith((".gguf", ".jsonl")) else model


class StatusCommand:
    """Runs the person's command whenever the figures have changed; `text` is the first line of its last output."""

    def __init__(self, command: str, environment: Mapping[str, str], changed: Callable[[], None]) -> None:
        self._command = command.strip()
        self._environment = environment
        self._changed = changed
        self._status: Status | None = None  # of the newest run
        self._running: asyncio.Task[None] | None = None
        self.text = ""

    def refresh(self, status: Status) -> None:
        """Run the command for these figures, unless it has run for them or runs just now."""
        if self._command and status != self._status and (self._running is None or self._running.done()):
            self._status = status
            self._running = asyncio.create_task(self.run(status))

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def run(self, status: Status) -> None:
        try:
            end = await run_short_program(
                ("/bin/sh", "-c", self._command),
                timeout_s=COMMAND_TIMEOUT_S,
                max_bytes=MAX_OUTPUT_BYTES,
                environment=self._environment,
                stdin=status.to_json(),
            )
            output = end.stdout if end.exit_code == 0 else b""
        except OSError:  # as for a command that fails: nothing is shown, and the next change tries again
            output = b""
        self.text = printable(output.decode(errors="replace")).partition("\n")[0]
        self._changed()


class SessionStatus:
    """The `status` of the session that it follows; the terminal is drawn again when a figure changes."""

    def __init__(self, opener: TerminalOpener, terminal: TerminalActions) -> None:
        self._opener = opener
        self._terminal = terminal
        self.status = Status()
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, session: Session) -> None:
        self._session = session
        self.refresh()

    def refresh(self) -> None:
        """Read all figures again, and once more when jobs may have ended or the provider's cache is cold."""
        if self._session is None:
            return
        now = self._session.snapshot()
        reply = now.conversation.last_reply  # after it, the provider keeps a long conversation in its cache for a while
        is_long = reply is not None and now.context_tokens >= LONG_CONTEXT_TOKENS
        cold_in_s = reply.time + TIME_TO_LIVE_S - time.time() if reply is not None and is_long else math.inf
        before, self.status = self.status, self._read(now, is_cold=cold_in_s <= 0)
        if self.status != before:
            self._terminal.changed()
        self.close()
        wait_s = JOB_CHECK_S if self.status.jobs else cold_in_s + 1
        if 1 < wait_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.refresh)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _read(self, now: SessionSnapshot, *, is_cold: bool) -> Status:
        info, tokens = self._opener.model_info(now.model), now.context_tokens
        has_cache = is_cold and info.prices is not None and info.prices.cache_read is not None
        cold_usd = tokens * info.prices.max_rates(tokens)[0] if info.prices and has_cache else None
        cwd = os.fsencode(now.workspace.cwd).decode(errors="replace")
        return Status(
            model=now.model,
            mode=now.mode,
            effort=now.effort or "",
            use=SessionUse(tokens, info.window, now.cost_usd, now.max_budget_usd, cold_usd),
            place=SessionPlace(now.id, cwd, git_branch(self._opener.root) or ""),
            jobs=now.running_jobs,
            is_busy=self._session is not None and self._session.is_busy,
        )
