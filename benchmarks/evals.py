"""What `agentcli eval run` costs beyond the agent's own time, for each attempt: `evals.py [SAMPLES]`.

The tasks' reference solutions are played one after the other. What is not the agent's time, from its first prompt to its
last answer, is the harness: the copy, the session, the check, the store. The floor is what the checks take by themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agentcli.evals.attempt import HELPERS
from agentcli.evals.task import Task, find_tasks

BOUND_S = 0.5


def main() -> None:
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    tasks = find_tasks()
    with tempfile.TemporaryDirectory() as home:
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "agentcli", "eval", "list"],
            env=os.environ | {"AGENTCLI_HOME": home},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        start = time.monotonic() - started
        command = [
            sys.executable,
            "-m",
            "agentcli",
            "eval",
            "run",
            "-m",
            "scripted/reference",
            "--parallel",
            "1",
            "--samples",
            str(samples),
            "--json",
        ]
        started = time.monotonic()
        run = subprocess.run(
            command,
            env=os.environ | {"AGENTCLI_HOME": home},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        whole = time.monotonic() - started - start
    told = json.loads(run.stdout)
    agent = sum(one["seconds"] for one in told["tasks"])
    count = len(told["tasks"])
    floor = sum(check_alone(task) for task in tasks) / len(tasks)
    print(f"{told['passed']} of {told['total']} passed")
    print(f"an attempt              {whole / count:.3f} s, of which the agent {agent / count:.3f} s")
    print(
        f"beyond the agent        {(whole - agent) / count:.3f} s (bound {BOUND_S} s), of which the check, on an untouched copy {floor:.3f} s"
    )


def check_alone(task: Task) -> float:
    """Seconds of a check by itself, on the tree that the agent starts from."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        record.write_text('{"answer": "", "calls": [], "compactions": 0}')
        copy = Path(folder, "copy")
        subprocess.run(["cp", "-a", task.folder / "start", copy], check=True)
        env = os.environ | {
            "AGENTCLI_EVAL_TASK": str(task.folder),
            "AGENTCLI_EVAL_RECORD": str(record),
            "PYTHONPATH": str(HELPERS),
        }
        started = time.monotonic()
        subprocess.run(
            [task.folder / "check"],
            cwd=copy,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return time.monotonic() - started


if __name__ == "__main__":
    main()
