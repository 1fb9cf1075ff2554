"""Makes tasks of a JSONL file in SWE-bench's form, with local clones to start from.

Fields: https://www.swebench.com/SWE-bench/guides/datasets/, and our own `test_cmd`, which runs the tests (pytest
reports each, else the exit code decides); `{tests}` stands for ids or files. Ids of other forms need it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w
from msgspec import Meta, Struct, field

from agentcli.errors import UsageError, did_you_mean
from agentcli.evals.task import Task, read_task
from agentcli.settings.files import replace_file

TEST_COMMAND = "python3 -m pytest -q {tests}"
LIMITS = {"time_s": 1_800.0, "turns": 100, "cost_usd": 3.0}
_LEAD = (
    "Resolve the issue below in this repository: change its source code, not its tests. Tests that you cannot see "
    "decide whether it is resolved; what you change in the files of these tests does not count.\n\n"
)
_CHECK = b"#!/usr/bin/env python3\nfrom swe_bench_check import main\n\nmain()\n"
_END = "END_OF_PATCH"  # every line of a patch begins with a sign or a word of git's
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # of a folder: nothing that leads out of the one it lies in


class _Instance(Struct, frozen=True, kw_only=True):
    instance_id: Annotated[str, Meta(pattern=rf"^{_NAME}\Z")]
    repo: Annotated[str, Meta(pattern=rf"^{_NAME}/{_NAME}\Z")]
    base_commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: list[str] | str = field(name="FAIL_TO_PASS")
    pass_to_pass: list[str] | str = field(name="PASS_TO_PASS")
    test_cmd: str | None = None


def swe_bench_tasks(file: Path, repositories: Path, folder: Path, names: Collection[str] = ()) -> Sequence[Task]:
    """The tasks of a file, or those with these names, written into `folder`. Raises `UsageError` for a line's field.

    A clone is `owner__name`, `owner/name` or `name` in `repositories`, bare (also `name.git`) or not.
    """
    instances = _read(file)
    for name in names:
        if name not in instances:
            raise UsageError(f"{file} has no instance {name}{did_you_mean(name, instances)}.")
    chosen = [found for name, found in instances.items() if not names or name in names]
    written = [_written(place, instance, repositories, folder) for place, instance in chosen]
    return [read_task(task / "task.toml") for task in written]


def _read(file: Path) -> dict[str, tuple[str, _Instance]]:
    """Each instance by its name, with the place that errors tell."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    found: dict[str, tuple[str, _Instance]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            instance = msgspec.json.decode(line, type=_Instance)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
        if instance.instance_id in found:
            raise UsageError(f"{place}: instance_id: {instance.instance_id} is there twice.")
        found[instance.instance_id] = place, instance
    if not found:
        raise UsageError(f"{file} holds no instances.")
    return found


def _written(place: str, instance: _Instance, repositories: Path, folder: Path) -> Path:
    """Write the folder of a task, and give it; a file that is right already is left alone."""
    test_patch = _with_line_end(instance.test_patch) if instance.test_patch.strip() else ""
    tests = {
        "base_commit": instance.base_commit,
        "command": instance.test_cmd or TEST_COMMAND,
        "FAIL_TO_PASS": _test_ids(f"{place}: FAIL_TO_PASS", instance.fail_to_pass),
        "PASS_TO_PASS": _test_ids(f"{place}: PASS_TO_PASS", instance.pass_to_pass),
    }
    if not tests["FAIL_TO_PASS"]:
        raise UsageError(f"{place}: FAIL_TO_PASS: it names no test, so nothing could be checked.")
    task = {
        "title": instance.problem_statement.strip().partition("\n")[0].strip()[:100] or instance.instance_id,
        "prompt": _LEAD + instance.problem_statement,
        "tags": [instance.repo],
        "check_time_s": LIMITS["time_s"],
        "limits": LIMITS,
        "repository": {"path": str(_clone(place, instance.repo, repositories)), "commit": instance.base_commit},
    }
    command = f"git apply --whitespace=nowarn - <<'{_END}'\n{_with_line_end(instance.patch)}{_END}"
    reference = [
        {"tool_calls": [{"name": "bash", "input": {"command": command}}]},
        {"text": "I have applied the reference patch."},
    ]
    files = {
        "task.toml": tomli_w.dumps(task).encode(),
        "check": _CHECK,
        "reference.jsonl": msgspec.json.Encoder().encode_lines(reference),
        "tests.json": msgspec.json.encode(tests),
        "test.patch": test_patch.encode(),
    }
    written = folder / instance.instance_id
    try:
        written.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = written / name
            if not path.is_file() or path.read_bytes() != content:
                replace_file(path, content, mode=0o700 if name == "check" else 0o600, syncs=False)
    except OSError as error:
        raise UsageError(f"The task {written} cannot be written: {error.strerror}.") from error
    return written


def _test_ids(place: str, told: list[str] | str) -> list[str]:
    if isinstance(told, list):
        return told
    try:
        return msgspec.json.decode(told, type=list[str])
    except ValueError as error:
        raise UsageError(f"{place}: neither a list nor the JSON text of one: {error}") from error


def _clone(place: str, repo: str, repositories: Path) -> Path:
    owner, name = repo.split("/")
    beginnings = [repositories.resolve() / part for part in (f"{owner}__{name}", f"{owner}/{name}", name)]
    for beginning in beginnings:
        for path in (beginning, beginning.with_name(f"{beginning.name}.git")):
            if (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir()):
                return path
    looked = ", ".join(str(path) for path in beginnings)
    raise UsageError(
        f"{place}: repo: there is no clone of {repo}: none of {looked} is one. "
        f"`git clone --bare https://github.com/{repo} {beginnings[0]}` makes it."
    )


def _with_line_end(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
