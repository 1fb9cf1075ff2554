from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place
from tests.app.terminal import Open, Terminal

MakeModel = Callable[..., str]  # returns the name of a model that gives these replies


@pytest.fixture
def model(tmp_path: Path) -> MakeModel:
    def make(*replies: dict[str, Any]) -> str:
        (tmp_path / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        return f"scripted/{tmp_path / 'script.jsonl'}"

    return make


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def place_with_a_file(place: Place) -> Place:
    (place.folder / "a.py").write_text('print("hi")\n')
    return place


@pytest.fixture
def library_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own for the library, without keys and without an Ollama server."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Open]:
    """Opens the program on a script of replies."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    (cwd / "a.py").write_text('print("hi")\n')
    opened: list[Terminal] = []

    def open_on(replies: list[dict[str, Any]] | None, *flags: str, columns: int = 100, **env: str) -> Terminal:
        if replies is not None:
            (cwd / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
            flags = ("-m", "scripted/script.jsonl", *flags)
        opened.append(Terminal(cwd, *flags, columns=columns, **env))
        return opened[-1]

    yield open_on
    for terminal in opened:
        terminal.close()
