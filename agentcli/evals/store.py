"""Keeps runs and the outcome of each attempt in an SQLite file."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from agentcli.agent.accounting.usage import counted
from agentcli.errors import StorageError, UsageError
from agentcli.frontends.export.markdown import money
from agentcli.llm.messages import Usage
from agentcli.settings.files import make_private_folder
from agentcli.version import __version__

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, created REAL NOT NULL, ended REAL, about TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attempts (
    run_id TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, task TEXT NOT NULL, sample INTEGER NOT NULL,
    outcome TEXT NOT NULL, transcript BLOB NOT NULL, PRIMARY KEY (run_id, task, sample)
);
"""
_WAIT_MS = 10_000  # for another program that writes


class PlannedTask(Struct, frozen=True):
    name: str
    version: str
    title: str
    difficulty: str


class About(Struct, frozen=True):
    """The subject of a run. `tasks_folder` tells sets of tasks apart that use the same names."""

    variant: Variant
    tasks: tuple[PlannedTask, ...]
    samples: int
    tasks_folder: str = ""
    name: str = ""
    engine: str = "local"
    agentcli: str = __version__
    python: str = platform.python_version()
    machine: str = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"

    @property
    def key(self) -> str:
        """Return a key that a run shares with an unfinished one that it may continue; their engines may differ."""
        same = (self.variant, self.tasks, self.samples, self.tasks_folder, self.name, self.agentcli)
        return hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:16]

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """The task and number of each attempt; those at one task follow each other because they share caches."""
        return [(task.name, sample) for task in self.tasks for sample in range(1, self.samples + 1)]


class EvalRun(Struct, frozen=True):
    """A stored run. `ended` is None for one with attempts still to be made; times are seconds since 1970."""

    id: str
    created: float
    ended: float | None
    about: About
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def cost_usd(self) -> float | None:
        return cost_of(self.outcomes)

    def of_task(self, task: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.task == task]


def cost_of(outcomes: Sequence[Outcome]) -> float | None:
    """Return the cost of some attempts in US dollars; None if one of them has no known price."""
    costs = [outcome.cost_usd for outcome in outcomes if outcome.cost_usd is not None]
    return sum(costs) if len(costs) == len(outcomes) else None


