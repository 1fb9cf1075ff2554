"""Converts instances of SWE-bench to tasks for `agentcli eval run`.

    python integrations/swe_bench.py FILE.jsonl CLONES FOLDER [NAME ...] && agentcli eval run --tasks FOLDER

A clone is `owner__name`, `owner/name` or `name` in CLONES, bare (also `name.git`) or not. The fields are those of
https://www.swebench.com/SWE-bench/guides/datasets/; we add `test_cmd`, the command of the tests, in which `{tests}` is
replaced by files for pytest, which reports each test, or else by ids; then the exit code decides. Each task starts from
the base commit, without any later one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w

from agentcli.errors import UsageError, did_you_mean
from agentcli.evals.task import Task, read_task, write_files

TEST_COMMAND = "python3 -m pytest -q {tests}"
LIMITS = {"time_s": 1_800.0, "turns": 100, "cost_usd": 3.0}
CHECK = Path(__file__).with_name("swe_bench_check.py")
_PROMPT_HEAD = (
    "Resolve the issue below in this repository: change its source code, not its tests. Tests that you cannot see "
    "decide whether it is resolved; what you change in the files of these tests does not count.\n\n"
)
_PATCH_END = "END_OF_PATCH"  # never in a patch, whose lines begin with a sign or a word of git's
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # a folder that cannot lead out of its parent
# Lets git fetch any commit, also one that no branch leads to.
_UPLOAD = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
_REPOSITORY_VARIABLES = frozenset("GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR".split())


class DecidingTests(msgspec.Struct, frozen=True, kw_only=True):
    """The tests that decide about an instance: those that must begin to pass, and those that must not fail."""

    fail_to_pass: list[str] | str = msgspec.field(name="FAIL_TO_PASS")
    pass_to_pass: list[str] | str = msgspec.field(name="PASS_TO_PASS")
    test_cmd: str | None = None


class Instance(DecidingTests, frozen=True, kw_only=True):
    """A line of the file. The agent does not see its patches and its tests."""

    instance_id: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}\Z")]
    repo: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}/{_NAME}\Z")]
    base_commit: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
    problem_statement: str
    patch: str
    test_patch: str


def convert(file: Path, clones: Path, folder: Path, names: list[str]) -> list[Task]:
    """Write the tasks of a file, or those with these names, into `folder`, and return them.

    Raises `UsageError` that names the line and its field.
    """
    instances = _read_instances(file)
    for name in names:
        if name not in instances:
            raise UsageError(f"{file} has no instance {name}{did_you_mean(name, instances)}.")
    tasks = []
    for name, (place, instance) in instances.items():
        if not names or name in names:
            clone = _find_clone(place, instance.repo, clones)
            contents = _task_contents(place, instance, clone)
            _make_start(folder / name, instance, clone)
            write_files(folder / name, contents)
            tasks.append(read_task(folder / name / "task.toml"))
    return tasks


def _read_instances(file: Path) -> dict[str, tuple[str, Instance]]:
    """Return each instance by its name, with its place for errors: `FILE, line 3`. Raises `UsageError`."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"Could not read {file}: {error.strerror}.") from error
    found: dict[str, tuple[str, Instance]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            instance = msgspec.json.decode(line, type=Instance)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
        if instance.instance_id in found:
            raise UsageError(f"{place}: instance_id: {instance.instance_id} is a duplicate.")
        found[instance.instance_id] = place, instance
    if not found:
        raise UsageError(f"{file} contains no instances.")
    return found


def _task_contents(place: str, instance: Instance, clone: Path) -> dict[str, bytes]:
    """Return the files of an instance's task by their names. `place` is for errors. Raises `UsageError`."""
    test_patch = _with_line_end(instance.test_patch) if instance.test_patch.strip() else ""  # empty: not applied
    tests = {
        "base_commit": instance.base_commit,
        "command": instance.test_cmd or TEST_COMMAND,
        "FAIL_TO_PASS": _test_ids(f"{place}: FAIL_TO_PASS", instance.fail_to_pass),
        "PASS_TO_PASS": _test_ids(f"{place}: PASS_TO_PASS", instance.pass_to_pass),
    }
    if not tests["FAIL_TO_PASS"]:
        raise UsageError(f"{place}: FAIL_TO_PASS: it names no tests, so there is nothing to check.")
    task = {
        "title": instance.problem_statement.strip().partition("\n")[0].strip()[:100] or instance.instance_id,
        "prompt": _PROMPT_HEAD + instance.problem_statement,
        "tags": [instance.repo],
        "check_time_s": LIMITS["time_s"],
        "limits": LIMITS,
        "hidden": [str(clone)],
    }
    command = f"git apply --whitespace=nowarn - <<'{_PATCH_END}'\n{_with_line_end(instance.patch)}{_PATCH_END}"
    reference = [  # the replies of a scripted model that solves the task
        {"tool_calls": [{"name": "bash", "input": {"command": command}}]},
        {"text": "I have applied the reference patch."},
    ]
    return {
        "task.toml": tomli_w.dumps(task).encode(),
        "check": CHECK.read_bytes(),
        "reference.jsonl": msgspec.json.Encoder().encode_lines(reference),
        "tests.json": msgspec.json.encode(tests),
        "test.patch": test_patch.encode(),
    }


def _make_start(folder: Path, instance: Instance, clone: Path) -> None:
    """Check out the base commit in `start`, unless it is there already: its files are part of the task's version."""
    start, name = folder / "start", instance.instance_id
    commit = _git(name, "-C", str(clone), "rev-parse", "--verify", f"{instance.base_commit}^{{commit}}").strip()
    head = start / ".git" / "refs" / "heads" / "main"
    if head.is_file() and head.read_text().strip() == commit:
        return
    shutil.rmtree(start, ignore_errors=True)
    # Not cloned, because later commits, which hold the solution, must not be in the copy.
    _git(name, "init", "--quiet", "--template=", str(start))  # the empty template keeps the person's hooks out
    fetch = ("fetch", "--quiet", "--no-tags", "--depth=1", f"--upload-pack={_UPLOAD}", str(clone), commit)
    _git(name, "-C", str(start), *fetch)
    _git(name, "-C", str(start), "checkout", "--quiet", "-B", "main", commit)
    (start / ".git" / "FETCH_HEAD").unlink()  # it has the path of the clone, which has the solution


def _git(name: str, *arguments: str) -> str:
    """Run git for an instance, without hooks, background maintenance and the variables of a repository around us."""
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
    environment = {key: value for key, value in os.environ.items() if key not in _REPOSITORY_VARIABLES}
    command, nothing = ["git", *settings, *arguments], subprocess.DEVNULL
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=nothing, env=environment)
    if done.returncode != 0:
        raise UsageError(f"{name}: `git {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def _test_ids(place: str, ids: list[str] | str) -> list[str]:
    """Return a field of test ids, which is a list or, in some data sets, the JSON text of one."""
    if isinstance(ids, list):
        return ids
    try:
        return msgspec.json.decode(ids, type=list[str])
    except ValueError as error:
        raise UsageError(f"{place}: not a list, nor a list as JSON text: {error}") from error


def _find_clone(place: str, repo: str, clones: Path) -> Path:
    """Return the clone of `owner/name`. `place` is for errors. Raises `UsageError` if there is none."""
    names = [repo.replace("/", "__"), repo, repo.partition("/")[2]]
    folders = [clones.resolve() / name for name in names]
    paths = [path for folder in folders for path in (folder, folder.with_name(f"{folder.name}.git"))]
    for path in paths:
        is_bare = (path / "HEAD").is_file() and (path / "objects").is_dir()
        if is_bare or (path / ".git").exists():
            return path
    raise UsageError(
        f"{place}: repo: there is no clone of {repo} in {', '.join(map(str, folders))}. "
        f"To create it: `git clone --bare https://github.com/{repo} {folders[0]}`"
    )


def _with_line_end(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("file", "clones", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    try:
        tasks = convert(given.file, given.clones, given.folder, given.names)
    except UsageError as error:
        sys.exit(str(error))
    print(f"{len(tasks)} tasks in {given.folder}")


if __name__ == "__main__":
    main()
