"""The provider that plays replies from a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli.errors import UserError
from agentcli.llm.errors import BadRequest, ConnectionFailed, RateLimit
from agentcli.llm.messages import Message, Text, Thinking, ToolResult, ToolUse, Usage
from agentcli.llm.provider import Request, TextDelta
from agentcli.llm.providers.scripted import ScriptedProvider, ScriptedReply, read_script
from tests.conformance.reading import Heard, asking, hear


def played(*replies: Any, request: Request | None = None) -> Heard:
    return asyncio.run(hear(ScriptedProvider(replies), request))


def test_a_reply_s_parts_are_in_the_order_a_model_writes_them() -> None:
    reply = {
        "text": "Ok.",
        "thinking": "Hm.",
        "tool_calls": [{"name": "list_files"}, {"name": "read_file", "input": {"path": "a"}}],
    }
    content = played(reply).done.message.content
    assert content == (
        Thinking("Hm."),
        Text("Ok."),
        ToolUse("call_1_1", "list_files", {}),
        ToolUse("call_1_2", "read_file", {"path": "a"}),
    )


def test_replies_that_overlap_give_calls_different_ids() -> None:
    async def run() -> list[Heard]:
        provider = ScriptedProvider([{"tool_calls": [{"name": "x"}], "delay_ms": 5}] * 2)
        return await asyncio.gather(hear(provider), hear(provider))

    calls = [call.id for heard in asyncio.run(run()) for call in heard.done.message.tool_uses]
    assert calls == ["call_1_1", "call_2_1"]


def test_the_size_of_a_delta_can_be_set() -> None:
    assert [event.text for event in played({"text": "abcdefg", "chunk": 3}).of(TextDelta)] == ["abc", "def", "g"]  # type: ignore[union-attr]


def test_the_newest_result_is_put_in_where_the_script_asks_for_it() -> None:
    results = Message("user", (ToolResult("a", "old"), ToolResult("b", (Text("ne"), Text("w")))))
    reply = {"text": "It said {{last_result}}.", "tool_calls": [{"name": "x", "input": {"a": ["{{last_result}}", 1]}}]}
    done = played(reply, request=asking("Hi", results, "Go on")).done
    assert done.message.text == "It said new."
    assert done.message.tool_uses[0].input == {"a": ["new", 1]}
    assert played({"text": "[{{last_result}}]"}).done.message.text == "[]"


def test_an_error_comes_after_what_was_reported() -> None:
    heard = played({"text": "Half", "thinking": "Hm", "error": {"kind": "rate_limit", "retry_after": 2}})
    assert isinstance(heard.error, RateLimit)
    assert heard.error.retry_after == 2
    assert heard.error.partial == Message("assistant", (Thinking("Hm"), Text("Half")))
    assert isinstance(played({"error": {"kind": "connection", "message": "gone"}}).error, ConnectionFailed)


def test_a_script_that_has_ended_says_so() -> None:
    async def run() -> Heard:
        provider = ScriptedProvider([{"text": "One."}])
        await hear(provider)
        return await hear(provider)

    assert isinstance(asyncio.run(run()).error, BadRequest)


def test_the_requests_are_kept() -> None:
    provider = ScriptedProvider([{"text": "One."}, {"text": "Two."}])

    async def run() -> None:
        await hear(provider, asking("first"))
        await hear(provider, asking("second"))

    asyncio.run(run())
    assert [request.messages[0].text for request in provider.requests] == ["first", "second"]


def test_stop_reason_and_usage_can_be_set() -> None:
    done = played({"text": "x", "stop_reason": "refusal", "usage": {"input_tokens": 7, "output_tokens": 2}}).done
    assert (done.stop_reason, done.usage) == ("refusal", Usage(7, 2))


def test_a_delay_passes_before_each_delta() -> None:
    async def run() -> float:
        started = asyncio.get_running_loop().time()
        await hear(ScriptedProvider([{"text": "abcd", "chunk": 1, "delay_ms": 5}]))
        return asyncio.get_running_loop().time() - started

    assert asyncio.run(run()) >= 0.02


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "Zażółć\u2028"}\n\n{"tool_calls": [{"name": "x"}]}', "utf-8")
    assert [reply.text for reply in read_script(script)] == ["Zażółć\u2028", ""]


@pytest.mark.parametrize("line", ['{"txet": "x"}', "{", '{"usage": 7}', '{"stop_reason": "tired"}'])
def test_a_wrong_line_of_a_script_is_named(tmp_path: Path, line: str) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "ok"}\n' + line)
    with pytest.raises(UserError, match=r"script\.jsonl, line 2"):
        read_script(script)


def test_a_missing_script_is_the_person_s_to_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl"):
        read_script(tmp_path / "none.jsonl")


def test_an_unknown_error_kind_is_named() -> None:
    with pytest.raises(UserError, match="tired"):
        played({"error": {"kind": "tired"}})


def test_a_wrong_reply_is_refused_at_once() -> None:
    with pytest.raises(msgspec.ValidationError):
        ScriptedProvider([{"txet": "x"}])
    assert ScriptedReply() == msgspec.json.decode(b"{}", type=ScriptedReply)
