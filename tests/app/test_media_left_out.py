"""Images and PDFs that a model is not shown: a text stands for each, and the person is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from agentcli import Agent
from agentcli.agent.events import Notice
from tests.app.running import Place
from tests.conformance.replies import Call, Said, chat_reply, ollama_reply
from tests.conformance.servers import LoopbackServer, chat_server, json_reply, ollama_server

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


async def test_the_person_is_told_once_and_the_model_each_time(work: Path, tmp_path: Path) -> None:
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
