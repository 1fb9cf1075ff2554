"""The tasks that come with agentcli tell right solutions from wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.evals.attempt import LocalEngine
from agentcli.evals.store import Outcome, Variant
from agentcli.evals.task import Task, find_tasks
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import find_paths

pytestmark = pytest.mark.slow

TASKS = find_tasks()


async def outcome(config: Config, task: Task, model: str) -> Outcome:
    attempts = LocalEngine(config, Variant(model=model))
    try:
        return (await attempts.make(task, 1)).outcome
    finally:
        await attempts.aclose()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
async def test_the_reference_passes_and_nothing_else_does(task: Task, tmp_path: Path) -> None:
    config = load_config(tmp_path, paths=find_paths(str(tmp_path)))
    reference = await outcome(config, task, "scripted/reference")
    assert (reference.passed, reference.score, reference.end) == (True, 1.0, "end_turn"), reference
    assert reference.claims.get("refuted", 0) == 0, reference
    nothing = await outcome(config, task, "scripted/nothing")
    assert (nothing.passed, nothing.failure) == (False, ""), nothing
    wrong = sorted((task.folder / "wrong").glob("*.jsonl"))
    assert len(wrong) >= 3
    for solution in wrong:
        made = await outcome(config, task, f"scripted/{solution}")
        assert (made.passed, made.failure) == (False, ""), (solution.name, made)
        assert "eval_check" not in made.reason, made.reason  # it failed by its judgment, not by a fault of its own


def test_there_are_thirteen() -> None:
    assert len(TASKS) == 13
