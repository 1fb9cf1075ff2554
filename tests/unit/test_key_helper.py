"""A command that has a key, run as it is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from agentcli.errors import ConfigError
from agentcli.extensions.mcp.oauth import ServerLogin, StoredLogins
from agentcli.settings.keys import KeyHelper, StoredKeys


def helper(command: str, folder: Path, keys: list[str] | None = None) -> KeyHelper:
    seen = keys if keys is not None else []
    return KeyHelper(command, folder=folder, make_error=ConfigError, on_key=seen.append)


async def test_the_key_is_kept_until_it_is_refused(tmp_path: Path) -> None:
    seen: list[str] = []
    asked = helper("sh -c 'echo x >>runs; wc -l <runs'", tmp_path, seen)
    assert await asyncio.gather(*(asked.key() for _ in range(3))) == ["1", "1", "1"]
    asked.forget()
    assert await asked.key() == "2"
    assert seen == ["1", "2"]


async def test_words_are_parted_as_a_shell_does_and_no_shell_reads_them(tmp_path: Path) -> None:
    asked = helper("printf '%s|' 'a b' $HOME \"`id`;\" 'c'\\''d'", tmp_path)
    assert await asked.key() == "a b|$HOME|`id`;|c'd|"


async def test_a_program_that_is_left_behind_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    assert await helper("sh -c 'sleep 60 & echo key; echo $! >child'", tmp_path).key() == "key"
    assert time.monotonic() - began < 30
    await asyncio.create_subprocess_exec("kill", (tmp_path / "child").read_text().strip())


async def test_it_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    task = asyncio.create_task(helper("sh -c 'echo $$ >me; sleep 60 & wait'", tmp_path).key())
    while not (tmp_path / "me").exists() or not (tmp_path / "me").read_text():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):  # its child has a minute
            await task
    me = int((tmp_path / "me").read_text())
    for _ in range(100):
        state = Path(f"/proc/{me}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the command still runs")


@pytest.mark.full
@pytest.mark.slow
async def test_it_has_ten_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="did not finish within 10 s"):
        await helper("sh -c 'sleep 60 & sleep 60'", tmp_path).key()
    assert time.monotonic() - began < 40


def test_a_login_that_another_session_removed_is_not_used_again(tmp_path: Path) -> None:
    file, logins = tmp_path / "keys", StoredLogins(StoredKeys(tmp_path / "keys"))
    file.touch(mode=0o600)
    file.write_text('{"mcp:https://example.org": {"key": "{}"}}')
    assert logins.load("https://example.org") == ServerLogin()
    file.unlink()  # as `mcp logout` does with the last key
    assert logins.load("https://example.org") is None
