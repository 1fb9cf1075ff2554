"""Reads tasks: folders with a prompt, a tree to start from, and a check."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from agentcli.errors import UsageError, did_you_mean
from agentcli.settings.load import SettingsLayer, check_layer

BUNDLED = Path(__file__).with_name("tasks")
Difficulty = Literal["easy", "medium", "hard", "special"]
DIFFICULTIES: tuple[str, ...] = get_args(Difficulty)


class TaskLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The most that an attempt may take; `turns` are requests for each prompt."""

    time_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    turns: Annotated[int, Meta(ge=1)] = 25
    cost_usd: Annotated[float, Meta(gt=0)] = 1.0


class Repository(Struct, frozen=True, forbid_unknown_fields=True):
    """A local git clone to start from, in place of a tree: the commit that is checked out."""

    path: str
    commit: str


class Task(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task as its `task.toml` says. `prompt` may be several, sent one by one; `check_time_s` bounds the check."""

    title: str
    prompt: str | list[str]
    difficulty: Difficulty = "medium"
    tags: tuple[str, ...] = ()
    limits: TaskLimits = TaskLimits()
    settings: dict[str, Any] = {}
    check_time_s: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    repository: Repository | None = None
    folder: Path = Path()
    name: str = ""

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def version(self) -> str:
        """A hash of all its files: results of different versions are not compared."""
        found = hashlib.sha256()
        for name, mode, content in task_files(self):
            found.update(f"{name}\0{mode & 0o100}\0{len(content)}\0".encode() + content)
        return found.hexdigest()[:12]


def task_files(task: Task) -> Iterator[tuple[str, int, bytes]]:
    """Its files as they can travel: path, permission bits (0: a link, whose content is its target), content."""
    for path in sorted(task.folder.rglob("*")):
        name = path.relative_to(task.folder).as_posix()
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink():
            yield name, 0, os.fsencode(path.readlink())
        elif path.is_file():
            yield name, path.stat().st_mode & 0o777, path.read_bytes()


def find_tasks(folder: Path = BUNDLED, names: Collection[str] = ()) -> Sequence[Task]:
    """The tasks in a folder, or those with these names, easy ones first. Raises `UsageError`."""
    try:
        there = {path.parent.name: path for path in sorted(folder.glob("*/task.toml"))}
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}.") from error
    if not there:
        raise UsageError(f"There are no tasks in {folder}: a task is a folder with a task.toml (see docs/evals.md).")
    for name in names:
        if name not in there:
            raise UsageError(f"No task {name}{did_you_mean(name, there)}; there is {', '.join(there)}.")
    tasks = [read_task(there[name]) for name in there if not names or name in names]
    return sorted(tasks, key=lambda task: DIFFICULTIES.index(task.difficulty))


def read_task(file: Path) -> Task:
    """Read one task. Raises `UsageError` that says what of it is wrong, `ConfigError` for its settings."""
    folder = file.parent
    try:
        task = msgspec.convert(tomllib.loads(file.read_text("utf-8")), Task)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    task = msgspec.structs.replace(task, folder=folder, name=folder.name)
    check_layer(SettingsLayer(str(file), task.settings, names={}))
    if not task.prompts or not all(prompt.strip() for prompt in task.prompts):
        raise UsageError(f"{file}: the prompt is empty.")
    if task.repository is None and not (folder / "start").is_dir():
        raise UsageError(f"{folder} holds no folder start/, which the agent gets a copy of.")
    if not os.access(folder / "check", os.X_OK) or not (folder / "check").is_file():
        raise UsageError(f"{folder / 'check'} is no program that can be run: write one, and `chmod +x` it.")
    return task
