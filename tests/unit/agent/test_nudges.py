"""A small model is urged, once, to make the change that it only describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcli.llm.models import ModelInfo, Prices
from tests.unit.agent.stage import on_stage

SMALL = ModelInfo("script", "scripted", prices=Prices(), small=True)
EDITS = {"tool_calls": [{"name": "file_write", "input": {"path": "new.py", "content": "x = 1\n"}}]}


async def notes(folder: Path, prompt: str, *replies: dict[str, Any], info: ModelInfo = SMALL) -> tuple[str, list[str]]:
    """The answer, and the notes that the model was given on the way."""
    async with on_stage(folder, replies, info=info, mode="bypassPermissions") as stage:
        done = await stage.ask(prompt)
        told = [
            block.text
            for message in stage.provider.requests[-1].messages
            for block in message.content
            if hasattr(block, "text")
        ]
    return done.text, [text for text in told if text.startswith("<system-reminder>")]


async def test_a_change_that_is_only_described_is_asked_for_once(tmp_path: Path) -> None:
    talk = {"text": "You should write x = 1."}
    answer, told = await notes(tmp_path, "Fix a.py", talk, {"text": "I cannot."})
    assert answer == "I cannot."
    assert [("not changed any files" in text) for text in told] == [True]


@pytest.mark.parametrize(
    ("prompt", "replies"),
    [
        ("What does add() do?", [{"text": "It adds."}]),
        ("Hello", [{"text": "Hi."}]),
        ("Fix a.py", [EDITS, {"text": "done"}]),
    ],
)
async def test_answers_to_questions_and_finished_work_are_not_nudged(
    tmp_path: Path, prompt: str, replies: list[dict[str, Any]]
) -> None:
    assert (await notes(tmp_path, prompt, *replies))[1] == []


async def test_larger_models_are_not_nudged(tmp_path: Path) -> None:
    large = ModelInfo("script", "scripted", prices=Prices())
    assert await notes(tmp_path, "Fix a.py", {"text": "You should."}, info=large) == ("You should.", [])


def shows(content: str, path: str = "new.py") -> dict[str, Any]:
    """An answer that came with the call it stands for."""
    call = {"name": "file_write", "input": {"path": path, "content": content}}
    return {"text": "This is it.", "tool_calls": [call], "stop_reason": "end_turn"}


async def test_a_small_model_ends_its_turn_with_an_answer_beside_successful_calls(tmp_path: Path) -> None:
    async with on_stage(tmp_path, [shows("x = 1\n")], info=SMALL, mode="bypassPermissions") as stage:
        done = await stage.ask("Write new.py")
    assert (done.text, done.turns, done.reason) == ("This is it.", 1, "end_turn")
    assert [path.read_text() for path in tmp_path.rglob("new.py")] == ["x = 1\n"]


@pytest.mark.parametrize("first", [shows("x = (\n"), shows("x = 1\n", path="\0")])
async def test_a_small_model_reads_results_of_calls_that_failed(tmp_path: Path, first: dict[str, Any]) -> None:
    async with on_stage(tmp_path, [first, {"text": "I see."}], info=SMALL, mode="bypassPermissions") as stage:
        done = await stage.ask("Write new.py")
    assert (done.text, done.turns) == ("I see.", 2)


async def test_larger_models_always_read_the_results_of_their_calls(tmp_path: Path) -> None:
    large = ModelInfo("script", "scripted", prices=Prices())
    async with on_stage(tmp_path, [shows("x = 1\n"), {"text": "Done."}], info=large, mode="bypassPermissions") as stage:
        done = await stage.ask("Write new.py")
    assert (done.text, done.turns) == ("Done.", 2)
