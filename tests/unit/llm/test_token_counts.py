"""Tokens as Python programs count them: `from agentcli import count_tokens`."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Picture
from pypdf import PdfWriter

from agentcli import Agent, ConfigError, Document, Image, Message, Text
from agentcli.llm.messages import Base64Source, Thinking, ToolResult, ToolUse
from agentcli.llm.models import family_of
from agentcli.providers import ToolSpec, get_model_info
from agentcli.tokens import count_conversation_tokens, count_message_tokens, count_tokens, encoders
from tests.conformance.servers import SILENCE, Answer, LoopbackServer, json_reply


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def counter() -> Iterator[Any]:
    """Starts servers that count."""
    started: list[LoopbackServer] = []

    def start(*script: Answer) -> LoopbackServer:
        started.append(LoopbackServer(script, chat_path="/a/count?v=1", routes={}))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.stop()


def settle(home: Path, text: str, name: str = "encoders.toml") -> None:
    """Write a file of encoders and the setting that names it."""
    (home / name).write_text(text)
    (home / "config.toml").write_text(f'[tokens]\nencoders = "{name}"\n')


BAD_ANSWERS: tuple[Any, ...] = ({"tokens": "7"}, {"tokens": True}, {"tokens": -1}, [7], {"count": 7})


def counted_by(server: LoopbackServer, *more: str) -> str:
    return "\n".join([f'["acme-*"]\ncounter = "{server.address}/a/count?v=1"\nmargin = 1.0', *more])


# Encodings


@pytest.mark.parametrize("run", ["a", " ", "\n", "中", "=", "\ud800"])
def test_a_million_times_the_same_character_is_counted_in_a_moment(run: str) -> None:
    count_tokens("warm", "gpt-4o")
    start = time.monotonic()
    assert count_tokens(run * 1_000_000, "gpt-4o") > 5_000
    assert time.monotonic() - start < 10


@pytest.mark.slow
def test_encodings_need_no_network_and_no_cache(tmp_path: Path) -> None:
    """In a process whose every connection fails, and whose folder for temporary files stays empty."""
    program = """
import socket, sys
def refuse(*given, **named): raise OSError("no network")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from agentcli.tokens import count_tokens
print(count_tokens("hello world", "gpt-4o"), count_tokens("hello world", "gpt-4"), "requests" in sys.modules)
"""
    kept = {name: value for name, value in os.environ.items() if "TIKTOKEN" not in name and "GYM" not in name}
    (tmp_path / "tmp").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "2 2 False\n", ran.stderr
    assert not list((tmp_path / "tmp").iterdir())


# Families, margins, lookup


FAMILIES = {
    ("claude", 1.15): "anthropic/claude-sonnet-5-5 bedrock/us.anthropic.claude-opus-4-6-v1:0 "
    "openrouter/anthropic/claude-haiku-5-5",
    ("gpt", 1.0): "openai/gpt-6.1-sol o4-mini groq/openai/gpt-oss-120b",
    ("gemini", 1.2): "google/gemini-3-pro ollama/gemma3:27b",
    ("glm", 1.25): "z-ai/glm-5",
    ("qwen", 1.2): "ollama/qwen3-coder deepseek-r1-distill-qwen-32b",
    ("llama", 1.15): "groq/meta-llama/Llama-4-Scout codellama-70b",
    ("mistral", 1.25): "mistral/codestral-2508",
    ("deepseek", 1.2): "deepseek/deepseek-v4-pro",
    ("custom", 1.2): "ollama/phi-5 x-ai/grok-5",
}


@pytest.mark.parametrize(
    ("model", "family", "margin"),
    [(name, *row) for row, names in FAMILIES.items() for name in names.split()] + [("", "custom", 1.2)],
)
def test_the_family_and_its_margin_come_from_the_name(model: str, family: str, margin: float) -> None:
    facts = get_model_info(model)
    assert (facts.family, facts.margin, facts.mode) == (family, margin, "estimate")
    assert family_of(model.upper()) == family
    text = "some words, more words. " * 100
    plain = encoders.encoder(encoders.row(model)).count(text)
    assert count_tokens(text, model) == ceil(plain * margin)


def test_a_model_is_found_by_its_name_its_alias_and_with_its_provider() -> None:
    named = get_model_info("anthropic/claude-opus-5-5")
    assert named == get_model_info("claude-opus-5-5") == get_model_info("opus")
    assert named.window == 1_000_000
    assert not get_model_info("nobody/knows-it").is_known


def test_exact_names_come_before_patterns_before_families_before_the_unknown(home: Path) -> None:
    tables = {"acme-large": 1.4, "qwen": 1.6, "unknown": 1.7, "Corp/Mixed-Case": 1.8}
    text = "".join(f'["{name}"]\nmargin = {margin}\n' for name, margin in tables.items())
    bytes_ = '["acme-*"]\nmargin = 1.5\nencoder = "bytes"\n'
    settle(home, text + bytes_)
    names = ("work/acme-large", "acme-small", "qwen9", "nobodys", "corp/mixed-case", "claude-x")
    assert [get_model_info(name).margin for name in names] == [1.4, 1.5, 1.6, 1.7, 1.8, 1.15]
    assert count_tokens("中" * 100, "acme-small") == ceil(100 * 1.5)


def test_a_yaml_file_says_the_same(home: Path) -> None:
    settle(home, "acme-*:\n  encoder: o200k_base\n  margin: 1.01\n", "encoders.yaml")
    facts = get_model_info("work/acme-1")
    assert (facts.encoder, facts.margin) == ("o200k_base", 1.01)


ENCODERS = """
encoders:
  "acme-*": {encoding_name: o200k_base, safety_margin: 0.25, use_exact_counting: false, counter: "http://127.0.0.1:9/"}
  acme-large: {encoding_name: bytes, safety_margin: 1.5}
  "*-house": {safety_margin: 0}
