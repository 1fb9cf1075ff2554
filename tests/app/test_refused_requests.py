"""A provider refuses a request for its form: it is mended once, and the session goes on."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agentcli import Agent, AgentFailed, SetModel
from agentcli.agent.events import Done, Event, Notice
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply, ollama_reply
from tests.conformance.servers import Received, Reply, anthropic_server, chat_server, json_reply, ollama_server

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


async def test_what_is_refused_in_every_form_is_taken_back_up_to_what_was_taken(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [anthropic_reply(SEE), *[refusal("messages.1: unexpected content")] * 5, anthropic_reply("Fine.")]
    with anthropic_server(script) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            with pytest.raises(
                AgentFailed, match=r"unexpected content.*/rewind.*results of its calls were taken back\."
            ):
                await agent.run("look at it")
            assert (await agent.run("again")).text == "Fine."
        assert _nested(server.requests[-1]) == set()
        last = json.dumps(server.requests[-1].json["messages"])
    assert "look at it" in last
    assert "left out" in last


def _nested(request: Received) -> set[str]:
    text = request.body.decode()
    return {kind for kind in ("thinking", "image", "tool_use") if f'"type":"{kind}"' in text}


@pytest.mark.parametrize(
    "refused",
    [
        refusal("max_tokens: 99999999 > 64000"),
        refusal("rate", 429),
        refusal("image quota", 403),
        refusal("Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."),
        refusal("API key not valid. Please pass a valid API key."),
        refusal("This organization has been disabled."),
        refusal("Unknown model: claude-9"),
        refusal("This model is deprecated and no longer available."),
    ],
)
async def test_other_refusals_are_not_tried_again(refused: Reply, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_RETRY_MAX", "0")
    with anthropic_server([anthropic_reply(LOOK), refused]) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed) as failed:
                await agent.run("what colour?")
        assert len(server.requests) == 2
    assert "taken back" not in str(failed.value)


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


WORDLESS = {
    "bare": json_reply({"error": "Bad Request"}, 400),
    "empty": Reply(b"", 400, "application/json"),
    "page": Reply(b"<html><body>400 Bad Request</body></html>", 400, "text/html"),
    "invalid": refusal("Invalid request"),
    "type": refusal("Invalid parameter: expected string, got array"),
    "go": refusal("json: cannot unmarshal array into Go value of type string"),
    "pydantic": refusal("1 validation error for ChatCompletionRequest: body -> 3 Input should be a valid string"),
    "list": json_reply({"detail": [{"loc": ["body", 1], "msg": "str type expected"}]}, 422),
    "chinese": refusal("参数错误"),
}


@pytest.mark.parametrize("words", WORDLESS)
@pytest.mark.parametrize("is_read", [False, True], ids=["mentioned", "read by a call"])
async def test_no_words_of_a_refusal_leave_a_session_stuck(
    words: str, is_read: bool, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(received: Received) -> Reply:
        if "image_url" in received.body.decode():
            return WORDLESS[words]
        return chat_reply("Fine.") if "a.png" in received.body.decode() else chat_reply(SEE)

    with chat_server([strict] * 9) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            for prompt in ("look" if is_read else "what is on @a.png?", "and now?", "again"):
                assert (await agent.run(prompt)).text == "Fine."
        assert len(server.requests) == 4 + is_read
        assert "left out: the provider refused it" in server.requests[-1].body.decode()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("stream_options", "Unknown field: stream_options"),
        ("tools", "tools is not supported by this model"),
        ("tools", '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ("temperature", "Unsupported value: 'temperature' does not support 0.5 with this model."),
        ("store", "Unrecognized request argument supplied: store"),
    ],
)
async def test_a_field_that_is_refused_is_not_sent_again(
    field: str, message: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(received: Received) -> Reply:
        return refusal(message) if field in received.json else chat_reply("Fine.")

    monkeypatch.setenv("AGENTCLI_TOKENS_TEMPERATURE", "0.5")
    with chat_server([strict] * 3) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert f"trying again without {field}." in notices(await heard(agent, "hello"))[0]
            assert notices(await heard(agent, "again")) == []
        first, *others = (request.json for request in server.requests)
    for sent in others:
        assert sent == {name: value for name, value in first.items() if name != field} | {"messages": sent["messages"]}


async def test_a_model_of_ollama_without_tools_is_not_sent_any(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(received: Received) -> Reply:
        why = json_reply({"error": "registry.ollama.ai/library/qwen3:8b does not support tools"}, 400)
        return why if received.json.get("tools") else ollama_reply("Fine.")

    with ollama_server([strict] * 3) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        async with Agent("ollama/qwen3:8b", cwd=work) as agent:
            assert [(await agent.run(prompt)).text for prompt in ("hello", "again")] == ["Fine.", "Fine."]
        assert ["tools" in request.json for request in server.requests] == [True, False, False]


async def test_fields_that_are_refused_one_after_the_other_all_stay_out(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(received: Received) -> Reply:
        unknown = [field for field in ("store", "stream_options") if field in received.json]
        return refusal(f"Unknown parameter: '{unknown[0]}'") if unknown else chat_reply("Fine.")

    with chat_server([strict] * 4) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert [(await agent.run(prompt)).text for prompt in ("hello", "again")] == ["Fine.", "Fine."]


async def test_a_field_that_a_refusal_names_in_vain_is_sent_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(received: Received) -> Reply:
        why = refusal("This endpoint does not support tools together with such messages.")
        return why if "image_url" in received.body.decode() else chat_reply("Fine.")

    with chat_server([strict] * 4) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert [(await agent.run(prompt)).text for prompt in ("see @a.png", "again")] == ["Fine.", "Fine."]
        assert ["tools" in request.json for request in server.requests] == [True, False, True, True]


def filters(received: Received) -> Reply:
    if "FORBIDDEN" in received.body.decode():
        return refusal("The response was filtered due to the prompt triggering content management policy.")
    return chat_reply("Fine.") if "a.txt" in received.body.decode() else chat_reply(LOOK)


async def test_a_result_that_a_filter_refuses_is_left_out_alone(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "a.txt").write_text("FORBIDDEN")
    with chat_server([filters] * 5) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert [(await agent.run(prompt)).text for prompt in ("look", "and?", "again")] == ["Fine."] * 3
        assert len(server.requests) == 5
        roles = [message["role"] for message in server.requests[-1].json["messages"][1:]]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("why", ["It was filtered.", "Bad Request"])
async def test_a_prompt_that_a_filter_refuses_is_taken_back(
    why: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(received: Received) -> Reply:
        return refusal(why) if "FORBIDDEN" in received.body.decode() else filters(received)

    with chat_server([strict] * 6) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert (await agent.run("what colour?")).text == "Fine."
            with pytest.raises(AgentFailed, match=r"/rewind.*The message was taken back\."):
                await agent.run("FORBIDDEN")
            assert notices(await heard(agent, "again")) == []
        assert "FORBIDDEN" not in server.requests[-1].body.decode()


async def test_a_result_is_left_out_alone_where_no_words_say_so(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasoning and calls were left out in vain before: they come back."""
    (work / "b.txt").write_text("FORBIDDEN")
    again = Said("I look.", calls=(Call("toolu_2", "file_read", {"path": "b.txt"}),))

    def strict(received: Received) -> Reply:
        body = received.body.decode()
        if "FORBIDDEN" in body:
            return refusal("Bad Request")
        return anthropic_reply("Fine." if "b.txt" in body else again if "a.txt" in body else LOOK)

    with anthropic_server([strict] * 6) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            assert (await agent.run("look")).text == "Fine."
        assert _nested(server.requests[-1]) == {"thinking", "tool_use"}


