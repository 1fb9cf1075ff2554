"""Images and PDFs that a model is not shown: a text stands for each, and the person is told once."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PIL import Image

from agentcli import Agent
from agentcli.agent.events import Notice
from tests.app.running import Place
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply, ollama_reply
from tests.conformance.servers import LoopbackServer, anthropic_server, chat_server, json_reply, ollama_server
from tests.conformance.wire_rules import pdf

BLIND = "[Image (image/png) left out: this model sees no images]"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (9, 9)).save(folder / name)
    return folder


def with_model(server: LoopbackServer, home: Path) -> str:
    """A model that is known to see nothing, in the settings."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[providers.work]\nbase_url = "{server.url}"\n[models.work."m"]\nwindow = 100000\ntakes_images = false\n'
    )
    return "work/m"


async def test_the_person_is_reported_once_and_the_model_each_time(work: Path, tmp_path: Path) -> None:
    look = Said("", calls=(Call("c1", "file_read", {"path": "b.png"}),))
    with chat_server([chat_reply("What image?"), chat_reply(look), chat_reply("No."), chat_reply("No.")]) as server:
        async with Agent(with_model(server, tmp_path / "home"), cwd=work) as agent:
            said = [
                event.text
                for prompt in ("what is on @a.png?", "and on b.png?", "and now?")
                async for event in agent.stream(prompt)
                if isinstance(event, Notice)
            ]
        bodies = [request.body.decode() for request in server.requests]
    assert said == ["work/m: Image (image/png) left out: this model sees no images."]
    assert [body.count(BLIND) for body in bodies] == [1, 1, 2, 2]
    assert not any("base64" in body for body in bodies)


async def test_a_server_that_says_late_that_its_model_sees_nothing(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json_reply({"capabilities": ["completion", "tools"], "model_info": {"x.context_length": 8_000}})
    with ollama_server([ollama_reply("What image?")], show=shown) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        async with Agent("ollama/blind", cwd=work) as agent:
            said = [event.text async for event in agent.stream("what is on @a.png?") if isinstance(event, Notice)]
        assert any(BLIND in request.body.decode() for request in server.requests)
    assert said == ["ollama/blind: Image (image/png) left out: this model sees no images."]


def test_a_one_shot_run_says_it_on_stderr(place: Place) -> None:
    Image.new("RGB", (9, 9)).save(place.folder / "a.png")
    with chat_server([chat_reply("What image?")]) as server:
        ran = place.run("-m", with_model(server, place.home), "-p", "what is on @a.png?")
    assert (ran.code, ran.out) == (0, "What image?\n")
    assert ran.err.count("left out: this model sees no images") == 1


async def test_the_pages_of_all_pdfs_in_a_request_are_bounded(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pages, name in ((80, "a.pdf"), (70, "b.pdf")):
        (work / name).write_bytes(base64.b64decode(pdf(pages)))
    with anthropic_server([anthropic_reply("Read."), anthropic_reply("Both?")]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
        async with Agent("anthropic/claude-sonnet-5-5", cwd=work) as agent:
            await agent.run("read @a.pdf")
            said = [event.text async for event in agent.stream("compare it with @b.pdf") if isinstance(event, Notice)]
        content = [block for message in server.requests[1].json["messages"] for block in message["content"]]
    assert said == ["anthropic/claude-sonnet-5-5: PDF left out: newer ones fill the request."]
    assert [block["source"]["data"] for block in content if block["type"] == "document"] == [pdf(70)]
