"""Keeps the figures of the status line up to date."""

from __future__ import annotations

import asyncio
import os
import time

from agentcli.agent.commands.cache import TIME_TO_LIVE_S
from agentcli.agent.session import Session
from agentcli.agent.snapshot import SessionSnapshot
from agentcli.frontends.terminal.output.status_line import Status
from agentcli.frontends.terminal.protocols import TerminalActions, TerminalOpener

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
        self._job_timer: asyncio.TimerHandle | None = None
        self._cold_timer: asyncio.TimerHandle | None = None

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
        before, self.status = self.status, self._read(self._session)
        if self.status != before:
            self._terminal.status_changed()
        if self.status.jobs and self._job_timer is None:
            self._job_timer = asyncio.get_running_loop().call_later(JOB_CHECK_S, self._check_jobs)

    def close(self) -> None:
        for timer in (self._job_timer, self._cold_timer):
            if timer is not None:
                timer.cancel()

    def _read(self, session: Session) -> Status:
        now = session.snapshot()
        return Status(
            model=now.model,
            mode=now.mode,
            effort=now.effort or "",
            context_tokens=self._context_tokens,
            context_window=self._opener.window(now.model),
            cost_usd=now.cost_usd,
            budget_usd=now.max_budget_usd,
            branch=self._opener.branch(),
            jobs=now.running_jobs,
            cwd=os.fsencode(now.workspace.cwd).decode(errors="replace"),
            session_id=now.id,
            is_busy=now.is_busy,
            cold_usd=self._cold_usd(now),
        )

    def _cold_usd(self, now: SessionSnapshot) -> float | None:
        """What reading a long conversation again costs, from when its cache is gone; until then a timer waits."""
        if self._cold_timer is not None:
            self._cold_timer.cancel()
            self._cold_timer = None
        reply = now.conversation.last_reply
        if reply is None or self._context_tokens < LONG:
            return None
        if (left_s := reply.time + TIME_TO_LIVE_S - time.time()) > 0:
            self._cold_timer = asyncio.get_running_loop().call_later(left_s + 1, self.refresh)
            return None
        return self._opener.cold_read_usd(now.model, self._context_tokens)

    def _check_jobs(self) -> None:
        self._job_timer = None
        before = self.status.jobs
        self.refresh()
        if self.status.jobs != before:
            self._terminal.changed()
