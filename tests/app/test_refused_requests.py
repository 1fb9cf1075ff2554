"""A provider refuses a request for its form: it is mended once, and the session goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agentcli import Agent, AgentFailed
from agentcli.agent.events import Done, Event, Notice
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply
from tests.conformance.servers import Received, Reply, anthropic_server, chat_server, json_reply

LOOK = Said("I look.", "The file will tell.", (Call("toolu_1", "file_read", {"path": "a.txt"}),))
BOUND = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."


def refusal(message: str, status: int = 400) -> Reply:
    error = {"type": "invalid_request_error", "message": message}
    return json_reply({"type": "error", "error": error}, status)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("blue\n")
    Image.new("RGB", (9, 9)).save(folder / "a.png")
    return folder


def kinds(request: Received) -> set[str]:
    """The types of all blocks of a request to Anthropic."""
    return {block["type"] for message in request.json["messages"] for block in message["content"]}


def anthropic(monkeypatch: pytest.MonkeyPatch, url: str, work: Path, **options: Any) -> Agent:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
    return Agent("anthropic/claude-sonnet-5-5", cwd=work, **options)


def openai(monkeypatch: pytest.MonkeyPatch, url: str, work: Path) -> Agent:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    return Agent("openai/test-model", cwd=work)


async def heard(agent: Agent, prompt: str) -> list[Event]:
    return [event async for event in agent.stream(prompt)]


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


async def test_thinking_that_is_refused_stays_out_from_then_on(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [
        anthropic_reply(LOOK),
        refusal(BOUND),
        anthropic_reply(Said("Blue.", "So it is.")),
        anthropic_reply("Yes."),
    ]
    with anthropic_server(script) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            events = await heard(agent, "what colour?")
            assert isinstance(events[-1], Done)
            assert events[-1].text == "Blue."
            again = await heard(agent, "sure?")
        first, refused, mended, later = server.requests
    assert "thinking" in kinds(refused)
    assert "thinking" not in kinds(mended)
    assert {"tool_use", "tool_result"} <= kinds(mended)
    assert mended.json["messages"][0]["content"][0]["text"] == first.json["messages"][0]["content"][0]["text"]
    (said,) = notices(events)
    assert "without earlier reasoning" in said
    assert notices(again) == []
    thoughts = [b for m in later.json["messages"] for b in m["content"] if b["type"] == "thinking"]
    assert [block["thinking"] for block in thoughts] == ["So it is."]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "messages[1]: unknown variant `image_url`, expected `text`"),
        (404, "No endpoints found that support image input"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
        (413, "Request too large"),
    ],
)
async def test_images_that_are_refused_become_a_text(
    status: int, message: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(received: Received) -> Reply:
        return refusal(message, status) if "image_url" in received.body.decode() else chat_reply("I cannot see it.")

    with chat_server([refuses] * 3) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            events = await heard(agent, "what is on @a.png?")
            assert isinstance(events[-1], Done)
            assert (await agent.run("and now?")).text == "I cannot see it."
        assert len(server.requests) == 3
        content = server.requests[1].json["messages"][-1]["content"]
    assert "what is on" in content
    assert "[Image left out: the provider refused it]" in content


SEE = Said("", "Let me see.", (Call("toolu_1", "file_read", {"path": "a.png"}),))


async def test_reasoning_goes_first_then_images_and_calls_become_text(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [refusal("messages.1: unexpected content")] * 3
    script = [anthropic_reply(SEE), *refusals, anthropic_reply(LOOK), anthropic_reply("Fine.")]
    with anthropic_server(script) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            events = await heard(agent, "look at it")
        sent = [_nested(request) for request in server.requests[1:]]
    assert sent == [
        {"thinking", "image", "tool_use"},
        {"image", "tool_use"},
        {"tool_use"},
        set(),
        {"thinking", "tool_use"},  # of the reply that came since
    ]
    assert [text.rpartition("trying again ")[2] for text in notices(events)] == [
        "without earlier reasoning.",
        "without images and documents.",
        "with earlier calls told as text.",
    ]
    assert isinstance(events[-1], Done)
    last = json.dumps(server.requests[-1].json["messages"])
    assert '[called file_read with {\\"path\\":\\"a.png\\"}]' in last
    assert "[Image left out: the provider refused it]" in last


@pytest.mark.parametrize("status", [400, 500])
async def test_a_template_that_knows_no_tools_is_answered_in_words(
    status: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = chat_reply(Said("", calls=(Call("c1", "file_read", {"path": "a.txt"}),)))
    why = refusal("Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/...", status)
    with chat_server([look, why, chat_reply("Blue.")]) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert (await agent.run("what colour?")).text == "Blue."
        roles = [message["role"] for message in server.requests[2].json["messages"]]
    assert roles[1:] == ["user", "assistant", "user"]


async def test_what_is_refused_in_every_form_is_told_and_tried_anew(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [anthropic_reply(SEE), *[refusal("messages.1: unexpected content")] * 4, anthropic_reply("Fine.")]
    with anthropic_server(script) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed, match="unexpected content"):
                await agent.run("look at it")
            assert (await agent.run("again")).text == "Fine."
        assert _nested(server.requests[-1]) == {"thinking", "image", "tool_use"}
        assert "look at it" in json.dumps(server.requests[-1].json["messages"])


def _nested(request: Received) -> set[str]:
    text = request.body.decode()
    return {kind for kind in ("thinking", "image", "tool_use") if f'"type":"{kind}"' in text}


@pytest.mark.parametrize(
    "refused", [refusal("max_tokens: 99999999 > 64000"), refusal("rate", 429), refusal("image quota", 403)]
)
async def test_other_refusals_are_not_tried_again(refused: Reply, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_RETRY_MAX", "0")
    with anthropic_server([anthropic_reply(LOOK), refused]) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed):
                await agent.run("what colour?")
        assert len(server.requests) == 2


async def test_what_a_library_makes_of_a_conversation_is_mended_too(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_its_beginning(messages: Any) -> Any:
        return messages[1:] if len(messages) > 3 else messages

    script = [anthropic_reply(LOOK), anthropic_reply("Blue."), anthropic_reply("Yes.")]
    with anthropic_server(script) as server:
        async with anthropic(monkeypatch, server.url, work, context_transform=without_its_beginning) as agent:
            assert (await agent.run("what colour?")).text == "Blue."
            assert (await agent.run("sure?")).text == "Yes."
