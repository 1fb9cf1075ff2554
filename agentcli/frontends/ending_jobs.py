"""Tells of the background jobs that end with a session."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.agent.session import Session
from agentcli.tools.command import BackgroundJob

MOST_SHOWN = 60  # characters of a command


def running_jobs(session: Session) -> list[BackgroundJob]:
    return [job for job in session.snapshot().workspace.sandbox.jobs() if job.is_running]


def ended_jobs(jobs: Sequence[BackgroundJob]) -> str:
    """A line for the person; empty where none was running."""
    if not jobs:
        return ""
    subject = "A job was" if len(jobs) == 1 else f"{len(jobs)} jobs were"
    return f"{subject} still running and ended with the session: {named(jobs)}."


def named(jobs: Sequence[BackgroundJob]) -> str:
    shown = ((job.id, " ".join(job.command.split())) for job in jobs)
    return ", ".join(f"{id} ({text if len(text) <= MOST_SHOWN else f'{text[:MOST_SHOWN]}…'})" for id, text in shown)
