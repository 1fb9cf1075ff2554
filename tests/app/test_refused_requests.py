"""A provider refuses a request for its form: it is sent in another one, and the session goes on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from agentcli import Agent
from agentcli.agent.events import Done, Notice
from agentcli.events import SetModel
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply, ollama_reply
from tests.conformance.servers import Received, Reply, anthropic_server, chat_server, json_reply, ollama_server

LOOK = Said("I look.", "The file will tell.", (Call("toolu_1", "file_read", {"path": "a.txt"}),))
SEE = Said("", "Let me see.", (Call("toolu_1", "file_read", {"path": "a.png"}),))
BOUND = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
Script = Iterable[Reply | Callable[[Received], Reply]]


class Talk(NamedTuple):
    """The answer or the failure of each prompt, the notices of each, and the requests that the server saw."""

    answers: list[str]
    notices: list[list[str]]
    requests: list[Received]

    @property
    def last(self) -> str:
        return self.requests[-1].body.decode()


Chat = Callable[..., Awaitable[Talk]]


def refusal(message: str, status: int = 400) -> Reply:
    error = {"type": "invalid_request_error", "message": message}
    return json_reply({"type": "error", "error": error}, status)


def refusing(*found: str, why: str | Reply, otherwise: Reply) -> Callable[[Received], Reply]:
    """A server that refuses what holds one of these words."""
    reply = refusal(why) if isinstance(why, str) else why
    return lambda received: reply if any(word in received.body.decode() for word in found) else otherwise


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-x")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("blue\n")
    Image.new("RGB", (9, 9)).save(folder / "a.png")
    return folder


async def hold(agent: Agent, prompts: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    answers, notices = [], []
    async with agent:
        for prompt in prompts:
            events = [event async for event in agent.stream(prompt)]
            answers.append(events[-1].text if isinstance(events[-1], Done) else getattr(events[-1], "error", ""))
            notices.append([event.text for event in events if isinstance(event, Notice)])
    return answers, notices


@pytest.fixture
def chat(work: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Holds a conversation with a model of OpenAI whose server plays a script."""

    async def talk(script: Script, *prompts: str) -> Talk:
        with chat_server(script) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            return Talk(*await hold(Agent("openai/test-model", cwd=work), prompts), list(server.requests))

    return talk


