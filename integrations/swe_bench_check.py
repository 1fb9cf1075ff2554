#!/usr/bin/env python3
"""Checks a task of SWE-bench, as the `check` that swe_bench.py writes: puts the tests into the copy, and runs them.

`tests.json` lists the tests that must pass after the fix (FAIL_TO_PASS) and those that it must not break
(PASS_TO_PASS). The last line of a failure is the score.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from eval_check import TASK, fail, run

RESULTS = TASK / "results.xml"
_MAX_NAMED = 20  # failed tests in the output
_RUNS_PYTEST = re.compile(r"\b(?:pytest|py\.test)\b[^;&|\n]*\{tests\}")  # a command that passes the tests to pytest


def main() -> None:
    tests = json.loads((TASK / "tests.json").read_text("utf-8"))
    to_fix, to_keep = tests["FAIL_TO_PASS"], tests["PASS_TO_PASS"]
    _put_tests(TASK / "test.patch", tests["base_commit"])
    command, ids = tests["command"], [*to_fix, *to_keep]
    if not _RUNS_PYTEST.search(command):  # only the exit code says whether tests passed
        done = _run_tests(command.replace("{tests}", shlex.join(ids)))
        if done.returncode:
            fail(f"{done.stdout[-1_500:]}\nThe tests ended with {done.returncode}.\n0")
        return
    # Files instead of ids, because pytest runs nothing if one id is missing, and the data set cuts ids at spaces.
    files = dict.fromkeys(id.partition("::")[0] for id in ids)
    options = ["-p", "no:cacheprovider", "--rootdir=.", f"--junitxml={RESULTS}"]
    done = _run_tests(command.replace("{tests}", shlex.join([*options, *files])))
    passed = _results_by_test()
    broken = [id for id in to_keep if not passed.get(_as_reported(id))]
    failed = [id for id in to_fix if not passed.get(_as_reported(id))]
    if broken or failed:
        named = "\n".join([*broken, *failed][:_MAX_NAMED])
        score = 0 if broken else 1 - len(failed) / len(to_fix)
        fail(
            f"{done.stdout[-800:]}\n{len(failed)} of {len(to_fix)} tests that should pass now do not, "
            f"{len(broken)} of {len(to_keep)} that passed are broken:\n{named}\n{score:.3f}"
        )


def _put_tests(patch: Path, commit: str) -> None:
    """Apply the tests to the files as they were at the start, even if the agent has changed or removed them."""
    if not patch.stat().st_size:
        return
    # In both directions, because each lists only one name of a renamed file. An entry is `3\t1\ta/test_b.py`.
    numstat = _git("apply", "--numstat", "-z", str(patch)) + _git("apply", "--numstat", "-z", "-R", str(patch))
    names = sorted({entry.split("\t", 2)[2] for entry in numstat.split("\0") if entry})
    for path in map(Path, names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.parent.is_dir():  # the agent may have replaced the folder with a file
            path.unlink(missing_ok=True)
    in_commit = _git("ls-tree", "-z", "--name-only", commit, "--", *names)  # without the files that the patch adds
    if existing := [name for name in in_commit.split("\0") if name]:
        _git("checkout", "--quiet", commit, "--", *existing)
    _git("apply", "--whitespace=nowarn", str(patch))


def _git(*arguments: str) -> str:
    """Run git in the copy, and return its output. If git fails, the check fails with a score of 0."""
    # The agent may have changed the index, or replaced objects of the commit. Names may look like patterns.
    own_variables = {"GIT_INDEX_FILE": str(TASK / "index"), "GIT_NO_REPLACE_OBJECTS": "1", "GIT_LITERAL_PATHSPECS": "1"}
    environment = os.environ | own_variables
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
    )
    if done.returncode:
        fail(f"The tests cannot be put in place: git {arguments[0]}: {done.stderr.strip()}\n0")
    return done.stdout


def _run_tests(command: str) -> subprocess.CompletedProcess[str]:
    """Run the tests without the helpers' PYTHONPATH; both outputs are in `stdout`. The task limits their time."""
    script = TASK / "run-tests"  # a file, because thousands of ids are too long for one argument
    script.write_text(command, "utf-8")
    return run("env", "-u", "PYTHONPATH", "bash", str(script), timeout_s=86_400)


def _results_by_test() -> dict[str, bool]:
    """Return the tests that pytest reports, each by its class and name, and also by the part before the first space."""
    try:
        cases = ET.parse(RESULTS).iter("testcase")  # noqa: S314 - pytest's own, confined like the tests
    except (OSError, ET.ParseError):
        return {}
    found: dict[str, bool] = {}
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        passed = all(  # an expected failure is reported as a skip with the type `pytest.xfail`
            end.tag not in ("failure", "error", "skipped") or end.get("type") == "pytest.xfail" for end in case
        )
        for key in {name, name.partition(" ")[0]}:  # the data set cuts ids at spaces, so several tests may share one
            found[key] = found.get(key, True) and passed
    return found


def _as_reported(id: str) -> str:
    """Return an id in the form of a report: `a/test_b.py::C::test_d[x]` is `a.test_b.C.test_d[x]`."""
    name, bracket, parameters = id.partition("[")
    file, *names = name.split("::")
    return ".".join([file.removesuffix(".py").replace("/", "."), *names]) + bracket + parameters


if __name__ == "__main__":
    main()
