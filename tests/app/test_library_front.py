"""The library's front door: one prompt, histories that the program holds, content in plain Python, resolvers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, ClientResult, Image, Prompt, Steer, Text, query, query_sync, tool
from agentcli.agent.events import ToolStarted
from agentcli.agent.interfaces import NoHooks
from agentcli.errors import UsageError
from agentcli.library.agent import AgentFailed
from agentcli.llm.messages import Base64Source, Message, ToolResult, ToolUse
from agentcli.llm.providers.scripted import ScriptedProvider
from agentcli.providers import ToolSpec
from agentcli.stores import MemorySessions
from agentcli.testing import ScriptedCall, ScriptedModel, ScriptedReply
from tests.app.running import call

pytestmark = pytest.mark.usefixtures("library_home")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LOOKED = {"type": "tool_use", "id": "c1", "name": "thermometer", "input": {"room": "hall"}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "thermometer", "arguments": '{"room":"hall"}'}}
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "How warm is it?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, LOOKED]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "21"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "21 degrees."}]},
]
OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "21"},
    {"role": "assistant", "content": "21 degrees."},
]


@tool
def thermometer(room: str) -> str:
    """Measures the temperature of a room."""
    return "21"


def options(*replies: dict[str, Any], **more: Any) -> tuple[ScriptedProvider, AgentOptions]:
    provider = ScriptedProvider(replies)
    return provider, AgentOptions(provider=provider, **more)


@pytest.mark.parametrize("history", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
async def test_a_program_may_hold_the_conversation_in_the_form_of_either_api(
    work: Path, history: list[dict[str, Any]]
) -> None:
    """What an agent gives back is what the next one takes; no call of it runs again."""
    provider, with_model = options(
        {"text": "I look.", "tool_calls": [call("thermometer", room="hall") | {"id": "c1"}]},
        {"text": "21 degrees."},
        {"text": "Since noon."},
    )
    async with Agent(cwd=work, tools=[thermometer], history=[], options=with_model) as first:
        await first.run("How warm is it?")
        form: Any = "openai" if history is OPENAI else "anthropic"
        assert first.new_messages(form) == history
    async with Agent(cwd=work, history=history, options=with_model) as second:
        events = [event async for event in second.stream("Since when?")]
        assert not any(isinstance(event, ToolStarted) for event in events)
        assert [message["content"] for message in second.new_messages()] in (
            ["Since when?", "Since noon."],
            [[{"type": "text", "text": "Since when?"}], [{"type": "text", "text": "Since noon."}]],
        )
    seen = provider.requests[-1].messages
    assert [message.role for message in seen] == ["user", "assistant"] * 2 + ["user"]
    assert seen[1] == Message("assistant", (Text("I look."), ToolUse("c1", "thermometer", {"room": "hall"})))
    assert seen[2].content[0] == ToolResult("c1", "21")


def without(history: Sequence[dict[str, Any]], number: int, **changed: Any) -> list[dict[str, Any]]:
    return [*history[:number], *([history[number] | changed] if changed else []), *history[number + 1 :]]


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (without(ANTHROPIC, 2), r"history\[2\] is wrong: it comes before the result of the call 'c1'"),
        (without(OPENAI, 1), r"history\[1\] is wrong: no message before it makes the call 'c1'"),
        (OPENAI[:2], "no result for the call 'c1'"),
        ([*OPENAI, *OPENAI], r"history\[5\] is wrong: the id 'c1' is that of an earlier call"),
        ([{"role": "system", "content": "Be brief."}], r"history\[0\] is wrong: a system text belongs in Agent"),
        (["hello"], r"history\[0\] is wrong: expected a dict with role and content, got str"),
        (without(ANTHROPIC, 1, content=[{"type": "tool_use", "id": "c1"}]), r"history\[1\] is wrong: .*`name`"),
        (without(OPENAI, 1, tool_calls=[{"id": "c1"}]), r"history\[1\] is wrong: 'function' is missing"),
        (without(OPENAI, 0, content=[LOOKED]), r"history\[0\] is wrong: a message of the user takes no ToolUse"),
        ([{"role": "assistant", "content": None}], r"history\[0\] is wrong: it is empty"),
        ([{"role": "user", "content": "\ud800"}], r"history\[0\] is wrong: .*surrogates not allowed"),
    ],
)
async def test_a_history_that_is_wrong_is_refused_with_the_message_at_fault(
    work: Path, history: Any, says: str
) -> None:
    _, with_model = options({"text": "never"})
    async with Agent(cwd=work, history=history, options=with_model) as agent:
        with pytest.raises(UsageError, match=says):
            await agent.run("go")


async def test_calls_that_the_program_runs_go_on_in_another_agent_with_the_history(work: Path) -> None:
    """As a server does that keeps nothing: each request brings the whole conversation."""
    lookup = ToolSpec("lookup", "Looks a number up.", {"type": "object", "properties": {}})
    model = ScriptedModel([ScriptedReply(tool_calls=(ScriptedCall("lookup", {}),)), "It is 42."])
    async with Agent(model, cwd=work, history=[]) as first:
        paused = await first.run("Which number?", tools=[lookup])
        result = {"role": "tool", "tool_call_id": paused.pending[0].id, "content": "42"}
        history = [*first.new_messages("openai"), result]
    async with Agent(model, cwd=work, history=history) as second:
        assert (await second.run([], tools=[lookup])).text == "It is 42."
        assert second.new_messages() == [{"role": "assistant", "content": "It is 42."}]
    assert model.requests[1].messages[2].content[0] == ToolResult(paused.pending[0].id, "42")


async def test_images_of_either_api_reach_the_model(work: Path) -> None:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    provider, with_model = options({"text": "It is blue."})
    async with Agent(cwd=work, history=[{"role": "user", "content": [url]}], options=with_model) as agent:
        await agent.run("Which colour?")
    assert provider.requests[0].messages[0].content[0] == Image(Base64Source("image/png", PIXEL))
    with pytest.raises(UsageError, match="only one of them"):
        Agent(cwd=work, conversation="one", history=[], options=AgentOptions(store=MemorySessions()))


async def test_one_prompt_needs_one_call(work: Path) -> None:
    provider, with_model = options({"text": "Four."})
    done = await query("2 + 2?", instructions="Count.", cwd=work, options=with_model)
    assert (done.text, provider.requests[0].system) == ("Four.", "Count.")


def test_one_prompt_needs_no_event_loop(work: Path) -> None:
    _, with_model = options({"text": "Four."})
    assert query_sync("2 + 2?", cwd=work, options=with_model).text == "Four."


async def test_plain_texts_stand_for_blocks(work: Path) -> None:
    provider, with_model = options({"text": "One."}, {"text": "Two."})
    async with Agent(cwd=work, options=with_model) as agent:
        await agent.run(["See", Image(Base64Source("image/png", PIXEL))])
        session = await agent.session()
        assert (await session.answer("And on")).text == "Two."
        for wrong in (3, {"role": "user", "content": "hi"}):
            with pytest.raises(TypeError, match="Expected a text, or a list of texts and blocks"):
                await agent.run(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"Expected an operation, such as Prompt"):
            session.submit("And on")  # type: ignore[arg-type]
    assert provider.requests[0].messages[0].content[-2:] == (
        Text("See"),
        Image(Base64Source("image/png", PIXEL)),
    )
    assert Steer(["a", Text("b")]).blocks == Prompt((Text("a"), Text("b"))).blocks
    assert ClientResult("c1", "done").content == "done"
    for wrong in (3, [3], None, {"type": "text"}, b"x"):
        with pytest.raises(TypeError, match="Expected a text, or a list of texts and blocks such as Image, not"):
            Steer(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Expected a text"):
            ClientResult("c1", wrong)  # type: ignore[arg-type]


class Ears(NoHooks):
    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    async def on_error(self, text: str, is_retryable: bool) -> None:
        self.heard.append((text, is_retryable))


async def test_a_resolver_names_a_model_and_its_failure_is_like_a_providers(work: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f'{{"text": "I am {name}."}}\n' * 3)
    asked: list[str] = []

    async def resolve(state: Any) -> str:
        asked.append(state.model.name)
        if len(asked) > 1:
            raise KeyError("no table")
        return f"scripted/{tmp_path / 'one'}"

    ears = Ears()
    chosen = AgentOptions(resolve=resolve, hooks=ears)
    async with Agent(f"scripted/{tmp_path / 'two'}", cwd=work, options=chosen) as agent:
        assert (await agent.run("Who?")).text == "I am one."
        with pytest.raises(AgentFailed, match="The resolver failed: KeyError") as failed:
            await agent.run("Who?")
        assert failed.value.is_retryable
    assert ears.heard == [("The resolver failed: KeyError('no table').", True)]
    settings = {"provider": {"fallback_model": f"scripted/{tmp_path / 'two'}"}}
    chosen = AgentOptions(resolve=resolve, settings=settings)
    async with Agent(f"scripted/{tmp_path / 'one'}", cwd=work, options=chosen) as agent:
        for _ in range(2):
            assert (await agent.run("Who?")).text == "I am two."
