"""Helps the check of a task, run in the agent's copy by any Python (standard library alone); exit code 0 passes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

TASK = Path(os.environ.get("AGENTCLI_EVAL_TASK", "."))
TEST_S = 60.0


def record() -> dict[str, Any]:
    """Return the agent's run: `{"answer", "calls": [{"name", "input", "is_error", "content"}], "compactions": 0}`.

    `answer` is empty where it came to no end; `calls` are its own, in order, without those of its subagents.
    """
    made: dict[str, Any] = json.loads(Path(os.environ["AGENTCLI_EVAL_RECORD"]).read_text("utf-8"))
    return made


def calls(name: str) -> list[dict[str, Any]]:
    """The agent's calls of one tool that came to a result without an error."""
    return [call for call in record()["calls"] if call["name"] == name and not call["is_error"]]


def fail(reason: str) -> NoReturn:
    print(reason)
    sys.exit(1)


def require(condition: object, reason: str) -> None:
    if not condition:
        fail(reason)


def text_of(path: str) -> str:
    """A file of the copy; fails the check where it is not there."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")


def require_unchanged(*paths: str) -> None:
    """Fail unless these files are as they were at the start."""
    for path in paths:
        before, now = TASK / "start" / path, Path(path)
        require(now.is_file() and now.read_bytes() == before.read_bytes(), f"{path} was changed")


def run(
    *command: str, timeout_s: float | None = TEST_S, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a program in the copy; both outputs are in `stdout`. One that takes too long fails the check."""
    environment = environment or {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        # A pipe would be waited for as long as a child that was left behind holds it.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=timeout_s,
                check=False, env=environment,
            )  # fmt: skip
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read())
    except subprocess.TimeoutExpired:
        fail(f"{' '.join(command)} took more than {timeout_s:g} s")
    except OSError as error:
        fail(f"{command[0]} could not be run: {error}")


def tests(folder: str | Path) -> tuple[int, bool, str]:
    """Run the unittest files of a folder on the copy: how many ran (by the summary), whether all passed, the output."""
    done = run(sys.executable, "-m", "unittest", "discover", "-s", str(folder), "-t", str(folder))
    count = re.findall(r"^Ran (\d+) tests? in", done.stdout, re.MULTILINE)
    passed = done.returncode == 0 and re.search(r"^OK\b", done.stdout, re.MULTILINE) is not None
    return int(count[-1]) if count else 0, passed and len(count) == 1, done.stdout


def require_tests(folder: str | Path, count: int) -> None:
    """Fail unless exactly `count` tests of a folder ran, and all passed."""
    ran, passed, output = tests(folder)
    require(passed and ran == count, f"{ran} of {count} tests ran, or some failed:\n{output[-2_000:]}")
