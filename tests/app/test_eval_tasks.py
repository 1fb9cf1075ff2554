"""The tasks that come with agentcli tell right solutions from wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.evals.attempt import LocalEngine
from agentcli.evals.store import EvalAttempt, Variant
from agentcli.evals.task import Task, find_tasks
from agentcli.settings.files import find_paths
from agentcli.settings.load import Config, load_config

pytestmark = pytest.mark.slow

TASKS = find_tasks()


async def attempt(config: Config, task: Task, model: str) -> EvalAttempt:
    attempts = LocalEngine(config, Variant(model=model))
    try:
        return await attempts.attempt_task(task, 1)
    finally:
        await attempts.aclose()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
async def test_the_reference_passes_and_nothing_else_does(task: Task, tmp_path: Path) -> None:
    config = load_config(tmp_path, paths=find_paths(str(tmp_path)))
    reference = await attempt(config, task, "scripted/reference")
    outcome = reference.outcome
    assert (outcome.passed, outcome.check.score, outcome.end) == (True, 1.0, "end_turn"), reference
    assert outcome.work.claims.get("refuted", 0) == 0, reference
    nothing = await attempt(config, task, "scripted/nothing")
    assert (nothing.outcome.passed, nothing.failure) == (False, ""), nothing
    wrong = sorted((task.folder / "wrong").glob("*.jsonl"))
    assert len(wrong) >= 3
    for solution in wrong:
        made = await attempt(config, task, f"scripted/{solution}")
        assert (made.outcome.passed, made.failure) == (False, ""), (solution.name, made)
        reason = made.outcome.check.reason
        assert "eval_check" not in reason, reason  # the check failed by its judgment, not by a fault of its own


def test_there_are_thirteen() -> None:
    assert len(TASKS) == 13
