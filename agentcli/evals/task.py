"""Reads tasks: folders with a prompt, a tree to start from and a check. Makes such folders from SWE-bench's instances.

SWE-bench's fields: https://www.swebench.com/SWE-bench/guides/datasets/. We add `test_cmd`, the command of the tests, in
which `{tests}` is replaced by files for pytest, which reports each test, or else by ids; then the exit code decides.
"""

import hashlib
import os
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import tomli_w

from agentcli.errors import UsageError, did_you_mean
from agentcli.settings.files import replace_file
from agentcli.settings.load import SettingsLayer, check_layer

BUNDLED = Path(__file__).with_name("tasks")
Difficulty = Literal["easy", "medium", "hard", "special"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)


class TaskLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that an attempt may take; `turns` are requests for each prompt."""

    time_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 300.0
    turns: Annotated[int, msgspec.Meta(ge=1)] = 25
    cost_usd: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A local git clone to start from, in place of a tree, and the commit that is checked out."""

    path: str
    commit: str


class TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a `task.toml`. A list of prompts is sent one by one; `check_time_s` limits the check."""

    title: str
    prompt: str | list[str]
    difficulty: Difficulty = "medium"
    tags: tuple[str, ...] = ()
    limits: TaskLimits = TaskLimits()
    settings: dict[str, Any] = {}
    check_time_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 300.0
    repository: Repository | None = None


class Task(TaskFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def graders(self) -> list[dict[str, Any]] | None:
        """Its graders, if its check runs `eval_check.check_graders`."""
        file = self.folder / "graders.json"
        return msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]]) if file.exists() else None

    @property
    def solutions(self) -> list[str]:
        """The places of checks and solutions, which the agent must not see, such as later commits."""
        repository = [Path(self.repository.path)] if self.repository else []
        return [str(place.absolute()) for place in (BUNDLED, self.folder.parent, *repository)]

    @property
    def version(self) -> str:
        """A hash of all its files: results of different versions are not compared."""
        digest = hashlib.sha256()
        for name, mode, content in task_files(self):
            digest.update(f"{name}\0{mode & 0o100}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:12]


def task_files(task: Task) -> Iterator[tuple[str, int, bytes]]:
    """Yield a task's files for another machine: path, permission bits (0 for a symbolic link), content or target."""
    for path in sorted(task.folder.rglob("*")):
        name = path.relative_to(task.folder).as_posix()
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink():
            yield name, 0, os.fsencode(path.readlink())
        elif path.is_file():
            yield name, path.stat().st_mode & 0o777, path.read_bytes()


def find_tasks(folder: Path = BUNDLED, names: Collection[str] = ()) -> Sequence[Task]:
    """Return the tasks in a folder, or those with these names, easy ones first. Raises `UsageError`."""
    try:
        files = {path.parent.name: path for path in sorted(folder.glob("*/task.toml"))}
    except OSError as error:
        raise UsageError(f"Could not read {folder}: {error.strerror}.") from error
    if not files:
        raise UsageError(f"There are no tasks in {folder}. A task is a folder with a task.toml (see docs/evals.md).")
    for name in names:
        if name not in files:
            raise UsageError(f"Unknown task {name}{did_you_mean(name, files)}. Choose one of {', '.join(files)}.")
    tasks = [read_task(file) for name, file in files.items() if not names or name in names]
    return sorted(tasks, key=lambda task: DIFFICULTIES.index(task.difficulty))


def read_task(file: Path) -> Task:
    """Read one task from its `task.toml`. Raises `UsageError`, and `ConfigError` if its settings are wrong."""
    folder = file.parent
    try:
        task = msgspec.convert({**tomllib.loads(file.read_text("utf-8")), "folder": folder}, Task)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    check_layer(SettingsLayer(str(file), task.settings, names={}))
    if not task.prompts or not all(prompt.strip() for prompt in task.prompts):
        raise UsageError(f"{file}: the prompt is empty.")
    if task.repository is None and not (folder / "start").is_dir():
        raise UsageError(f"{folder} has no folder start/. The agent works on a copy of it.")
    if not os.access(folder / "check", os.X_OK) or not (folder / "check").is_file():
        raise UsageError(f"{folder / 'check'} is not an executable program. Write one, and `chmod +x` it.")
    return task