@pytest.mark.parametrize(("status", "body"), [(400, b""), (400, b'{"error":"Bad Request"}'), (404, b""), (401, b"")])
async def test_a_text_alone_is_sent_once(status: int, body: bytes, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server([Reply(body, status, "application/json")]) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed):
                await agent.run("hello")
        assert len(server.requests) == 1


async def test_what_one_provider_refused_another_one_gets(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(received: Received) -> Reply:
        return refusal("no image") if "image_url" in received.body.decode() else chat_reply("I cannot see.")

    with chat_server([blind] * 2) as one, anthropic_server([anthropic_reply("A square.")]) as other:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", other.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
        async with openai(monkeypatch, one.url, work) as agent:
            await agent.run("what is on @a.png?")
            (await agent.session()).submit(SetModel("anthropic/claude-sonnet-5-5"))
            assert (await agent.run("and you?")).text == "A square."
        assert "image" in kinds(other.requests[0])


@pytest.mark.parametrize("place", ["messages.0.content.{}.image.source.base64: Could not process image", "bad image"])
async def test_one_bad_image_takes_no_other_with_it(place: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a.png", "b.png", "c.png")
    for size, name in enumerate(names, 10):
        Image.new("RGB", (size, size)).save(work / name)
    bad = base64.b64encode((work / ("b.png" if "{}" in place else "c.png")).read_bytes()).decode()

    def strict(received: Received) -> Reply:
        content = received.json["messages"][0]["content"]
        held = [number for number, block in enumerate(content) if bad in json.dumps(block)]
        return refusal(place.format(*held)) if held else anthropic_reply("Fine.")

    with anthropic_server([strict] * 3) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            assert (await agent.run("compare @a.png @b.png @c.png")).text == "Fine."
        sent = [request.body.decode().count('"type":"image"') for request in server.requests]
    assert sent == [3, 2]


async def test_an_earlier_image_stays_when_new_ones_are_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, name in enumerate(("b.png", "c.png"), 10):
        Image.new("RGB", (size, size)).save(work / name)
    bad = base64.b64encode((work / "b.png").read_bytes()).decode()

    def strict(received: Received) -> Reply:
        return refusal("bad image") if bad in received.body.decode() else anthropic_reply("Fine.")

    with anthropic_server([strict] * 4) as server:
        async with anthropic(monkeypatch, server.url, work) as agent:
            assert (await agent.run("see @a.png")).text == "Fine."
            assert (await agent.run("compare it with @b.png @c.png")).text == "Fine."
        assert [request.body.decode().count('"type":"image"') for request in server.requests] == [1, 3, 2, 1]


async def test_a_large_prompt_that_is_refused_without_a_word_does_not_fit(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chat_server([Reply(b"", 400, "application/json"), chat_reply("Fine.")]) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed, match="larger window"):
                await agent.run("word " * 40_000)
            assert (await agent.run("hello")).text == "Fine."


async def test_a_side_question_leaves_out_what_the_model_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(received: Received) -> Reply:
        if "stream_options" in received.json:
            return refusal("Unknown field: stream_options")
        return refusal("no image") if "image_url" in received.body.decode() else chat_reply("Fine.")

    with chat_server([strict] * 5) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            assert (await agent.run("see @a.png")).text == "Fine."
            assert (await agent.run("/btw why?")).text == "Fine."


async def test_a_reply_that_is_refused_itself_is_taken_back(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(received: Received) -> Reply:
        body = received.body.decode()
        if "FORBIDDEN" in body:
            return refusal("Content Exists Risk")
        writes = Said("", calls=(Call("toolu_1", "file_write", {"path": "b.txt", "content": "FORBIDDEN"}),))
        return chat_reply("Fine." if "again" in body else writes)

    with chat_server([strict] * 6) as server:
        async with openai(monkeypatch, server.url, work) as agent:
            with pytest.raises(AgentFailed, match="results of its calls were taken back"):
                await agent.run("write it")
            assert (await agent.run("again")).text == "Fine."
        last = server.requests[-1].json["messages"]
    assert [message["role"] for message in last[1:]] == ["user"]
    assert "write it" in json.dumps(last)


async def test_an_old_result_that_only_the_next_model_refuses_is_left_out_for_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a.txt").write_text("FORBIDDEN")
    with (
        anthropic_server([anthropic_reply(LOOK), anthropic_reply("Fine.")]) as one,
        chat_server([filters] * 9) as other,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        async with anthropic(monkeypatch, one.url, work) as agent:
            await agent.run("look")
            (await agent.session()).submit(SetModel("openai/test-model"))
            assert [(await agent.run(prompt)).text for prompt in ("and?", "again")] == ["Fine.", "Fine."]
        assert len(other.requests) == 3