"""


def test_a_yaml_file_may_have_the_names_that_other_counters_use(home: Path) -> None:
    settle(home, ENCODERS, "encoders.yaml")
    found = [get_model_info(name) for name in ("work/acme-1", "acme-large", "gpt-house")]
    assert [(facts.encoder, facts.margin, facts.mode) for facts in found] == [
        ("o200k_base", 1.25, "estimate"),
        ("bytes", 1.5, "estimate"),
        ("cl100k_base", 1.0, "estimate"),
    ]
    assert count_tokens("hello world", "acme-1") == ceil(2 * 1.25)
    assert count_tokens("a" * 100, "acme-large") == 51


@pytest.mark.parametrize(
    ("row", "key", "expected"),
    [
        ("safety_margin: -0.1", "encoders.acme.safety_margin", ">= 0"),
        ("safety_margin: much", "encoders.acme.safety_margin", "`float`"),
        ("use_exact_counting: maybe", "encoders.acme.use_exact_counting", "true, false"),
        ("encoding_nam: bytes", "encoders.acme.encoding_nam", "did you mean encoding_name?"),
        ("encoding_name: byts", "encoders.acme", "did you mean bytes?"),
    ],
)
def test_a_wrong_yaml_file_is_named_with_its_key_and_what_is_expected(
    home: Path, row: str, key: str, expected: str
) -> None:
    settle(home, f"encoders:\n  acme:\n    {row}\n", "encoders.yaml")
    with pytest.raises(ConfigError) as raised:
        count_tokens("hi", "acme")
    assert (raised.value.file, raised.value.key) == (str(home / "encoders.yaml"), key)
    assert expected in str(raised.value)


def test_a_session_estimates_with_the_margin_of_the_file(home: Path) -> None:
    """Until the provider has counted, the tokens of a request are estimated: the usual margin is 1.1."""
    (home / "script.jsonl").write_text('{"text": "Hi."}\n')

    async def estimated(pattern: str) -> float:
        settle(home, f'["{pattern}"]\nmargin = 2.2\n')
        async with Agent(f"scripted/{home / 'script.jsonl'}", cwd=home, instructions="Hi.") as agent:
            session = await agent.session()
            use = await session.runtime.context_use(session.state)
            return use.request

    usual, doubled = (asyncio.run(estimated(pattern)) for pattern in ("other", "*script.jsonl"))
    assert doubled == pytest.approx(2 * usual, abs=1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("encoders.toml", "[acme]\nmargin = 0.9\n", "acme.*>= 1"),
        ("encoders.toml", "[acme]\nmarign = 1.1\n", "marign"),
        ("encoders.toml", '[acme]\nencoder = "o200k_bas"\n', "o200k_base"),
        ("encoders.toml", "acme = 3\n", "acme"),
        ("encoders.toml", '[acme]\ncounter = "ftp://x"\n', "acme"),
        ("encoders.toml", "[acme\n", "could not be read"),
        ("encoders.yml", "acme: [", r"encoders\.yml.*could not be read"),
        ("encoders.yaml", "- acme", "`object`, got `array`"),
    ],
)
def test_a_wrong_file_is_named_with_the_model(home: Path, name: str, text: str, said: str) -> None:
    settle(home, text, name)
    with pytest.raises(ConfigError, match=said) as raised:
        count_tokens("hi", "acme")
    assert raised.value.file == str(home / name)


def test_a_file_that_does_not_exist_is_named(home: Path) -> None:
    (home / "config.toml").write_text('[tokens]\nencoders = "none.toml"\n')
    with pytest.raises(ConfigError, match=r"none\.toml.*could not be read"):
        count_tokens("hi", "acme")


class Words:
    """An encoder of a library's user: a token for each word."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def test_an_encoder_is_registered_by_code_also_where_a_file_is_set(home: Path) -> None:
    settle(home, "[acme-2]\nmargin = 2.0\n")
    assert get_model_info("wordy-1").encoder == "cl100k_base"
    encoders.register("wordy-*", Words(), margin=1.5)
    assert count_tokens("one two three", "work/wordy-1") == 5
    settle(home, '[acme-2]\nencoder = "words"\nmargin = 2.0\n', "again.toml")
    assert count_tokens("one two", "acme-2") == 4
    with pytest.raises(ValueError, match="margin"):
        encoders.register("wordy-*", margin=0.5)


