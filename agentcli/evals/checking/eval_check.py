"""Helpers for a task's check, which runs in the agent's copy, under any Python version. Exit code 0 passes."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

TASK = Path(os.environ.get("AGENTCLI_EVAL_TASK", "."))
TEST_S = 60.0


def record() -> Any:
    """Return the agent's run: `{"answer", "calls": [{"name", "input", "is_error", "content"}], "compactions": 0}`.

    `answer` is empty if the agent did not finish; `calls` are its own, in order, without those of its subagents.
    """
    return json.loads(Path(os.environ["AGENTCLI_EVAL_RECORD"]).read_text("utf-8"))


def calls(name: str) -> list[dict[str, Any]]:
    """Return the agent's calls of one tool that had a result without an error."""
    return [call for call in record()["calls"] if call["name"] == name and not call["is_error"]]


def fail(reason: str) -> NoReturn:
    print(reason)
    sys.exit(1)


def require(condition: object, reason: str) -> None:
    if not condition:
        fail(reason)


def text_of(path: str) -> str:
    """Return the text of a file in the copy. Fails the check if the file cannot be read."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"could not read {path}: {error}")


def require_unchanged(*paths: str) -> None:
    """Fail unless these files are as they were at the start."""
    for path in paths:
        before, now = TASK / "start" / path, Path(path)
        require(now.is_file() and now.read_bytes() == before.read_bytes(), f"{path} was changed")


def run(*command: str, timeout_s: float = TEST_S) -> subprocess.CompletedProcess[str]:
    """Run a program in the copy; both outputs are in `stdout`. One that takes too long fails the check."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        # A pipe would keep this waiting for as long as a background process of the program holds it.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                env=environment,
            )
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read())
    except subprocess.TimeoutExpired:
        fail(f"{' '.join(command)} timed out after {timeout_s:g} s")
    except OSError as error:
        fail(f"could not run {command[0]}: {error}")


def tests(folder: str | Path) -> tuple[int, bool, str]:
    """Run the unittest files of a folder on the copy; return how many ran, True if all passed, and the output."""
    done = run(sys.executable, "-m", "unittest", "discover", "-s", str(folder), "-t", str(folder))
    counts = re.findall(r"^Ran (\d+) tests? in", done.stdout, re.MULTILINE)
    passed = done.returncode == 0 and re.search(r"^OK\b", done.stdout, re.MULTILINE) is not None
    is_genuine = len(counts) == 1  # the agent's code may print a summary of its own
    return int(counts[-1]) if counts else 0, passed and is_genuine, done.stdout


def require_tests(folder: str | Path, count: int) -> None:
    """Fail unless exactly `count` tests of a folder ran, and all passed."""
    ran, passed, output = tests(folder)
    require(passed and ran == count, f"{ran} of {count} tests ran, or some failed:\n{output[-2_000:]}")


def check_graders() -> None:
    """Print the graders of `graders.json` that are not met, then the share of those that are, as the score, and exit.

    This is the whole check of a task made from a skill's evals. It passes if all graders are met.

    The record has a grade, `{"passed", "evidence"}`, for each one of the type `llm`, in order.
    """
    graders, grades = json.loads((TASK / "graders.json").read_text("utf-8")), iter(record()["grades"])
    met = 0
    for grader in graders:
        match grader:
            case {"type": "llm"}:
                grade = next(grades)
                is_met, why = grade["passed"], grade["evidence"]
            case {"type": "regex", "pattern": pattern}:
                is_met, why = re.search(pattern, record()["answer"]) is not None, "the answer does not match"
            case {"command": command}:
                done = run("bash", "-c", command)
                is_met, why = done.returncode == 0, done.stdout
        met += is_met
        if not is_met:
            print(f"{grader['name']}: {why}")
    print(f"{met / len(graders):.3f}")
    sys.exit(met < len(graders))
