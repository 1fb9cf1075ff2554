"""Reads how an attempt went from its log, and runs the task's check in the agent's copy, confined as the agent was."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from agentcli.agent.events import Done, TurnFailed
from agentcli.app import Builder
from agentcli.conversation.entries import Assistant, Compaction, Entry, Result
from agentcli.conversation.evidence.verdicts import Record
from agentcli.conversation.history import calls_in
from agentcli.errors import UsageError
from agentcli.evals.task import Task
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.settings.load import Config
from agentcli.setup.workspace import make_sandbox
from agentcli.tools.command import Command, Grants

HELPERS = Path(__file__).with_name("checking")
RECORD = "record.json"
MAX_REASON_CHARS = 2_000
_SCORE = re.compile(r"(?:0|1|0?\.\d+|[01]\.\d*)")


def measures(entries: Sequence[Entry], ends: Sequence[Done | TurnFailed], cwd: str) -> dict[str, Any]:
    """Return the fields of an `Outcome` that follow from the log and the ends of the turns."""
    results = [entry.body for entry in entries if isinstance(entry.body, Result)]
    replies = [entry.body for entry in entries if isinstance(entry.body, Assistant)]
    record = Record(entries, cwd)
    return {
        "turns": len(replies),
        "tools": dict(Counter(result.name for result in results)),
        "tool_errors": dict(Counter(result.name for result in results if result.result.is_error)),
        "verified": any(run.passed and not record.is_stale(run) for run in record.runs),
        "claims": dict(Counter(claim.verdict for end in ends if isinstance(end, Done) for claim in end.claims)),
        "compactions": _compactions(entries),
        "prefix": replies[-1].prefix if replies else "",
        "answered_by": f"{replies[-1].provider}/{replies[-1].model}" if replies else "",
    }


def record_for_check(entries: Sequence[Entry], ends: Sequence[Done | TurnFailed]) -> dict[str, Any]:
    """Return the record of an attempt that its check may read; see `checking/eval_check.py`."""
    results = {entry.body.result.tool_use_id: entry.body.result for entry in entries if isinstance(entry.body, Result)}
    calls = [call for entry in entries if isinstance(entry.body, Assistant) for call in calls_in(entry.body)]
    made = [(call, results[call.id]) for call in calls if call.id in results]
    return {
        "answer": ends[-1].text if ends and isinstance(ends[-1], Done) else "",
        "calls": [
            {"name": call.name, "input": call.input, "is_error": result.is_error, "content": result.text}
            for call, result in made
        ],
        "compactions": _compactions(entries),
    }


def _compactions(entries: Sequence[Entry]) -> int:
    return sum(isinstance(entry.body, Compaction) for entry in entries)


async def check(task: Task, config: Config, record: bytes, room: Path) -> tuple[bool, float, str]:
    """Return whether the copy passes, its score, and a reason; task and helpers are copied into the `room`, in view."""
    folder = room / "task"
    await asyncio.to_thread(shutil.copytree, task.folder, folder, symlinks=True)
    await asyncio.to_thread(shutil.copytree, HELPERS, folder / HELPERS.name)
    (folder / RECORD).write_bytes(record)
    sandbox = structs.replace(config.settings.sandbox, masked=())  # the check reads what the agent may not
    config = structs.replace(config, settings=structs.replace(config.settings, sandbox=sandbox))
    rules = Builder(config, store=MemorySessions()).rules()
    shell = make_sandbox(config, (config.cwd, folder), session_id="check", rules=rules, profile=None)
    if sandbox.profile != "danger-full-access" and not shell.facts().confines:
        raise UsageError(
            "Nothing confines commands on this machine (see agentcli doctor). In a container that holds nothing else, "
            'run with --settings FILE, in which [sandbox] has profile = "danger-full-access".'
        )
    variables = {
        "AGENTCLI_EVAL_TASK": folder,
        "AGENTCLI_EVAL_RECORD": folder / RECORD,
        "PYTHONPATH": folder / HELPERS.name,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    given = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
    try:
        command = f"{given} exec {shlex.quote(str(folder / 'check'))}"
        grants = Grants(hosts=sandbox.hosts)
        result = await shell.run(Command(command, config.cwd, task.check_time_s, grants=grants))
    finally:
        await shell.aclose()
    if result.timed_out:
        return False, 0.0, f"The check took more than {task.check_time_s:g} s."
    passed, output = result.exit_code == 0, result.output.strip()
    last_line = output.rpartition("\n")[2].strip()
    score = min(1.0, float(last_line)) if _SCORE.fullmatch(last_line) else float(passed)
    if len(output) > MAX_REASON_CHARS:
        half = MAX_REASON_CHARS // 2
        output = f"{output[:half]}\n…\n{output[-half:]}"
    return passed, score, "" if passed else output