# Exact counters


def test_an_exact_counter_is_asked_with_model_and_text(home: Path, counter: Any) -> None:
    server = counter(json_reply({"tokens": 7}), json_reply({"tokens": 11}))
    settle(home, counted_by(server))
    assert get_model_info("work/acme-1").mode == "exact"
    assert count_tokens("hello there \ud800", "work/acme-1") == 7
    assert server.requests[0].json == {"model": "work/acme-1", "text": "hello there ?"}
    messages = [Message("user", (Text("a"),)), Message("assistant", (Text("b"),))]
    assert count_conversation_tokens(messages, "acme-1") == 11 + 4 * 2 + 3
    assert [request.json["text"] for request in server.requests[1:]] == ["a\nb"]


def test_an_exact_counter_is_asked_within_an_event_loop_too(home: Path, counter: Any) -> None:
    settle(home, counted_by(counter(json_reply({"tokens": 7}))))

    async def ask() -> int:
        return count_tokens("hello", "acme-1")

    assert asyncio.run(ask()) == 7


def test_a_row_can_switch_its_counter_off(home: Path, counter: Any) -> None:
    server = counter(json_reply({"tokens": 7}))
    settle(home, counted_by(server, "exact = false"))
    assert get_model_info("acme-1").mode == "estimate"
    assert count_tokens("hello world", "acme-1") == 2
    assert not server.requests


@pytest.mark.parametrize("answer", [json_reply({"error": "down"}, 500), *map(json_reply, BAD_ANSWERS), SILENCE, None])
def test_a_counter_that_fails_leaves_an_estimate_and_a_warning_and_is_not_asked_again(
    home: Path, counter: Any, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    server = counter(answer, json_reply({"tokens": 7})) if answer else counter()
    settle(home, counted_by(server))
    if answer is None:  # nobody listens there any more
        server.stop()
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "agentcli"):
        assert [count_tokens("hello world", "acme-1") for _ in range(2)] == [2, 2]
    assert time.monotonic() - start < 6
    assert len(server.requests) == (1 if answer else 0)
    assert len(caplog.records) == 1
    assert "127.0.0.1" in caplog.text


# Messages


def picture(width: int, height: int) -> str:
    out = io.BytesIO()
    Picture.new("1", (width, height)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def pdf(pages: int) -> str:
    writer, out = PdfWriter(), io.BytesIO()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    writer.write(out)
    return base64.b64encode(out.getvalue()).decode()


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        ("claude-opus-5-5", 200, 200, 54),  # Anthropic's own examples ("Vision", "Calculate image costs")
        ("claude-opus-5-5", 1_000, 1_000, 1_334),
        ("claude-opus-5-5", 1_092, 1_092, 1_590),
        ("claude-opus-5-5", 4_000, 3_000, 1_600),
        ("gpt-4o", 1_024, 1_024, 765),  # OpenAI's ("Images and vision", "Calculating costs")
        ("gpt-4o", 2_048, 4_096, 1_105),
        ("gemini-3-pro", 300, 300, 258),
    ],
)
def test_images_cost_what_their_size_costs_at_the_provider(model: str, width: int, height: int, tokens: int) -> None:
    data = picture(width, height)
    ours = Image(Base64Source("image/png", data))
    assert count_message_tokens(Message("user", (ours,)), model) == 4 + tokens
    assert count_message_tokens(Message("user", (ToolResult("a", (ours, ours)),)), model) == 4 + 2 * tokens
    theirs = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert count_message_tokens({"role": "user", "content": [theirs]}, model) == 4 + tokens


