"""Runs the check of a task in the agent's copy, confined as the agent's own commands were."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from pathlib import Path

from msgspec import structs

from agentcli.app import Builder
from agentcli.errors import UsageError
from agentcli.evals.task import Task
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.settings.load import Config
from agentcli.setup.sandbox import make_sandbox
from agentcli.tools.command import Command

HELPERS = Path(__file__).with_name("checking")
RECORD = "record.json"
LONGEST_REASON = 2_000  # characters
_SCORE = re.compile(r"(?:0|1|0?\.\d+|[01]\.\d*)")


async def check(task: Task, config: Config, record: bytes, room: Path) -> tuple[bool, float, str]:
    """Whether the copy passes, its score, and the end of what the check said; `config` is of the copy.

    The task and the helpers of checks are copied into the `room`: wherever they lie, the sandbox shows them there.
    """
    folder = room / "task"
    await asyncio.to_thread(shutil.copytree, task.folder, folder, symlinks=True)
    await asyncio.to_thread(shutil.copytree, HELPERS, folder / HELPERS.name)
    (folder / RECORD).write_bytes(record)
    sandbox = structs.replace(config.settings.sandbox, masked=())  # the check reads what the agent may not
    config = structs.replace(config, settings=structs.replace(config.settings, sandbox=sandbox))
    rules = Builder(config, store=MemorySessions()).rules()
    shell = make_sandbox(config, (config.cwd, folder), session_id="check", rules=rules, profile=None)
    if sandbox.profile != "danger-full-access" and not shell.confines:
        raise UsageError(
            "Nothing confines commands on this machine (see agentcli doctor). In a container that holds nothing else, "
            "--sandbox danger-full-access runs them all the same."
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
        result = await shell.exec(Command(command, config.cwd, task.check_time_s))
    finally:
        await shell.aclose()
    if result.timed_out:
        return False, 0.0, f"The check took more than {task.check_time_s:g} s."
    passed = result.exit_code == 0
    lines = result.output.strip().splitlines()
    told = lines[-1].strip() if lines else ""
    score = min(1.0, float(told)) if _SCORE.fullmatch(told) else float(passed)
    return passed, score, "" if passed else _cut(result.output.strip())


def _cut(text: str) -> str:
    """Its beginning and its end."""
    half = LONGEST_REASON // 2
    return text if len(text) <= LONGEST_REASON else f"{text[:half]}\n…\n{text[-half:]}"