TEST_COMMAND = "python3 -m pytest -q {tests}"
LIMITS = {"time_s": 1_800.0, "turns": 100, "cost_usd": 3.0}
_PROMPT_HEAD = (
    "Resolve the issue below in this repository: change its source code, not its tests. Tests that you cannot see "
    "decide whether it is resolved; what you change in the files of these tests does not count.\n\n"
)
_CHECK = b"#!/usr/bin/env python3\nfrom eval_check import check_swe_bench\n\ncheck_swe_bench()\n"
_PATCH_END = "END_OF_PATCH"  # never in a patch, whose lines begin with a sign or a word of git's
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # a folder that cannot lead out of its parent


class _DecidingTests(msgspec.Struct, frozen=True, kw_only=True):
    """The tests that decide about an instance: those that must begin to pass, and those that must not fail."""

    fail_to_pass: list[str] | str = msgspec.field(name="FAIL_TO_PASS")
    pass_to_pass: list[str] | str = msgspec.field(name="PASS_TO_PASS")
    test_cmd: str | None = None


class _Instance(_DecidingTests, frozen=True, kw_only=True):
    """A line of SWE-bench's file. The agent does not see its patches and its tests."""

    instance_id: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}\Z")]
    repo: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME}/{_NAME}\Z")]
    base_commit: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
    problem_statement: str
    patch: str
    test_patch: str


def swe_bench_tasks(file: Path, repositories: Path, folder: Path, names: Collection[str] = ()) -> Sequence[Task]:
    """Write the tasks of a JSONL file, or those with these names, into `folder`, and return them.

    A clone is `owner__name`, `owner/name` or `name` in `repositories`, bare (also `name.git`) or not. Raises
    `UsageError` that names the line and its field.
    """
    instances = _read_instances(file)
    for name in names:
        if name not in instances:
            raise UsageError(f"{file} has no instance {name}{did_you_mean(name, instances)}.")
    tasks = []
    for name, (place, instance) in instances.items():
        if not names or name in names:
            clone = _find_clone(place, instance.repo, repositories)
            write_files(folder / name, _task_contents(place, instance, clone))
            tasks.append(read_task(folder / name / "task.toml"))
    return tasks


def _read_instances(file: Path) -> dict[str, tuple[str, _Instance]]:
    """Return each instance by its name, with its place for errors: `FILE, line 3`. Raises `UsageError`."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"Could not read {file}: {error.strerror}.") from error
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
            raise UsageError(f"{place}: instance_id: {instance.instance_id} is a duplicate.")
        found[instance.instance_id] = place, instance
    if not found:
        raise UsageError(f"{file} contains no instances.")
    return found


def _task_contents(place: str, instance: _Instance, clone: Path) -> dict[str, bytes]:
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
        "repository": {"path": str(clone), "commit": instance.base_commit},
    }
    command = f"git apply --whitespace=nowarn - <<'{_PATCH_END}'\n{_with_line_end(instance.patch)}{_PATCH_END}"
    reference = [  # the replies of a scripted model that solves the task
        {"tool_calls": [{"name": "bash", "input": {"command": command}}]},
        {"text": "I have applied the reference patch."},
    ]
    return {
        "task.toml": tomli_w.dumps(task).encode(),
        "check": _CHECK,
        "reference.jsonl": msgspec.json.Encoder().encode_lines(reference),
        "tests.json": msgspec.json.encode(tests),
        "test.patch": test_patch.encode(),
    }


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a task; its check becomes executable. Raises `UsageError`."""
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, content, mode=0o700 if name == "check" else 0o600, syncs=False)
    except OSError as error:
        raise UsageError(f"Could not write the task {folder}: {error.strerror}.") from error


def _test_ids(place: str, ids: list[str] | str) -> list[str]:
    """Return a field of test ids, which is a list or, in some data sets, the JSON text of one."""
    if isinstance(ids, list):
        return ids
    try:
        return msgspec.json.decode(ids, type=list[str])
    except ValueError as error:
        raise UsageError(f"{place}: not a list, nor a list as JSON text: {error}") from error


def _find_clone(place: str, repo: str, repositories: Path) -> Path:
    """Return the clone of `owner/name`. `place` is for errors. Raises `UsageError` if there is none."""
    names = [repo.replace("/", "__"), repo, repo.partition("/")[2]]
    folders = [repositories.resolve() / name for name in names]
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
