"""Small tasks for the tests of `agentcli eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.app.running import Place

CHECK = """#!/usr/bin/env python3
from eval_check import require, text_of
require(text_of("answer.txt").strip() == "42", "the answer is not 42")
"""


def writes(text: str, path: str = "answer.txt") -> dict[str, Any]:
    return {"tool_calls": [{"name": "file_write", "input": {"path": path, "content": text}}]}


SOLVES = [writes("42\n"), {"text": "I created `answer.txt`."}]


def add_task(
    place: Place,
    name: str,
    *,
    check: str = CHECK,
    replies: Sequence[Mapping[str, Any]] = SOLVES,
    start: Mapping[str, str] | None = None,
    more: str = "",
    prompt: str = '"Write 42 to answer.txt"',
) -> Path:
    """A task in `tasks/` beside the project; gives its folder."""
    folder = place.folder.parent / "tasks" / name
    (folder / "start").mkdir(parents=True)
    (folder / "task.toml").write_text(f'title = "{name}"\nprompt = {prompt}\n{more}\n')
    for path, text in (start or {"README.md": "A project.\n"}).items():
        (folder / "start" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "start" / path).write_text(text)
    (folder / "check").write_text(check)
    (folder / "check").chmod(0o755)
    (folder / "reference.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return folder


def evaluated(place: Place, *arguments: str, code: int = 0, model: str = "scripted/reference") -> Any:
    """What `eval run --json` on these tasks prints."""
    tasks = str(place.folder.parent / "tasks")
    ran = place.run("eval", "run", *arguments, "--tasks", tasks, "-m", model, "--json")
    assert ran.code == code, (ran.out, ran.err)
    return json.loads(ran.out) if code == 0 else ran.err