@pytest.fixture
def claude(work: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """The same with a model of Anthropic."""

    async def talk(script: Script, *prompts: str, **options: Any) -> Talk:
        with anthropic_server(script) as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            agent = Agent("anthropic/claude-sonnet-5-5", cwd=work, **options)
            return Talk(*await hold(agent, prompts), list(server.requests))

    return talk


def nested(request: Received) -> set[str]:
    text = request.body.decode()
    return {kind for kind in ("thinking", "image", "tool_use", "tool_result") if f'"type":"{kind}"' in text}


async def test_thinking_that_is_refused_stays_out_from_then_on(claude: Chat) -> None:
    blue = anthropic_reply(Said("Blue.", "So it is."))
    script = [anthropic_reply(LOOK), refusal(BOUND), blue, anthropic_reply("Yes.")]
    talk = await claude(script, "what colour?", "sure?")
    first, refused, mended, later = talk.requests
    assert talk.answers == ["Blue.", "Yes."]
    assert nested(refused) == {"thinking", "tool_use", "tool_result"}
    assert nested(mended) == {"tool_use", "tool_result"}
    assert mended.json["messages"][0]["content"][0]["text"] == first.json["messages"][0]["content"][0]["text"]
    ((said,), again) = talk.notices
    assert "without earlier reasoning" in said
    assert again == []
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
async def test_images_that_are_refused_become_a_text(status: int, message: str, chat: Chat) -> None:
    refuses = refusing("image_url", why=refusal(message, status), otherwise=chat_reply("I cannot see it."))
    talk = await chat([refuses] * 3, "what is on @a.png?", "and now?")
    assert talk.answers == ["I cannot see it."] * 2
    assert len(talk.requests) == 3
    content = talk.requests[1].json["messages"][-1]["content"]
    assert "what is on" in content
    assert "[Image omitted: the provider rejected it]" in content


async def test_reasoning_goes_first_then_images_and_calls_become_text(claude: Chat) -> None:
    refusals = [refusal("messages.1: unexpected content")] * 3
    talk = await claude(
        [anthropic_reply(SEE), *refusals, anthropic_reply(LOOK), anthropic_reply("Fine.")], "look at it"
    )
    assert [nested(request) - {"tool_result"} for request in talk.requests[1:]] == [
        {"thinking", "image", "tool_use"},
        {"image", "tool_use"},
        {"tool_use"},
        set(),
        {"thinking", "tool_use"},  # of the reply that came since
    ]
    assert [text.rpartition("Retrying ")[2] for text in talk.notices[0]] == [
        "without earlier reasoning.",
        "without images and documents.",
        "with earlier calls as text.",
    ]
    assert talk.answers == ["Fine."]
    last = json.dumps(talk.requests[-1].json["messages"])
    assert '[called file_read with {\\"path\\":\\"a.png\\"}]' in last
    assert "[Image omitted: the provider rejected it]" in last


@pytest.mark.parametrize("status", [400, 500])
async def test_a_template_that_knows_no_tools_is_answered_in_words(status: int, chat: Chat) -> None:
    look = chat_reply(Said("", calls=(Call("c1", "file_read", {"path": "a.txt"}),)))
    why = refusal("Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/...", status)
    talk = await chat([look, why, chat_reply("Blue.")], "what colour?")
    assert talk.answers == ["Blue."]
    assert [message["role"] for message in talk.requests[2].json["messages"]][1:] == ["user", "assistant", "user"]


async def test_a_prompt_rejected_in_every_form_is_withdrawn_up_to_the_accepted_part(claude: Chat) -> None:
    refusals = [refusal("messages.1: unexpected content")] * 5
    talk = await claude([anthropic_reply(SEE), *refusals, anthropic_reply("Fine.")], "look at it", "again")
    failed, answer = talk.answers
    assert "unexpected content" in failed
    assert "/rewind" in failed
    assert "tool results were removed from the conversation." in failed
    assert answer == "Fine."
    assert nested(talk.requests[-1]) == set()
    assert "look at it" in talk.last
    assert "omitted" in talk.last


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
async def test_other_refusals_are_not_retried(refused: Reply, claude: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_RETRY_MAX", "0")
    talk = await claude([anthropic_reply(LOOK), refused], "what colour?")
    assert len(talk.requests) == 2
    assert talk.answers != [""]
    assert "removed from" not in talk.answers[0]


async def test_conversations_built_by_library_code_are_repaired_too(claude: Chat) -> None:
    async def without_its_beginning(messages: Any) -> Any:
        return messages[1:] if len(messages) > 3 else messages

    script = [anthropic_reply(LOOK), anthropic_reply("Blue."), anthropic_reply("Yes.")]
    talk = await claude(script, "what colour?", "sure?", context_transform=without_its_beginning)
    assert talk.answers == ["Blue.", "Yes."]


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
async def test_no_words_of_a_refusal_leave_a_session_stuck(words: str, is_read: bool, chat: Chat) -> None:
    def strict(received: Received) -> Reply:
        if "image_url" in received.body.decode():
            return WORDLESS[words]
        return chat_reply("Fine.") if "a.png" in received.body.decode() else chat_reply(SEE)

    talk = await chat([strict] * 9, "look" if is_read else "what is on @a.png?", "and now?", "again")
    assert talk.answers == ["Fine."] * 3
    assert len(talk.requests) == 4 + is_read
    assert "omitted: the provider rejected it" in talk.last


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
    field: str, message: str, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCLI_TOKENS_TEMPERATURE", "0.5")
    talk = await chat([refusing(f'"{field}":', why=message, otherwise=chat_reply("Fine."))] * 3, "hello", "again")
    ((said,), again) = talk.notices
    assert f"Retrying without {field}." in said
    assert again == []
    first, *others = (request.json for request in talk.requests)
    for sent in others:
        assert sent == {name: value for name, value in first.items() if name != field} | {"messages": sent["messages"]}


async def test_a_model_of_ollama_without_tools_is_not_sent_any(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = json_reply({"error": "registry.ollama.ai/library/qwen3:8b does not support tools"}, 400)
    with ollama_server([refusing('"tools":[{', why=why, otherwise=ollama_reply("Fine."))] * 3) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        answers, _ = await hold(Agent("ollama/qwen3:8b", cwd=work), ("hello", "again"))
        assert answers == ["Fine.", "Fine."]
        assert ["tools" in request.json for request in server.requests] == [True, False, False]


async def test_fields_that_are_refused_one_after_the_other_all_stay_out(chat: Chat) -> None:
    def strict(received: Received) -> Reply:
        unknown = [field for field in ("store", "stream_options") if field in received.json]
        return refusal(f"Unknown parameter: '{unknown[0]}'") if unknown else chat_reply("Fine.")

    assert (await chat([strict] * 4, "hello", "again")).answers == ["Fine.", "Fine."]


async def test_a_field_that_a_refusal_names_in_vain_is_sent_again(chat: Chat) -> None:
    why = "This endpoint does not support tools together with such messages."
    talk = await chat([refusing("image_url", why=why, otherwise=chat_reply("Fine."))] * 4, "see @a.png", "again")
    assert talk.answers == ["Fine.", "Fine."]
    assert ["tools" in request.json for request in talk.requests] == [True, False, True, True]


def filters(received: Received) -> Reply:
    if "FORBIDDEN" in received.body.decode():
        return refusal("The response was filtered due to the prompt triggering content management policy.")
    return chat_reply("Fine.") if "a.txt" in received.body.decode() else chat_reply(LOOK)


async def test_a_result_that_a_filter_refuses_is_left_out_alone(work: Path, chat: Chat) -> None:
    (work / "a.txt").write_text("FORBIDDEN")
    talk = await chat([filters] * 5, "look", "and?", "again")
    assert talk.answers == ["Fine."] * 3
    assert len(talk.requests) == 5
    roles = [message["role"] for message in talk.requests[-1].json["messages"][1:]]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("why", ["It was filtered.", "Bad Request"])
async def test_a_prompt_that_a_filter_refuses_is_withdrawn(why: str, chat: Chat) -> None:
    def strict(received: Received) -> Reply:
        return refusal(why) if "FORBIDDEN" in received.body.decode() else filters(received)

    talk = await chat([strict] * 6, "what colour?", "FORBIDDEN", "again")
    assert talk.answers[0] == talk.answers[2] == "Fine."
    assert "/rewind" in talk.answers[1]
    assert "Your message was removed from the conversation." in talk.answers[1]
    assert talk.notices[2] == []
    assert "FORBIDDEN" not in talk.last


async def test_a_result_is_left_out_alone_where_no_words_say_so(work: Path, claude: Chat) -> None:
    """Reasoning and calls were left out in vain before: they come back."""
    (work / "b.txt").write_text("FORBIDDEN")
    again = Said("I look.", calls=(Call("toolu_2", "file_read", {"path": "b.txt"}),))

    def strict(received: Received) -> Reply:
        body = received.body.decode()
        if "FORBIDDEN" in body:
            return refusal("Bad Request")
        return anthropic_reply("Fine." if "b.txt" in body else again if "a.txt" in body else LOOK)

    talk = await claude([strict] * 6, "look")
    assert talk.answers == ["Fine."]
    assert nested(talk.requests[-1]) == {"thinking", "tool_use", "tool_result"}


@pytest.mark.parametrize(("status", "body"), [(400, b""), (400, b'{"error":"Bad Request"}'), (404, b""), (401, b"")])
async def test_a_text_alone_is_sent_once(status: int, body: bytes, chat: Chat) -> None:
    assert len((await chat([Reply(body, status, "application/json")], "hello")).requests) == 1


async def test_what_one_provider_refused_another_one_gets(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = refusing("image_url", why="no image", otherwise=chat_reply("I cannot see."))
    with chat_server([blind] * 2) as one, anthropic_server([anthropic_reply("A square.")]) as other:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", other.url)
        monkeypatch.setenv("OPENAI_BASE_URL", one.url)
        async with Agent("openai/test-model", cwd=work) as agent:
            await agent.run("what is on @a.png?")
            (await agent.session()).submit(SetModel("anthropic/claude-sonnet-5-5"))
            assert (await agent.run("and you?")).text == "A square."
        assert "image" in nested(other.requests[0])


async def test_a_large_prompt_that_is_refused_without_a_word_does_not_fit(chat: Chat) -> None:
    talk = await chat([Reply(b"", 400, "application/json"), chat_reply("Fine.")], "word " * 40_000, "hello")
    assert "larger window" in talk.answers[0]
    assert talk.answers[1] == "Fine."


async def test_a_side_question_leaves_out_what_the_model_refused(chat: Chat) -> None:
    def strict(received: Received) -> Reply:
        if "stream_options" in received.json:
            return refusal("Unknown field: stream_options")
        return refusal("no image") if "image_url" in received.body.decode() else chat_reply("Fine.")

    assert (await chat([strict] * 5, "see @a.png", "/btw why?")).answers == ["Fine.", "Fine."]


async def test_a_reply_that_is_refused_itself_is_withdrawn(chat: Chat) -> None:
    writes = Said("", calls=(Call("toolu_1", "file_write", {"path": "b.txt", "content": "FORBIDDEN"}),))

    def strict(received: Received) -> Reply:
        body = received.body.decode()
        if "FORBIDDEN" in body:
            return refusal("Content Exists Risk")
        return chat_reply("Fine." if "again" in body else writes)

    talk = await chat([strict] * 6, "write it", "again")
    assert "tool results were removed from the conversation" in talk.answers[0]
    assert talk.answers[1] == "Fine."
    assert [message["role"] for message in talk.requests[-1].json["messages"][1:]] == ["user"]
    assert "write it" in talk.last


async def test_an_old_result_that_only_the_next_model_refuses_is_left_out_for_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a.txt").write_text("FORBIDDEN")
    with (
        anthropic_server([anthropic_reply(LOOK), anthropic_reply("Fine.")]) as one,
        chat_server([filters] * 9) as other,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", one.url)
        async with Agent("anthropic/claude-sonnet-5-5", cwd=work) as agent:
            await agent.run("look")
            (await agent.session()).submit(SetModel("openai/test-model"))
            assert [(await agent.run(prompt)).text for prompt in ("and?", "again")] == ["Fine.", "Fine."]
        assert len(other.requests) == 3
