"""Stores eval runs and the outcome of each attempt, as plain data in an SQLite file."""

import hashlib
import os
import platform
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import apsw
import msgspec

from agentcli.conversation.history import counted
from agentcli.errors import StorageError, UsageError
from agentcli.frontends.export.markdown import format_cost
from agentcli.llm.messages import Usage
from agentcli.settings.files import FileLock, make_private_folder
from agentcli.version import __version__

End = Literal[
    "end_turn", "max_tokens", "max_turns", "max_budget", "timeout", "stopped", "paused", "interrupted", "error"
]


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The agent's setup, in which two runs may differ. Its settings and its time override those of a task."""

    model: str  # also `scripted/reference`, which plays each task's own solution, and `scripted/nothing`
    system_prompt: str | None = None
    append_system_prompt: str = ""
    skills: tuple[str, ...] = ()
    time_s: float | None = None  # for an attempt
    settings: dict[str, Any] = {}  # nested like config.toml
    judge: str = ""  # the model that grades, if it is another one


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a task's check: a score from 0 to 1, and the output of a check that did not pass."""

    passed: bool = False
    score: float = 0.0
    reason: str = ""


class Spent(msgspec.Struct, frozen=True):
    """The time and money that the agent took. The cost is None where a price is not known."""

    seconds: float = 0.0
    cost_usd: float | None = 0.0
    usage: Usage = Usage()


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's work, as its log shows it."""

    requests: int = msgspec.field(default=0, name="turns")  # its name in stored and printed results
    tools: dict[str, int] = {}  # the number of calls by tool
    tool_errors: dict[str, int] = {}
    verified: bool = False  # a check of the agent's own passed after its last change
    claims: dict[str, int] = {}  # the number of claims in answers by verdict
    compactions: int = 0
    prefix: str = ""  # a hash of the tools and the system text
    answered_by: str = ""  # the model that gave the last reply


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one attempt at a task; `sample` counts the attempts from 1."""

    task: str
    sample: int
    end: End = "end_turn"
    error: str = ""
    check: CheckResult = CheckResult()
    spent: Spent = Spent()
    work: Work = Work()

    @property
    def passed(self) -> bool:
        return self.check.passed

    def as_row(self) -> dict[str, Any]:
        """Return the outcome as one flat object, which is how it is stored and printed."""
        row: dict[str, Any] = msgspec.to_builtins(self)
        check, spent, work = (row.pop(part) for part in ("check", "spent", "work"))
        return {**row, **check, **spent, **work}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        # Each part takes its own fields from the row.
        return msgspec.convert({**row, "check": row, "spent": row, "work": row}, cls)


class EvalAttempt(msgspec.Struct, frozen=True):
    """An outcome with its packed conversation. One with a `failure` is not stored, and the attempt is made again."""

    outcome: Outcome
    transcript: bytes = b""
    failure: str = ""  # an error of the provider or of this machine, which says nothing about the agent


def outcome_line(outcome: Outcome) -> str:
    """Return an outcome as a line for the person, such as `✓ fix-a-loop #1: 1.00, 3 requests, $0.02, 8.1 s`."""
    work, spent, false_claims = outcome.work, outcome.spent, outcome.work.claims.get("refuted", 0)
    parts = [
        f"{outcome.check.score:.2f}",
        counted(work.requests, "request"),
        format_cost(spent.cost_usd),
        f"{spent.seconds:.1f} s",
        outcome.end if outcome.end != "end_turn" else "",
        "verified" if work.verified else "",
        counted(false_claims, "false claim") if false_claims else "",
    ]
    return f"{'✓' if outcome.passed else '✗'} {outcome.task} #{outcome.sample}: {', '.join(filter(None, parts))}"


class PlannedTask(msgspec.Struct, frozen=True):
    name: str
    version: str
    title: str
    difficulty: str


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts that a run consists of. `tasks_folder` distinguishes sets of tasks that use the same names."""

    variant: Variant
    tasks: tuple[PlannedTask, ...]
    samples: int
    tasks_folder: str = ""
    name: str = ""
    engine: str = "local"
    agentcli: str = __version__
    machine: str = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )

    @property
    def key(self) -> str:
        """A hash of the setup: an unfinished run with the same key may be continued, even with another engine."""
        same = (self.variant, self.tasks, self.samples, self.tasks_folder, self.name, self.agentcli)
        return hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:16]

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """The task and number of each attempt; those at one task follow each other because they share caches."""
        return [(task.name, sample) for task in self.tasks for sample in range(1, self.samples + 1)]


