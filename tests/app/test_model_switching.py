"""Another model takes over in the middle of a tool loop: its provider takes the conversation, whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from agentcli import Agent, AgentFailed, AgentOptions
from agentcli.llm.models import ModelInfo, bundled_models
from tests.app.running import Place
from tests.conformance.backends import CHAT_BACKENDS, AnthropicBackend, Backend, OllamaBackend, ScriptedBackend, Stage
from tests.conformance.replies import Call, Said, chat_reply
from tests.conformance.servers import chat_server
from tests.transcripts import is_valid

CHAT = {backend.id: backend for backend in CHAT_BACKENDS}
HAIKU_4_5 = bundled_models().find("anthropic", "claude-haiku-4-5")  # refuses to think on foreign calls
SEES = msgspec.structs.replace(CHAT["openai"].info, takes_images=True)

KINDS: dict[str, tuple[Backend, dict[str, Any]]] = {
    "anthropic": (AnthropicBackend(), {}),
    "openai": (CHAT["openai"], {"info": SEES}),
    "ollama": (OllamaBackend(), {}),
    "local": (CHAT["local"], {}),
    "scripted": (ScriptedBackend(), {}),
}
MORE: dict[str, tuple[Backend, dict[str, Any]]] = {
    "haiku": (AnthropicBackend(), {"info": HAIKU_4_5}),
    "deepseek": (CHAT["deepseek"], {}),  # wants its reasoning back
    "openrouter": (CHAT["openrouter"], {}),
}

LOOKS = Said(
    "I look at both.",
    "Two files: the picture first.",
    (
        Call("functions.file_read:0", "file_read", {"path": "a.png"}),
        Call("functions.file_read:1", "file_read", {"path": "missing.txt"}),
    ),
)
READS = Said("", "One is left.", (Call("call_0", "file_read", {"path": "a.txt"}),))
HALF = "Half an answer, and then"
IMAGE_LEFT_OUT = "Image (image/png) left out"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENTCLI_RETRY_MAX", "0")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("blue\n")
    Image.new("RGB", (9, 9)).save(folder / "a.png")
    return folder


def broken(backend: Backend) -> Any:
    """A reply that ends in the middle of its text."""
    if isinstance(backend, ScriptedBackend):
        return {"text": HALF, "error": {"kind": "connection"}}
    reply = backend.reply(HALF + " the rest.")
    return reply.but(breaks_after=reply.body.index(b"hen the"))


async def play(work: Path, first: str, second: str, **settings: Any) -> dict[str, Stage]:
    """Five requests: the first, the second (which breaks off), and so on in turn."""
    (one, how), (other, its) = ({**KINDS, **MORE}[name] for name in (first, second))
    async with AsyncExitStack() as stack:
        stages = {
            first: await stack.enter_async_context(one.playing(LOOKS, READS, "Blue, and a picture.", **how)),
            second: await stack.enter_async_context(other.playing(broken(other), "Both are read.", **its)),
        }
        order: Iterator[str] = iter((first, second, first, second, first))

        async def resolve(state: Any) -> tuple[Any, ModelInfo]:
            provider = stages[next(order)].provider
            return provider, provider.info  # type: ignore[attr-defined]

        async with Agent("ollama/any", cwd=work, options=AgentOptions(resolve=resolve, settings=settings)) as agent:
            with pytest.raises(AgentFailed) as failed:
                await agent.run("what is in a.png and missing.txt?")
            assert failed.value.is_retryable, failed.value
            assert (await agent.run("go on")).text == "Both are read."
            assert (await agent.run("in one sentence?")).text == "Blue, and a picture."
    return stages


def bodies(stage: Stage) -> list[dict[str, Any]]:
    if stage.server is not None:
        return [request.json for request in stage.server.requests]
    requests = list(stage.provider.requests)  # type: ignore[attr-defined]
    assert all(is_valid(request.messages) for request in requests)
    return [{"messages": msgspec.to_builtins(request.messages)} for request in requests]


def check(name: str, body: dict[str, Any], calls: int) -> None:
    """Every call so far stands there with its result, and so does what was said."""
    backend = {**KINDS, **MORE}[name][0]
    text = json.dumps(body, ensure_ascii=False)
    assert "what is in a.png" in text
    assert "I look at both." in text
    if not isinstance(backend, ScriptedBackend):
        assert [given["path"] for _, given in backend.calls_in(body)] == ["a.png", "missing.txt", "a.txt"][:calls]
        assert len(backend.results_in(body)) == calls
    assert "missing.txt" in text
    assert "not_found" in text
    sees = name in ("anthropic", "haiku", "openai", "scripted")
    assert (IMAGE_LEFT_OUT in text) is not sees
    assert ("image/png;base64," in text or '"media_type": "image/png"' in text) is sees
    if calls == 3:
        assert HALF[:20] in text
        assert "blue" in text


def check_all(stages: dict[str, Stage], first: str, second: str) -> None:
    asked = {name: bodies(stage) for name, stage in stages.items()}
    check(second, asked[second][0], 2)
    check(first, asked[first][1], 2)
    check(second, asked[second][1], 3)
    check(first, asked[first][2], 3)


@pytest.mark.parametrize(("first", "second"), list(permutations(KINDS, 2)))
async def test_a_conversation_continues_with_another_provider(work: Path, first: str, second: str) -> None:
    check_all(await play(work, first, second), first, second)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in permutations([*KINDS, *MORE], 2) if set(pair) & MORE.keys()]
)
async def test_also_with_the_rules_of_other_models(work: Path, first: str, second: str) -> None:
    check_all(await play(work, first, second, tokens={"effort": "high"}), first, second)


# Sessions that go on


@pytest.mark.slow
def test_a_session_continues_with_its_own_model_unless_a_flag_names_another(place: Place) -> None:
    theirs, other = place.script({"text": "One."}, {"text": "One again."}), place.script({"text": "Two."})
    first = place.run("-m", theirs, "-p", "a", "--output-format", "json").result["session_id"]
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(f'[provider]\nmodel = "{other}"\n')
    assert place.run("-c", "-p", "b").out == "One.\n"  # each run plays the script from its beginning
    assert place.run("-r", first, "-p", "b").out == "One.\n"
    assert place.run("-c", "-m", other, "-p", "c").out == "Two.\n"
    assert place.run("-c", "-p", "d").out == "Two.\n"


def test_a_model_that_was_substituted_is_not_the_session_s_own(place: Place) -> None:
    usual, spare = place.script({"text": "Yes."}), place.script({"text": "Spare."})
    broken = place.script({"error": {"kind": "overloaded"}})
    once = {"AGENTCLI_RETRY_MAX": "0"}
    place.run("-m", usual, "-p", "a")
    assert place.run("-c", "-m", broken, "--fallback-model", spare, "-p", "b", env=once).out == "Spare.\n"
    ran = place.run("-c", "-p", "c", env=once)
    assert (ran.code, "scripted overloaded error" in ran.err) == (1, True)


def test_a_missing_key_of_the_session_s_model_is_reported_before_anything_is_sent(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server:
        env = {"OPENAI_BASE_URL": server.url}
        place.run("-m", "openai/m", "-p", "a", env=env | {"OPENAI_API_KEY": "sk-1"})
        ran = place.run("-c", "-p", "b", env=env | {"ANTHROPIC_API_KEY": "sk-2"})
        assert len(server.requests) == 1
        assert (ran.code, ran.out) == (2, "")
        assert "openai needs an API key. Set OPENAI_API_KEY" in ran.err
        usage = place.run("-c", "-p", "/usage", env=env)  # for which no model is needed, nor found here
    assert usage.code == 0, usage
