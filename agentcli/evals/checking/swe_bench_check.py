"""Puts the tests of a task of SWE-bench's form into the copy and runs them, with the standard library alone.

`tests.json` lists the tests that the fix mends (FAIL_TO_PASS) and those that it must not break (PASS_TO_PASS).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NoReturn

from eval_check import run  # type: ignore[import-not-found]  # beside it, on the path of checks

TASK = Path(os.environ.get("AGENTCLI_EVAL_TASK", "."))
RESULTS = TASK / "results.xml"
_MOST_NAMED = 20
_RUNS_PYTEST = re.compile(r"\b(?:pytest|py\.test)\b[^;&|\n]*\{tests\}")


def main() -> None:
    told = json.loads((TASK / "tests.json").read_text("utf-8"))
    mended, kept = told["FAIL_TO_PASS"], told["PASS_TO_PASS"]
    _put_tests(TASK / "test.patch", told["base_commit"])
    command, ids = told["command"], [*mended, *kept]
    if not _RUNS_PYTEST.search(command):
        done = _run_tests(command.replace("{tests}", shlex.join(ids)))
        if done.returncode:
            _fail(f"{done.stdout[-1_500:]}\nThe tests ended with {done.returncode}.", 0)
        return
    # Files and not ids: pytest runs nothing at all where one id is not there, and the data set cuts ids at spaces.
    files = dict.fromkeys(id.partition("::")[0] for id in ids)
    options = ["-p", "no:cacheprovider", "--rootdir=.", f"--junitxml={RESULTS}"]
    done = _run_tests(command.replace("{tests}", shlex.join([*options, *files])))
    passed = _passed()
    broken = [id for id in kept if not passed.get(_as_reported(id))]
    failed = [id for id in mended if not passed.get(_as_reported(id))]
    if broken or failed:
        named = "\n".join([*broken, *failed][:_MOST_NAMED])
        score = 0 if broken else 1 - len(failed) / len(mended)
        _fail(
            f"{done.stdout[-800:]}\n{len(failed)} of {len(mended)} tests that should pass now do not, "
            f"{len(broken)} of {len(kept)} that passed are broken:\n{named}",
            score,
        )


def _fail(reason: str, score: float) -> NoReturn:
    print(f"{reason}\n{score:.3f}")
    sys.exit(1)


def _put_tests(patch: Path, commit: str) -> None:
    """Apply the tests to the files as they were at the start, whatever the agent has made of these."""
    if not patch.stat().st_size:
        return
    # Named in both directions: of a file that is renamed each tells one name.
    told = _git("apply", "--numstat", "-z", str(patch)) + _git("apply", "--numstat", "-z", "-R", str(patch))
    names = sorted({entry.split("\t", 2)[2] for entry in told.split("\0") if entry})
    for path in map(Path, names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.parent.is_dir():
            path.unlink(missing_ok=True)
    if before := [name for name in _git("ls-tree", "-z", "--name-only", commit, "--", *names).split("\0") if name]:
        _git("checkout", "--quiet", commit, "--", *before)
    _git("apply", "--whitespace=nowarn", str(patch))


def _git(*arguments: str) -> str:
    # With an index of its own, and the commit's true objects: the agent may have changed what git says of both.
    own = {"GIT_INDEX_FILE": str(TASK / "index"), "GIT_NO_REPLACE_OBJECTS": "1", "GIT_LITERAL_PATHSPECS": "1"}
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ | own
    )
    if done.returncode:
        _fail(f"The tests cannot be put in place: git {arguments[0]}: {done.stderr.strip()}", 0)
    return done.stdout


def _run_tests(command: str) -> subprocess.CompletedProcess[str]:
    """Run them as the repository's own; both outputs are in `stdout`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = TASK / "run-tests"  # a file, as thousands of ids are too long for one argument
    script.write_text(command, "utf-8")
    done: subprocess.CompletedProcess[str] = run("bash", str(script), timeout_s=None, environment=environment)
    return done


def _passed() -> dict[str, bool]:
    """Of each test that pytest reports, by its class and name and by what of it stands before the first space."""
    try:
        cases = ET.parse(RESULTS).iter("testcase")  # noqa: S314 - pytest's own, confined like the tests
    except (OSError, ET.ParseError):
        return {}
    found: dict[str, bool] = {}
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        passed = all(
            end.tag not in ("failure", "error", "skipped") or end.get("type") == "pytest.xfail" for end in case
        )
        for key in {name, name.partition(" ")[0]}:
            found[key] = found.get(key, True) and passed
    return found


def _as_reported(id: str) -> str:
    """An id in the form of a report: `a/test_b.py::C::test_d[x]` is `a.test_b.C.test_d[x]`."""
    name, bracket, parameters = id.partition("[")
    file, *within = name.split("::")
    return ".".join([file.removesuffix(".py").replace("/", "."), *within]) + bracket + parameters
