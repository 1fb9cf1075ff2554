"""Makes tasks from a skill's evals (https://agentskills.io/skill-creation/evaluating-skills)."""

import re
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from agentcli.errors import UsageError
from agentcli.evals.task import Task, find_tasks, write_files
from agentcli.extensions.skills.skill import read_skill

_GRADER_OPTIONS = {"llm": "criteria", "regex": "pattern", "command": "command"}  # the only option of each type
_CHECK = b"#!/usr/bin/env python3\nfrom eval_check import check_graders\n\ncheck_graders()\n"
Json = dict[str, Any]


class SkillCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case of `evals.json`. `files` are relative to the skill. skill-creator writes `expectations` for assertions."""

    id: int | str
    prompt: str
    expected_output: str = ""
    files: tuple[str, ...] = ()
    assertions: tuple[str | Json, ...] = ()
    expectations: tuple[str | Json, ...] = ()


def skill_tasks(folder: Path, cache: Path) -> tuple[Sequence[Task], Path]:
    """Write a task for each case into `cache`, and copies of the skills in the folder without their cases.

    Return the tasks, and the folder of the copied skills. Raises `UsageError`.
    """
    try:
        skills = [read_skill(file.parent, "user") for file in folder.glob("**/SKILL.md")]
        files = [(str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]
        version = sha256(msgspec.json.encode(files)).hexdigest()[:12]  # a changed skill begins another run
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
