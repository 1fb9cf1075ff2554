"""Reads tasks, which are folders with a prompt, a tree to start from and a check; makes tasks from a skill's evals."""

import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import tomli_w

from agentcli.errors import UsageError, did_you_mean
from agentcli.extensions.skills.skill import read_skill
from agentcli.settings.files import replace_file
from agentcli.settings.load import SettingsLayer, check_layer

BUNDLED = Path(__file__).with_name("tasks")
Difficulty = Literal["easy", "medium", "hard", "special"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)
_GRADER_OPTIONS = {"llm": "criteria", "regex": "pattern", "command": "command"}  # the only option of each type
_CHECK = b"#!/usr/bin/env python3\nfrom eval_check import check_graders\n\ncheck_graders()\n"
Json = dict[str, Any]


class TaskLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that an attempt may take; `turns` are requests for each prompt."""

    time_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 300.0
    turns: Annotated[int, msgspec.Meta(ge=1)] = 25
    cost_usd: Annotated[float, msgspec.Meta(gt=0)] = 1.0


class TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a `task.toml`. A list of prompts is sent one by one; `check_time_s` limits the check.

    `hidden` are absolute paths that the agent must not see, such as a clone with later commits.
    """

    title: str
    prompt: str | list[str]
    difficulty: Difficulty = "medium"
    tags: tuple[str, ...] = ()
    limits: TaskLimits = TaskLimits()
    settings: dict[str, Any] = {}
    check_time_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 300.0
    hidden: tuple[Annotated[str, msgspec.Meta(pattern="^/")], ...] = ()


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
        """The folders with checks and solutions, which the agent must not see."""
        return [str(BUNDLED), str(self.folder.parent.absolute()), *self.hidden]

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


def unpack_task(files: list[tuple[str, int, bytes]], folder: Path) -> Task:
    """Write the files that `task_files` yields into a folder, and read the task there."""
    for name, mode, content in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == 0:  # a symbolic link, whose content is its target
            path.symlink_to(os.fsdecode(content))
        else:
            path.write_bytes(content)
            path.chmod(mode)
    (folder / "start").mkdir(exist_ok=True)  # an empty folder was not sent
    return read_task(folder / "task.toml")


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
    if not (folder / "start").is_dir():
        raise UsageError(f"{folder} has no folder start/. The agent works on a copy of it.")
    if not os.access(folder / "check", os.X_OK) or not (folder / "check").is_file():
        raise UsageError(f"{folder / 'check'} is not an executable program. Write one, and `chmod +x` it.")
    return task


class SkillCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case of `evals.json`. `files` are relative to the skill. skill-creator writes `expectations` for assertions."""

    id: int | str
    prompt: str
    expected_output: str = ""
    files: tuple[str, ...] = ()
    assertions: tuple[str | Json, ...] = ()
    expectations: tuple[str | Json, ...] = ()


def skill_tasks(folder: Path, cache: Path) -> tuple[Sequence[Task], Path]:
    """Make tasks from a folder with skills and the cases in their evals; return the tasks and the folder of the skills.

    Both are written into `cache`. The cases are left out of the copied skills, so that the agent cannot read what is
    checked. Raises `UsageError`.
    """
    try:
        skills = [read_skill(file.parent, "user") for file in folder.glob("**/SKILL.md")]
        files = [(str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]
        version = hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:12]  # a changed skill begins another run
        tasks_folder, skills_folder = cache / version / "tasks", cache / version / "skills"
        cases = list(_skill_cases(folder))
        for name, contents in cases:
            (tasks_folder / name / "start").mkdir(parents=True, exist_ok=True)
            write_files(tasks_folder / name, contents)
        for skill in skills:
            shutil.copytree(skill.folder, skills_folder / skill.name, ignore=_names_to_skip, dirs_exist_ok=True)
    except (OSError, TypeError, ValueError, re.error) as error:
        raise UsageError(f"Could not read the evals of {folder}: {error}") from error
    if not skills or not cases or len(dict(cases)) < len(cases):
        raise UsageError(f"{folder} needs a SKILL.md, and cases with different ids in evals/evals.json.")
    return find_tasks(tasks_folder), skills_folder


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, content, mode=0o700 if name == "check" else 0o600, syncs=False)
    except OSError as error:
        raise UsageError(f"Could not write the task {folder}: {error.strerror}.") from error


def _names_to_skip(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names of cases, and of links: `copytree` would copy the files they lead to, perhaps secrets."""
    return [name for name in names if name == "evals" or Path(folder, name).is_symlink()]


def _task_contents(prompt: str, graders: list[Json]) -> dict[str, bytes]:
    """Return the files of a task by their names. Raises `ValueError` or `re.error` if a grader is not valid."""
    for grader in graders:
        if grader.keys() != {"name", "type", _GRADER_OPTIONS.get(grader["type"], "")}:
            raise ValueError(f"not an assertion (docs/evals.md): {grader}")
        re.compile(grader.get("pattern", ""))
    task = {"title": prompt.strip().partition("\n")[0][:100], "prompt": prompt}
    return {"task.toml": tomli_w.dumps(task).encode(), "graders.json": msgspec.json.encode(graders), "check": _CHECK}


def _grader(assertion: str | Json) -> Json:
    """Return the grader of an assertion: a text is a criterion for the judge, an object the grader itself."""
    # `_task_contents` rejects an object without a type.
    grader = {"type": "llm", "criteria": assertion} if isinstance(assertion, str) else {"type": "", **assertion}
    return {"name": grader.get("criteria", str(grader)), **grader}


def _skill_cases(folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield a task for each case: its name, and the contents of its files by name. Raises `ValueError`."""
    for file in folder.glob("evals/evals.json"):
        content = msgspec.json.decode(file.read_bytes(), type=Json)
        for case in msgspec.convert(content.get("evals"), list[SkillCase]):
            if any(".." in name or not (folder / name).resolve().is_relative_to(folder) for name in case.files):
                raise ValueError(f"case {case.id}: its files must be in the skill's folder")
            # The agent finds them at the top of its copy, without the folders that skill-creator puts them in.
            inputs = {re.sub("^(evals/)?(files/)?", "", name): (folder / name).read_bytes() for name in case.files}
            prompt = f"{case.prompt}\n\nInput files: {', '.join(inputs)}" if inputs else case.prompt
            # Without assertions, the expected output is the criterion.
            graders = list(map(_grader, (*case.assertions, *case.expectations) or (case.expected_output,)))
            contents = _task_contents(prompt, graders) | {f"start/{name}": data for name, data in inputs.items()}
            yield re.sub(r"[^\w-]", "-", f"eval-{case.id}"), contents