class EvalStore:
    """The file, opened at once. Raises `StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            make_private_folder(path.parent)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(_WAIT_MS)
            self._db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON")
            self._db.execute(_TABLES)

    def close(self) -> None:
        self._db.close()

    def begin(self, about: About, *, is_new: bool = False) -> EvalRun:
        """Return the newest unfinished run of these arguments; without one, or with `is_new`, begin another."""
        query = "SELECT id FROM runs WHERE key = ? AND ended IS NULL ORDER BY created DESC LIMIT 1"
        with self._transaction():
            if not is_new and (rows := list(self._db.execute(query, (about.key,)))):
                return self._run(str(rows[0][0]))
            now = time.time()
            id = f"{time.strftime('%m%d-%H%M', time.localtime(now))}-{secrets.token_hex(2)}"
            row = (id, about.key, now, msgspec.json.encode(about).decode())
            self._db.execute("INSERT INTO runs VALUES (?, ?, ?, NULL, ?)", row)
            return EvalRun(id, now, None, about)

    @contextmanager
    def hold(self, run: EvalRun) -> Iterator[None]:
        """Keep other programs from continuing a run. Raises `UsageError` where one does."""
        lock = FileLock(self._path.with_name(f"eval-{run.id}.lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise UsageError(f"Run {run.id} is under way in another program; --new begins another.") from error
        try:
            yield
        finally:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)

    def add(self, run_id: str, attempted: Attempted) -> None:
        outcome = attempted.outcome
        row = (
            run_id, outcome.task, outcome.sample,
            msgspec.json.encode(outcome).decode(), zlib.compress(attempted.transcript),
        )  # fmt: skip
        with self._transaction():
            self._db.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?)", row)

    def end(self, run_id: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE runs SET ended = ? WHERE id = ?", (time.time(), run_id))

    def runs(self) -> Sequence[EvalRun]:
        """Return all runs, the newest first."""
        with self._transaction():
            return [self._run(str(id)) for (id,) in list(self._db.execute("SELECT id FROM runs ORDER BY created DESC"))]

    def find(self, name: str) -> EvalRun:
        """Return a run by its id, the beginning of it, or its name (the newest of that name). Raises `UsageError`."""
        runs = self.runs()
        found = [run for run in runs if name in (run.id, run.about.name)][:1]
        found = found or [run for run in runs if name and run.id.startswith(name)]
        if len(found) != 1:
            what = "Several runs begin" if found else "No run begins"
            raise UsageError(f"{what} with {name!r}: `agentcli eval list` shows them.")
        return found[0]

    def transcript(self, run_id: str, task: str, sample: int) -> bytes:
        """Return the packed conversation of an attempt that is stored."""
        query = "SELECT transcript FROM attempts WHERE run_id = ? AND task = ? AND sample = ?"
        with self._transaction():
            ((data,),) = self._db.execute(query, (run_id, task, sample))
            return zlib.decompress(data)

    def _run(self, id: str) -> EvalRun:
        ((created, ended, data),) = self._db.execute("SELECT created, ended, about FROM runs WHERE id = ?", (id,))
        rows = self._db.execute("SELECT outcome FROM attempts WHERE run_id = ?", (id,))
        found = {(one.task, one.sample): one for one in (msgspec.json.decode(row, type=Outcome) for (row,) in rows)}
        about = msgspec.json.decode(data, type=About)
        return EvalRun(id, created, ended, about, tuple(found[job] for job in about.jobs if job in found))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), self._db:
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError, msgspec.MsgspecError) as error:
            raise StorageError(f"{self._path}: {error}. Free some space, or move the file away.") from error


End = Literal["end_turn", "max_tokens", "max_turns", "max_budget", "timeout", "stopped", "interrupted", "error"]


class Variant(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The setup of a run's agent, in which two runs may differ; its `settings`, nested, and `time_s` replace a task's.

    `model` may be `scripted/reference`, which plays each task's own solution, or `scripted/nothing`.
    """

    model: str
    system_prompt: str | None = None
    append_system_prompt: str = ""
    skills: tuple[str, ...] = ()
    time_s: float | None = None
    settings: dict[str, Any] = {}


class Outcome(Struct, frozen=True):
    """The outcome of one attempt. `score` is 0 to 1, `reason` the output of a check that did not pass.

    `turns` are requests. A cost of None: a price is not known. `verified`: a check passed after the last change.
    `claims` counts those of the answers by verdict. `prefix` are hashes of the tools and the system text. A `failure`
    is one of the provider or this machine: such an attempt is made again.
    """

    task: str
    sample: int
    passed: bool = False
    score: float = 0.0
    reason: str = ""
    end: End = "end_turn"
    error: str = ""
    turns: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    usage: Usage = Usage()
    tools: dict[str, int] = {}
    tool_errors: dict[str, int] = {}
    verified: bool = False
    claims: dict[str, int] = {}
    compactions: int = 0
    prefix: str = ""
    answered_by: str = ""
    failure: str = ""


class Attempted(Struct, frozen=True):
    """An outcome with its conversation, packed."""

    outcome: Outcome
    transcript: bytes = b""


def outcome_line(outcome: Outcome) -> str:
    false_claims = outcome.claims.get("refuted", 0)
    parts = [
        f"{outcome.score:.2f}",
        counted(outcome.turns, "request"),
        money(outcome.cost_usd),
        f"{outcome.seconds:.1f} s",
        outcome.end if outcome.end != "end_turn" else "",
        "verified" if outcome.verified else "",
        counted(false_claims, "false claim") if false_claims else "",
    ]
    return f"{'✓' if outcome.passed else '✗'} {outcome.task} #{outcome.sample}: {', '.join(filter(None, parts))}"
