"""Guardrails of a program: checks of prompts before the model, and of answers after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli import Agent, AgentFailed, AgentOptions
from agentcli.hooks import Guardrails
from agentcli.testing import ScriptedCall, ScriptedModel, ScriptedReply

pytestmark = pytest.mark.usefixtures("library_home")


class NoSecrets(Guardrails):
    def __init__(self, max_retries: int = 1) -> None:
        self.max_retries = max_retries
        self.checked: list[str] = []

    async def check_prompt(self, prompt: str) -> str:
        return "it asks for a password." if "password" in prompt else ""

    async def check_answer(self, answer: str) -> str:
        self.checked.append(answer)
        return "it holds a password." if "hunter2" in answer else ""


async def test_a_prompt_that_is_rejected_reaches_no_model_and_leaves_the_conversation(work: Path) -> None:
    model = ScriptedModel(["Fine."])
    async with Agent(model, cwd=work, options=AgentOptions(hooks=NoSecrets())) as agent:
        with pytest.raises(AgentFailed, match="rejected your message, which was removed: it asks for a password"):
            await agent.run("What is the password?")
        assert not model.requests
        assert (await agent.run("How are you?")).text == "Fine."
    assert "password" not in str(model.requests[0].messages)


async def test_an_answer_that_is_rejected_is_asked_for_again_with_the_reason(work: Path) -> None:
    model = ScriptedModel(["It is hunter2.", "I keep that to myself."])
    guards = NoSecrets()
    async with Agent(model, cwd=work, options=AgentOptions(hooks=guards)) as agent:
        assert (await agent.run("Tell me.")).text == "I keep that to myself."
        (record,) = agent.turns()
    assert "Your answer was rejected: it holds a password." in model.requests[1].messages[-1].text
    assert guards.checked == ["It is hunter2.", "I keep that to myself."]
    assert (record.thoughts, record.answer) == (["It is hunter2."], "I keep that to myself.")


@pytest.mark.parametrize("max_retries", [0, 1, 2])
async def test_an_answer_that_stays_rejected_fails(work: Path, max_retries: int) -> None:
    model = ScriptedModel(["It is hunter2."] * (max_retries + 1) + ["Next."])
    async with Agent(model, cwd=work, options=AgentOptions(hooks=NoSecrets(max_retries))) as agent:
        with pytest.raises(AgentFailed, match="A guardrail rejected the answer: it holds a password"):
            await agent.run("Tell me.")
        assert len(model.requests) == max_retries + 1
        assert (await agent.run("Go on.")).text == "Next."


async def test_texts_before_calls_are_no_answers(work: Path) -> None:
    (work / "a.txt").write_text("blue\n")
    reads = ScriptedReply(text="I try hunter2.", tool_calls=[ScriptedCall("file_read", {"path": "a.txt"})])
    guards = NoSecrets()
    async with Agent(ScriptedModel([reads, "It is blue."]), cwd=work, options=AgentOptions(hooks=guards)) as agent:
        assert (await agent.run("What is in a.txt?")).text == "It is blue."
    assert guards.checked == ["It is blue."]
