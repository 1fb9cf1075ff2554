"""What a command made is protected before the next one starts: hooks of new repositories, secrets in new folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.running import Place, call
from tests.processes import needs_bubblewrap

DONE = {"text": "done"}


def results(place: Place, *commands: str, mode: str) -> list[str]:
    replies = [{"tool_calls": [call("bash", command=command)]} for command in commands]
    flags = ("--output-format", "stream-json", "--permission-mode", mode)
    ran = place.run("-p", "go", "-m", place.script(*replies, DONE), *flags)
    assert ran.code == 0, (ran.out, ran.err)
    return [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


@pytest.fixture
def deep(place: Place) -> Path:
    folder = place.folder / "a/b/c/d/e"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "bypassPermissions"])
@pytest.mark.parametrize("made", ["a/b/c/d/e/new", "a/new", "build/x/new"])
def test_a_new_repository_keeps_its_hooks_from_the_next_command(place: Place, deep: Path, mode: str, made: str) -> None:
    make = f"touch -r a/b stamp; git init -q {made}; touch -r stamp a a/b/c/d/e"
    write = f"python3 -c \"open('/'.join(['{made}', '.git', 'hooks', 'pre-commit']), 'w').write('evil')\""
    _, told = results(place, make, write, mode=mode)
    assert (place.folder / made / ".git/config").exists()
    assert "Read-only file system" in told
    assert not (place.folder / made / ".git/hooks/pre-commit").exists()


@needs_bubblewrap
def test_a_new_secret_file_is_hidden_from_the_next_command(place: Place, deep: Path) -> None:
    folder = "a/b/c/d/e"
    make = (
        f"touch -r {folder} stamp; mkdir {folder}/f; echo KEY=a7f3b2c91d8e > {folder}/f/.env; touch -r stamp {folder}"
    )
    _, told = results(place, make, "cat a/b/c/d/e/f/.e*", mode="bypassPermissions")
    assert (deep / "f/.env").exists()
    assert "Permission denied" in told
