"""Inspect: a task evaluates agentcli, whose requests its model answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.app.running import Place

inspect_ai = pytest.importorskip("inspect_ai", reason="the extra `inspect` is not installed")
pytestmark = [pytest.mark.oracle, pytest.mark.full]  # its proxy takes seconds to start

PROGRAM = Path(sys.executable).with_name("agentcli")


def test_a_task_of_inspect_evaluates_agentcli(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import system_message

    from integrations.inspect_agent import agentcli

    monkeypatch.setenv("AGENTCLI_HOME", str(place.home))
    call = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat question.txt"})
    replies = [call, ModelOutput.from_content("mockllm/model", "It says 42.")]
    for reply in replies:
        reply.usage = ModelUsage()  # else Inspect counts tokens, for which it downloads data
    model = get_model("mockllm/model", custom_outputs=replies)
    sample = Sample(input="What does question.txt say?", target="42", files={"question.txt": "The answer is 42."})
    task = inspect_ai.Task(
        [sample], solver=[system_message("Be brief."), agentcli(str(PROGRAM))], scorer=includes(), sandbox="local"
    )
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(place.folder / "logs"))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    messages = log.samples[0].messages
    assert [one.role for one in messages[-4:]] == ["user", "assistant", "tool", "assistant"]
    assert "The answer is 42." in messages[-2].text
    assert "Be brief." in messages[0].text