class EvalRun(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run. Times are seconds since 1970; `ended` is None while attempts are still to be made."""

    id: str
    created: float
    ended: float | None
    plan: RunPlan
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    def of_task(self, task: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.task == task]


def cost_of(outcomes: Sequence[Outcome]) -> float | None:
    """Return the cost of some attempts in US dollars; None if one of them has no known price."""
    costs = [outcome.spent.cost_usd for outcome in outcomes if outcome.spent.cost_usd is not None]
    return sum(costs) if len(costs) == len(outcomes) else None


_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, created REAL NOT NULL, ended REAL, about TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attempts (
    run_id TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, task TEXT NOT NULL, sample INTEGER NOT NULL,
    outcome TEXT NOT NULL, transcript BLOB NOT NULL, PRIMARY KEY (run_id, task, sample)
);
"""
_BUSY_TIMEOUT_MS = 10_000  # while another program writes


class EvalStore:
    """An SQLite file with runs, opened by the constructor. Every method may raise `StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            make_private_folder(path.parent)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(_BUSY_TIMEOUT_MS)
            self._db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON")
            self._db.execute(_TABLES)

    def close(self) -> None:
        self._db.close()

    def begin_or_continue(self, plan: RunPlan, *, is_new: bool = False) -> EvalRun:
        """Return the newest unfinished run of the same plan (its `key`); without one, or with `is_new`, begin a run."""
        query = "SELECT id FROM runs WHERE key = ? AND ended IS NULL ORDER BY created DESC LIMIT 1"
        with self._transaction():
            if not is_new and (rows := list(self._db.execute(query, (plan.key,)))):
                return self._load_run(str(rows[0][0]))
            now = time.time()
            id = f"{time.strftime('%m%d-%H%M', time.localtime(now))}-{secrets.token_hex(2)}"
            plan_json = msgspec.json.encode(plan).decode()
            self._db.execute("INSERT INTO runs VALUES (?, ?, ?, NULL, ?)", (id, plan.key, now, plan_json))
            return EvalRun(id=id, created=now, ended=None, plan=plan)

    @contextmanager
    def lock(self, run: EvalRun) -> Iterator[None]:
        """Keep other programs from continuing a run. Raises `UsageError` if one is continuing it."""
        file = self._path.with_name(f"eval-{run.id}.lock")
        lock = FileLock(file)
        if not lock.try_acquire():
            raise UsageError(f"Another program is running {run.id}. To start another run, add --new.")
        try:
            yield
        finally:
            file.unlink(missing_ok=True)  # before the release, after which the file may be another program's
            lock.release()

    def add(self, run_id: str, attempt: EvalAttempt) -> None:
        outcome = attempt.outcome
        row = msgspec.json.encode(outcome.as_row()).decode()
        values = (run_id, outcome.task, outcome.sample, row, zlib.compress(attempt.transcript))
        with self._transaction():
            self._db.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?)", values)

    def end(self, run_id: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE runs SET ended = ? WHERE id = ?", (time.time(), run_id))

    def runs(self) -> Sequence[EvalRun]:
        with self._transaction():
            ids = [str(id) for (id,) in self._db.execute("SELECT id FROM runs ORDER BY created DESC")]
            return [self._load_run(id) for id in ids]

    def find(self, name: str) -> EvalRun:
        """Return a run by its id, the beginning of it, or its name (the newest of that name). Raises `UsageError`."""
        runs = self.runs()  # the newest first
        exact = next((run for run in runs if name in (run.id, run.plan.name)), None)
        if exact is not None:
            return exact
        found = [run for run in runs if name and run.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        problem = "Several runs start" if found else "No run starts"
        raise UsageError(f"{problem} with {name!r}. To list the runs: `agentcli eval list`")

    def transcript(self, run_id: str, task: str, sample: int) -> bytes:
        query = "SELECT transcript FROM attempts WHERE run_id = ? AND task = ? AND sample = ?"
        with self._transaction():
            ((data,),) = self._db.execute(query, (run_id, task, sample))
            return zlib.decompress(data)

    def _load_run(self, id: str) -> EvalRun:
        ((created, ended, data),) = self._db.execute("SELECT created, ended, about FROM runs WHERE id = ?", (id,))
        rows = self._db.execute("SELECT outcome FROM attempts WHERE run_id = ?", (id,))
        outcomes = [Outcome.from_row(msgspec.json.decode(row)) for (row,) in rows]
        by_attempt = {(outcome.task, outcome.sample): outcome for outcome in outcomes}
        plan = msgspec.json.decode(data, type=RunPlan)
        in_order = tuple(by_attempt[attempt] for attempt in plan.attempts if attempt in by_attempt)
        return EvalRun(id=id, created=created, ended=ended, plan=plan, outcomes=in_order)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), self._db:
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError, msgspec.MsgspecError) as error:
            raise StorageError(f"{self._path} failed: {error}. Free some space, or move the file away.") from error
