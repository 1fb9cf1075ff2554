"""Any transcript, whoever wrote it and whatever happened to it, becomes a request that each API takes."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from msgspec.structs import replace

from agentcli.llm.messages import (
    Base64Source,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    repair_messages,
    user_message,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request
from agentcli.llm.providers import ollama
from agentcli.llm.providers.local import QUIRKS
from agentcli.llm.providers.openai_compat import presets
from agentcli.llm.wire import anthropic as wire_anthropic
from agentcli.llm.wire import chat_completions, responses
from tests.conformance.reading import LIST_FILES, READ_FILE
from tests.conformance.wire_rules import (
    Body,
    as_received,
    pdf,
    picture,
    refusals_of_anthropic,
    refusals_of_chat,
    refusals_of_local,
    refusals_of_ollama,
    refusals_of_responses,
)
from tests.transcripts import is_valid

WIRES = ("anthropic", "openai", "responses", "ollama", "local")
IDS = ("toolu_01A", "call_0", "call_0", "functions.bash:0", "x" * 60, "ąę", "9chars_id", "")
NAMES = ("read_file", "list_files", "functions.read_file", "", "git status", "x" * 80, "ścieżka")
TEXTS = ("Fine.", "", " \n\t", "zażółć 🎉", "Error: no", "<think>hm</think>", "\x00\x1b[2J", "{}")
PDF = Document(Base64Source("application/pdf", base64.b64encode(b"%PDF-1.4\n%%EOF").decode()))


@lru_cache
def noise() -> str:
    """An image of more than 5 MB."""
    import io

    from PIL import Image as Pictures

    made = io.BytesIO()
    Pictures.frombytes("RGB", (1_300, 1_300), random.Random(1).randbytes(1_300 * 1_300 * 3)).save(made, "PNG")
    return base64.b64encode(made.getvalue()).decode()


def image(rng: random.Random) -> Block:
    kinds: tuple[tuple[str, Callable[[], str]], ...] = (
        ("image/png", picture),
        ("image/png", lambda: picture(2_001, 8)),
        ("image/png", lambda: picture(8, 8_001)),
        ("image/jpeg", picture),  # a lie
        ("image/jpeg", lambda: picture(9, 9, "JPEG")),
        ("image/gif", lambda: picture(9, 9, "GIF")),
        ("image/webp", lambda: picture(9, 9, "WEBP")),
        ("image/bmp", lambda: picture(9, 9, "BMP")),
        ("image/png", lambda: "iVBO"),
        ("image/png", lambda: picture()[:-8]),
        ("image/png", lambda: "%%%"),
        ("image/png", lambda: ""),
        ("image/png", noise),
    )
    kind, data = kinds[0] if rng.random() < 0.6 else rng.choice(kinds)
    return Image(Base64Source(kind, data()))


def part(rng: random.Random) -> Any:
    choice = rng.random()
    if choice < 0.6:
        return Text(rng.choice(TEXTS))
    if choice < 0.9:
        return image(rng)
    if rng.random() < 0.4:
        return Document(Base64Source("application/pdf", pdf(rng.choice((1, 60, 100, 101)))))
    return PDF if rng.random() < 0.5 else Document(Base64Source("application/pdf", "AAAA"))


def result(rng: random.Random, id: str) -> ToolResult:
    parts: Any = rng.choice(TEXTS) if rng.random() < 0.6 else tuple(part(rng) for _ in range(rng.randint(0, 3)))
    return ToolResult(id, parts, is_error=rng.random() < 0.3)


def reply(rng: random.Random) -> list[Block]:
    """What one of the providers says: thinking in its own form, text, calls."""
    blocks: list[Block] = []
    ends: list[Block] = []
    match rng.choice(("claude", "claude", "qwen", "openrouter", "gpt", "paused", "plain")):
        case "claude":
            blocks.append(Thinking(rng.choice(TEXTS), f"Sig{rng.random()}"))
            if rng.random() < 0.2:
                blocks.append(RedactedThinking("Emw"))
        case "qwen":
            blocks.append(Thinking("I look."))
        case "openrouter":
            blocks.append(Opaque("openrouter", {"reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]}))
        case "gpt":
            kept = {"type": "reasoning", "id": f"rs_{rng.random()}", "summary": [], "encrypted_content": "gAAA"}
            blocks += [Opaque("openai/responses", kept), Opaque("openai/responses", {"phase": "commentary"})]
            ends = [Opaque("openai/responses", kept | {"id": "rs_last"})] if rng.random() < 0.3 else []
        case "paused":
            call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
            found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
            blocks += [Opaque("anthropic", call), Opaque("anthropic", found)]
        case _:
            pass
    if rng.random() < 0.7:
        blocks.append(Text(rng.choice(TEXTS)))
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        name = "read_file" if rng.random() < 0.6 else rng.choice(NAMES)
        id = f"toolu_{rng.random()}".replace(".", "") if rng.random() < 0.6 else rng.choice(IDS)
        blocks.append(ToolUse(id, name, {"path": "ü"}, unparsed=rng.choice(("", '{"path": '))))
    return [*blocks, *ends]


def transcript(seed: int) -> tuple[Message, ...]:
    rng = random.Random(seed)
    messages: list[Message] = []
    waiting: list[str] = []
    for _ in range(rng.randint(1, 8)):
        said: list[Block] = [result(rng, id) for id in waiting]
        if not said or rng.random() < 0.4:
            said += [part(rng) for _ in range(rng.randint(1, 3))]
        messages.append(Message("user", tuple(said)))
        made = reply(rng)
        waiting = [block.id for block in made if isinstance(block, ToolUse)]
        messages.append(Message("assistant", tuple(made)))
    if rng.random() < 0.1:
        messages.insert(1, Message("user", tuple(image(rng) for _ in range(rng.choice((19, 30, 120, 130))))))
    for _ in range(rng.choice((0, 0, 1, 3))):
        if messages:
            mutilate(rng, messages)
    return (*messages, user_message("Go on, please.")) if rng.random() < 0.7 else tuple(messages)


def mutilate(rng: random.Random, messages: list[Message]) -> None:
    at, other = rng.randrange(len(messages)), rng.randrange(len(messages))
    blocks = list(messages[at].content)
    match rng.choice(("lose", "double", "swap", "lose block", "reverse", "empty", "turn")):
        case "lose":
            del messages[at]
        case "double":
            messages.insert(other, messages[at])
        case "swap":
            messages[at], messages[other] = messages[other], messages[at]
        case "lose block":
            messages[at] = replace(messages[at], content=tuple(blocks[1:]))
        case "reverse":
            messages[at] = replace(messages[at], content=tuple(reversed(blocks)))
        case "empty":
            messages[at] = replace(messages[at], content=())
        case _:
            messages[at] = replace(messages[at], role="user" if messages[at].role == "assistant" else "assistant")


def refusals(wire: str, messages: tuple[Message, ...], seed: int) -> list[str]:
    """Why the API of a wire format would refuse these messages; the model is one of several."""
    rng = random.Random(seed)
    effort: Any = rng.choice((None, "low", "high"))
    request = Request("You help.", messages, (READ_FILE, LIST_FILES), max_tokens=9_000, effort=effort)
    if rng.random() < 0.3:
        request = replace(request, temperature=0.5)
    sees = rng.random() < 0.8
    if wire == "anthropic":
        window = rng.choice((200_000, 1_000_000))
        how: Any = rng.choice(("adaptive", "budget", "none"))
        model = ModelInfo("claude", wire, window=window, thinking=how, takes_images=True, max_output=9_000)
        version = rng.choice(("2023-06-01", "2026-10-21"))
        model = replace(model, takes_temperature=version < "2026")
        return refusals_of_anthropic(
            as_received(wire_anthropic.to_body(request, model)), version=version, window=window
        )
    model = ModelInfo("m", wire, takes_images=sees, thinking=rng.choice(("none", "effort")), max_output=9_000)
    if wire == "openai":
        name = rng.choice(tuple(presets()))
        quirks = presets()[name].quirks
        body: Body = as_received(chat_completions.to_body(request, model, quirks, name))
        fields = frozenset({"reasoning_content"} if quirks.echo_reasoning else {"reasoning_details"})
        return refusals_of_chat(body, vision=sees, files=quirks.documents, fields=fields)
    if wire == "responses":
        model = replace(model, thinking="effort", takes_images=True)
        body = responses.to_body(request, model, presets()["openai"].quirks, "openai")
        return refusals_of_responses(as_received(body))
    if wire == "ollama":
        body = ollama.to_body(request, replace(model, thinking="none"))
        return refusals_of_ollama(as_received(body), vision=sees, thinks=False)
    return refusals_of_local(
        as_received(chat_completions.to_body(request, replace(model, is_known=False), QUIRKS, "local"))
    )


def unacceptable(seeds: range) -> list[tuple[str, int, list[str]]]:
    found = []
    for seed in seeds:
        messages = repair_messages(transcript(seed))
        assert is_valid(messages), seed
        found += [(wire, seed, why) for wire in WIRES if messages and (why := refusals(wire, messages, seed))]
    return found


@pytest.mark.slow
def test_no_api_refuses_a_transcript_that_the_doctor_has_seen() -> None:
    assert unacceptable(range(60)) == []


@pytest.mark.full
@pytest.mark.slow
def test_no_api_refuses_any_of_hundreds_of_transcripts() -> None:
    assert unacceptable(range(100, 900)) == []


def test_the_validators_refuse_many_transcripts_as_they_are() -> None:
    """Else the tests above would tell nothing."""
    refused = sum(not is_valid(transcript(seed)) for seed in range(100))
    assert refused > 50