def test_images_whose_size_is_not_known_cost_the_most() -> None:
    for source in ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, {"type": "url", "url": "http://x/y"}):
        message = {"role": "user", "content": [{"type": "image", "source": source}]}
        assert count_message_tokens(message, "claude-opus-5-5") == 4 + 1_600


def test_pdfs_count_by_their_pages() -> None:
    def count(data: str) -> int:
        return count_message_tokens(Message("user", (Document(Base64Source("application/pdf", data)),)), "claude-x") - 4

    assert count(pdf(12)) == 12 * count(pdf(1)) == 12 * 3_000
    assert count(base64.b64encode(b"%PDF-1.7 broken").decode()) == 3_000


def of_a_file(kind: str, data: str) -> dict[str, Any]:
    file = {"filename": "a.pdf", "file_data": data}
    return {"type": "file", "file": file} if kind == "file" else {"type": kind, **file}


@pytest.mark.parametrize("kind", ["file", "input_file"])
@pytest.mark.parametrize("start", ["", "data:application/pdf;base64,"])
def test_files_of_openais_apis_count_as_they_are_read(kind: str, start: str) -> None:
    def count(block: dict[str, Any]) -> int:
        return count_message_tokens({"role": "user", "content": [block]}, "gpt-5.4") - 4

    assert count(of_a_file(kind, start + pdf(7))) == 7 * 3_000
    text = "some words of a text " * 3_000
    encoded = base64.b64encode(text.encode()).decode()
    assert count(of_a_file(kind, "data:text/plain;base64," + encoded)) == count_tokens(text, "gpt-5.4")
    assert count({"type": kind, "file": {"file_id": "file-1"}, "file_id": "file-1"}) == 3_000  # a page at least


def test_every_kind_of_block_counts() -> None:
    text = "one two three " * 200
    bare = count_message_tokens(Message("user", ()), "gpt-4o")
    for block in (
        Text(text),
        Thinking(text),
        ToolUse("id", "name", {"a": text}),
        ToolUse("id", "name", {}, unparsed=text),
        ToolResult("id", text),
        ToolResult("id", (Text(text),)),
    ):
        assert 600 <= count_message_tokens(Message("user", (block,)), "gpt-4o") - bare <= 620


def test_the_same_message_counts_the_same_in_each_form() -> None:
    said, given = "Let me look.", {"path": "a.py"}
    ours = Message("assistant", (Text(said), ToolUse("c1", "file_read", {"path": "a.py"})))
    text = {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "c1", "name": "file_read", "input": given}
    called = {"id": "c1", "type": "function", "function": {"name": "file_read", "arguments": '{"path": "a.py"}'}}
    chat = {"role": "assistant", "content": said, "refusal": None, "tool_calls": [called]}
    messages = (ours, {"role": "assistant", "content": [text, use]}, chat)
    assert len({count_message_tokens(message, "gpt-4o") for message in messages}) == 1


def test_a_conversation_counts_its_messages_system_text_and_tools() -> None:
    hi, there = Message("user", (Text("hi"),)), Message("assistant", (Text("there"),))
    alone = count_message_tokens(hi, "gpt-4o") + count_message_tokens(there, "gpt-4o")
    assert count_conversation_tokens([hi, there], "gpt-4o") == alone + 3
    tool = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
    with_all = count_conversation_tokens([hi, there], "gpt-4o", system="Be good.", tools=[tool])
    assert with_all - alone - 3 == count_tokens("Be good.", "gpt-4o") + count_tokens(
        '{"name": "look", "description": "Looks.", "input_schema": '
        '{"type": "object", "properties": {"at": {"type": "string"}}}}',
        "gpt-4o",
    )


def test_cjk_is_counted_by_what_it_takes_not_by_its_letters() -> None:
    text = "人工智能助手可以帮助你编写代码。" * 50
    assert 0.5 * len(text) < count_tokens(text, "gpt-4o") < 1.2 * len(text)
    assert count_tokens(text, "claude-opus-5-5") > count_tokens(text, "gpt-4")
